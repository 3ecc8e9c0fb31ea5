"""``streamlease collection``: what is there of collections at one point, and the changes behind it."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.admin.common_options import RedisUrl
from streamlease.admin.messages.consume import Printer, print_until_stopped
from streamlease.admin.messages.message_lines import value_of
from streamlease.admin.output import document, printable, table
from streamlease.protocol.plain_values import plain

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.streams.collections.core.multiset import Columns, Content, Item


def collection(
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="A topic filter.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with each change, until the command is interrupted.")
    ] = False,
    redis: RedisUrl = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document; with --follow, one for each item and change.")
    ] = False,
) -> None:
    """Print the items of collections with their counts; with --follow, then each change."""
    print_until_stopped(redis, partial(_print, filter, follow), as_json)


async def _print(filter: str, follow: bool, client: Client, printer: Printer) -> None:
    from streamlease.admin import answers
    from streamlease.streams.collections.core.multiset import Multiset

    async with client.collection(filter) as found:
        items = Multiset(found.items).ordered()
        if not follow:
            if printer.as_json:
                counted = [answers.CountedItem(count=n, **_fields(one)) for one, n in items]
                document(answers.CollectionShown(items=counted, frontier=_lists(found.frontier)))
            else:
                rows = [(n, one[0], _text(one[1]), _text(one[2])) for one, n in items]
                table(("count", "topic", "key", "payload"), rows, "the collection is empty")
            return
        for one, count in items:
            _tell(one, count, printer)
        if printer.as_json:
            document(answers.SnapshotEnded(snapshot=True))
        sys.stdout.flush()
        while (change := await printer.until_stopped(anext(found))) is not None:
            _tell(change.item, change.diff, printer)
            sys.stdout.flush()


def _tell(item: Item, diff: int, printer: Printer) -> None:
    from streamlease.admin import answers

    if printer.as_json:
        told = answers.ItemChanged(item=answers.CollectionItem(**_fields(item)), diff=diff)
        sys.stdout.write(json.dumps(told.as_json(), ensure_ascii=False, default=str) + "\n")
    else:
        sys.stdout.write(f"{diff:+d}\t{printable(item[0])}\t{_text(item[1])}\t{_text(item[2])}\n")


def _fields(item: Item) -> dict[str, Any]:
    topic, key, content = item
    fields = {"topic": topic, "key": None if key is None else value_of(key)}
    if isinstance(content, bytes):
        return {**fields, "payload": value_of(content)}
    return {**fields, "payload": None, "values": _values(content)}


def _values(columns: Columns) -> dict[str, Any]:
    shown: dict[str, Any] = plain(dict(columns))
    return shown


def _text(content: Content | None) -> str:
    if content is None:
        return ""
    if not isinstance(content, bytes):
        return printable(json.dumps(_values(content), ensure_ascii=False))
    value = value_of(content)
    return printable(value) if isinstance(value, str) else f"base64:{value.base64}"


def _lists(frontier: list[tuple[int, ...]] | None) -> list[list[int]] | None:
    return None if frontier is None else [list(epoch) for epoch in frontier]
