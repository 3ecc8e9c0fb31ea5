"""``streamlease catalog``: what there is of one kind, and what changes."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.admin.common_options import RedisUrl
from streamlease.admin.messages.consume import Printer, print_until_stopped
from streamlease.admin.output import document, printable, table
from streamlease.protocol.errors import InvalidOption

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.catalog.items import CatalogItem


def catalog(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="spaces, topics, hosts, leaders, leases, borrowers, publications, subscriptions, services, "
            "executors, queries.",
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with each change, until the command is interrupted.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="CURSOR", help="With --follow: only what changed behind this cursor."),
    ] = None,
    redis: RedisUrl = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document; with --follow, one for each item and change.")
    ] = False,
) -> None:
    """Print what there is of one kind; with --follow, then each change."""
    from streamlease.catalog.items import check_collection

    check_collection(name)
    if start is not None and not follow:
        raise InvalidOption("--from says where to go on, so it needs --follow")
    print_until_stopped(redis, partial(_print, name, follow, start), as_json)


async def _print(name: str, follow: bool, start: str | None, client: Client, printer: Printer) -> None:
    from streamlease.admin.facts import catalog_rows
    from streamlease.catalog.items import COUNTED

    async with client.catalog(name, start=start) as found:
        items = sorted(found.items, key=_in_order)
        if not follow:
            if printer.as_json:
                counted = [COUNTED[type(one)](**{**one.model_dump(), "count": 1}) for one in items]
                document(catalog_rows.CatalogShown(items=counted, at=found.at))
            else:
                titles = [*_kind(name).model_fields]
                table(titles, [[_text(value) for _, value in one] for one in items], f"there are no {name}")
            return
        for one in items:
            _tell(one, 1, None, printer)
        if start is None and printer.as_json:
            document(catalog_rows.CatalogSnapshotEnded(snapshot=True, at=found.at))
        sys.stdout.flush()
        while (change := await printer.until_stopped(anext(found))) is not None:
            _tell(change.item, change.diff, change.at, printer)
            sys.stdout.flush()


def _kind(name: str) -> type[CatalogItem]:
    from streamlease.catalog.items import ITEMS

    return ITEMS[name]


def _in_order(item: CatalogItem) -> str:
    return json.dumps(item.model_dump(), sort_keys=True)


def _tell(item: CatalogItem, diff: int, at: str | None, printer: Printer) -> None:
    from streamlease.admin.facts import catalog_rows

    if printer.as_json:
        document(catalog_rows.CatalogItemChanged(item=item, diff=diff, at=at))
    else:
        cells = "\t".join(printable(str(_text(value))) for _, value in item)
        sys.stdout.write(f"{diff:+d}\t{cells}\n")


def _text(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join("=".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value
