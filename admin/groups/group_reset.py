"""``streamlease group reset``: a new line of progress, computed here, done by the leader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.acting import act, declared
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.groups.group_flags import Sub
from streamlease.admin.groups.reset_file import parse, wrong
from streamlease.admin.moments import parse_moment
from streamlease.admin.output import document, line, table
from streamlease.admin.running import with_client
from streamlease.protocol.errors import HistoryTruncated, InvalidInput, InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.protocol.nearest import nearest
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from streamlease.admin.answers import Reset, ResetStream
    from streamlease.agent.client import Client

LARGEST_FILE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is there of a stream, and how far the group is."""

    committed: int
    floor: int
    next: int


def reset(
    subscription: Sub,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="earliest|latest|TIME|DURATION|OFFSET",
            help="Where to continue. A duration counts back from now.",
        ),
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option(metavar="N", help="Move by this many messages: forward, or back if negative."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A JSON or CSV file with a stream and an offset in each record.",
            dir_okay=False,
        ),
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option(metavar="STREAM", help="Reset only this stream. May be repeated.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Apply the change instead of only showing it.")
    ] = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Move the progress of a group, even while it is being consumed.

    Without --execute, only show what would change.
    """
    shared = SharedSubscription.parse(subscription)
    if [to, shift, file].count(None) != 2:
        raise InvalidOption("say where the group goes on, in one way: --to, --shift or --file")
    if file is not None and stream:
        raise InvalidOption("--file names the streams itself: leave --stream out")
    text = None if file is None else _read(file)

    async def work(client: Client) -> Reset:
        from streamlease.admin.answers import Reset
        from streamlease.protocol.acts import ResetProgress, made

        read = None if text is None else (str(file), text)
        rows = await reset_rows(client, shared, to=to, shift=shift, file=read, only=stream or [])
        moves = {row.stream: row.to for row in rows}
        # A dry run also asks the leader, if there is one to be had, whether it would do it.
        if moves:
            await act(client, shared, made(ResetProgress, offsets=moves), dry_run=not execute)
        return Reset(subscription=str(shared), dry_run=not execute, streams=rows)

    done = with_client(redis, work)
    if as_json:
        document(done)
        return
    line("done:" if execute else "this would be done; nothing was changed, confirm with --execute:")
    rows = [(one.stream, one.from_, one.to, one.again, one.skipped, one.note) for one in done.streams]
    table(("STREAM", "FROM", "TO", "AGAIN", "SKIPPED", "NOTE"), rows, "the group has no streams")


async def reset_rows(
    client: Client,
    shared: SharedSubscription,
    *,
    to: str | None = None,
    shift: int | None = None,
    file: tuple[str, str] | None = None,
    only: list[str],
) -> list[ResetStream]:
    """Where each stream would go on, and what that means; one of `to`, `shift`, `file` (name, text) is given.

    Raises:
        InvalidInput, InvalidOption: the point, the file or a stream is not acceptable. UnknownGroup.
    """
    bounds = await _bounds(client, shared, only)
    if file is not None:
        wanted = _from_file(*file, bounds)
    elif shift is not None:
        wanted = {name: one.committed + shift for name, one in bounds.items()}
    else:
        wanted = await _to(client, str(to), bounds)
    return [_row(name, bounds[name], offset) for name, offset in wanted.items()]


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise InvalidInput(f"{file} is larger than {LARGEST_FILE} bytes: split it; nothing was changed")
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}; nothing was changed") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8 at byte {error.start}; nothing was changed") from None


async def _bounds(client: Client, shared: SharedSubscription, only: list[str]) -> dict[str, Bounds]:
    from streamlease.admin.facts.group import look
    from streamlease.streams.log.log import AsyncLog

    declaration = await declared(client, shared)
    seen, _ = await look(client, declaration)
    committed = {one["stream"]: one["committed"] for one in seen["streams"]}
    for name in only:
        if name not in committed:
            raise InvalidInput(f"group '{shared}' has no stream {name}; {nearest(name, committed)}")
    ids = {name: StreamId.parse(name) for name in committed if not only or name in only}
    states = await AsyncLog(client.redis).states(ids.values())
    return {
        name: Bounds(committed[name], states[id].floor, states[id].next)
        for name, id in ids.items()
        if id in states
    }


def _from_file(name: str, text: str, bounds: dict[str, Bounds]) -> dict[str, int]:
    wanted = {}
    for wish in parse(name, text):
        known = bounds.get(wish.stream)
        if known is None:
            raise wrong(
                name, wish.line, f"the group has no stream {wish.stream}; {nearest(wish.stream, bounds)}"
            )
        if not known.floor <= wish.offset <= known.next:
            raise wrong(
                name,
                wish.line,
                f"stream {wish.stream} has offsets {known.floor} to {known.next}, not {wish.offset}",
            )
        wanted[wish.stream] = wish.offset
    return wanted


async def _to(client: Client, to: str, bounds: dict[str, Bounds]) -> dict[str, int]:
    if to == "earliest":
        return {name: one.floor for name, one in bounds.items()}
    if to == "latest":
        return {name: one.next for name, one in bounds.items()}
    if to.isascii() and to.isdigit() and len(to) < 19:
        return dict.fromkeys(bounds, int(to))
    try:
        moment = await parse_moment(client.redis, "--to", to, ahead=False)
    except InvalidOption:
        raise InvalidOption(
            f"--to {ascii(to)[:80]} is no point in a stream: use earliest, latest, an offset such as 1000, "
            f"a time such as 2026-01-31T12:00:00Z, or a duration back from now such as 2h"
        ) from None
    return await _at_time(client, moment, bounds)


async def _at_time(client: Client, moment: int, bounds: dict[str, Bounds]) -> dict[str, int]:
    """The first message of each stream from that millisecond on, or the oldest that is left."""
    from streamlease.streams.log.times import offsets_after

    left = {StreamId.parse(name): moment * 1000 - 1 for name in bounds}
    found: dict[str, int] = {}
    while left:
        try:
            found |= {str(id): at for id, at in (await offsets_after(client.redis, left)).items()}
            break
        except HistoryTruncated as gone:
            found[gone.stream] = gone.oldest
            del left[StreamId.parse(gone.stream)]
    return {name: found[name] for name in bounds}


def _row(name: str, bounds: Bounds, wanted: int) -> ResetStream:
    from streamlease.admin.answers import ResetStream

    to = min(max(wanted, bounds.floor), bounds.next)
    note = ""
    if wanted < bounds.floor:
        note = f"not {wanted}: the oldest message left is {bounds.floor}"
    elif wanted > bounds.next:
        note = f"not {wanted}: the stream ends at {bounds.next}"
    moves = {"from": bounds.committed, "to": to}
    again, skipped = max(0, bounds.committed - to), max(0, to - bounds.committed)
    return ResetStream(stream=name, **moves, again=again, skipped=skipped, note=note)
