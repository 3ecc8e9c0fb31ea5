"""Compaction: many small entries of a stream become few large ones, with the same offsets.

A Redis stream takes entries at its end only, so what was merged stands in a second one, below the log::

    merged    |-------------------|
    log                           |-----------------|
              ^                   ^                 ^
              in memory        ``merged``         next

* A *run* is the beginning of the log: small neighbours that are worth a large entry (``merging``), or
  one entry that is large already, or damaged, and is moved as it is. So everything below ``merged`` stands in
  the one stream, everything else in the other, and each entry is moved once.
* Whoever reads a run leaves a *mark* in the meta behind each page (``lua/read_run.lua``). As long as the mark
  is there, the run is what was read, even on a replica that took the place of its master: what that one did
  not get is the end of what was written, and the mark was written after the run.
* One script (``lua/merge.lua``) writes the entry, removes the run, and moves the border, if the mark is there
  and the log still begins with the run. So whoever else merges or trims meanwhile, whatever a failover lost,
  and however often it is repeated: no message is lost, doubled or changed. No claim and no term protects
  that; two that compact one stream only do useless work.
* Readers look below the border in the one stream and above it in the other. One that asked while it moved
  finds a hole, and asks again (``ranges``).
* Entries that are younger than the space wants stay where they are: who reads at the end of a stream is never
  disturbed.

A stream whose entries are large on average is left alone: its log is not even read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId, random_token
from streamlease.streams.entries.decoding import Entry
from streamlease.streams.entries.layout import Fields
from streamlease.streams.entries.schemas import Versions, load_versions
from streamlease.streams.log.keys import stream_log, stream_merged, stream_meta
from streamlease.streams.log.merging import LogRun, NotMerged, RunSoFar, appended_at, merged
from streamlease.streams.log.state import damaged_stream, meta_command, parse_meta
from streamlease.streams.redis.connection import Argument, AsyncRedis, Command, Redis, ask
from streamlease.streams.redis.scripts import load_script

log = logging.getLogger(__name__)

SMALL_ROWS = 512
"""A log whose entries have as many messages on average is read fast enough."""

LEAST_ENTRIES = 64
"""A shorter log is read at once anyway."""

PAGE_BYTES = 1024 * 1024
"""How many bytes of entries are asked for at once, judged by those before."""

FIRST_COUNT = 8
MOST_COUNT = 256

_READ = load_script("streamlease.streams.log", "read_run")
_MERGE = load_script("streamlease.streams.log", "merge")


class Compacted(NamedTuple):
    """What one step came to."""

    stream: StreamId
    entries: int
    """How many one entry replaced."""
    messages: int


class FirstRun(NamedTuple):
    """How a log begins."""

    run: LogRun | None
    """What may be replaced; None: nothing yet."""
    end: int
    """Where the log must end, about, before there is a run; 0 if nobody knows."""
    mark: str
    versions: Versions | None
    """Those of the stream's schema."""
    unreadable: bytes = b""
    """The id of the log's first entry, if it does not say which messages that holds: no run comes then."""


class Stopped(NamedTuple):
    """Where the compaction of a stream stands still, although there is something to merge."""

    stream: StreamId
    offset: int
    """Everything below it is merged."""
    why: str
    unreadable: str = ""
    """See `FirstRun`."""


async def small_entries(redis: AsyncRedis, streams: Sequence[StreamId]) -> dict[StreamId, int]:
    """Those of `streams` whose logs have so many small entries that reading them shows it; their ends.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    commands: list[Command] = []
    for stream in streams:
        commands += (meta_command(stream), ("XLEN", stream_log(stream)))
    replies = await ask(redis, commands) if commands else []
    found: dict[StreamId, int] = {}
    for stream, meta, entries in zip(streams, replies[::2], replies[1::2], strict=True):
        state = parse_meta(stream, meta)
        if state is not None and entries >= LEAST_ENTRIES:
            messages = state.next - max(state.merged, state.memory.first)
            if messages < SMALL_ROWS * entries:
                found[stream] = state.next
    return found


async def first_appends(redis: AsyncRedis, streams: Sequence[StreamId]) -> dict[StreamId, int]:
    """When the first entry of each log was appended, in microseconds; 0 if it does not say so.

    An entry at which compaction stopped stays the first one, and gets older than any other.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    replies = await ask(redis, [("XRANGE", stream_log(stream), "-", "+", "COUNT", 1) for stream in streams])
    return {
        stream: appended_at(entries[0][1]) or 0
        for stream, entries in zip(streams, replies, strict=True)
        if entries
    }


async def compact(redis: AsyncRedis, stream: StreamId, before: int) -> Compacted | FirstRun:
    """Put one entry in the place of the first ones of a log.

    Args:
        before: entries that were appended at this moment (microseconds) or later stay where they are.

    Returns:
        what was done; or, if nothing could be, what was found.

    Raises:
        NotMerged: the entries cannot be said in one; a defect.
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    found = await first_run(redis, stream, before)
    if found.run is None:
        return found
    run, fields = await asyncio.to_thread(merged, stream, found.run, found.versions)
    return await replace(redis, stream, run, found.mark, fields) or found._replace(run=None, end=0)


async def first_run(redis: Redis, stream: StreamId, before: int) -> FirstRun:
    """How a log begins; see `compact`.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    keys, token, page, mark = [stream_meta(stream), stream_log(stream)], random_token(), 0, ""

    async def marked(begin: str, count: int) -> Page | None:
        nonlocal page, mark
        page += 1
        before_these, mark = mark, f"{token} {page}"
        reply = await _READ.run(redis, keys, [before_these, mark, begin, count])
        return Page(*reply[1:]) if reply[0] == b"read" else None

    found = await _read_run(stream, before, marked)
    return found._replace(mark=mark)


async def stopped(redis: AsyncRedis, stream: StreamId, before: int) -> Stopped | None:
    """Whether the compaction of a stream can go on, without doing it; nothing is written.

    Args:
        before: see `compact`.

    Returns:
        why it cannot; None: it can, or has nothing to do.

    Raises:
        StoreUnavailable, Indefinite.
    """

    async def plain(begin: str, count: int) -> Page | None:
        entries, schemas = await ask(
            redis,
            [
                ("XRANGE", stream_log(stream), begin, "+", "COUNT", count),
                ("HGET", stream_meta(stream), "schemas"),
            ],
        )
        return Page(schemas, entries)

    at = 0
    try:
        (meta,) = await ask(redis, [meta_command(stream)])
        state = parse_meta(stream, meta)
        if state is None:
            return None
        at = max(state.merged, state.memory.first)
        found = await _read_run(stream, before, plain)
        if found.run is not None:
            await asyncio.to_thread(merged, stream, found.run, found.versions)
        elif found.unreadable:
            id = found.unreadable.decode("ascii", "backslashreplace")
            return Stopped(stream, at, f"the id {id} of the entry there says no offsets", id)
    except (StoreUnavailable, Indefinite):
        raise
    except (NotMerged, StreamleaseError) as error:
        return Stopped(stream, at, str(error))
    return None


class Page(NamedTuple):
    """Some of the first entries of a log."""

    schemas: bytes | None
    """The versions of the stream's schema, as stored."""
    entries: Sequence[Entry]


async def _read_run(
    stream: StreamId, before: int, read: Callable[[str, int], Awaitable[Page | None]]
) -> FirstRun:
    """How a log begins, which is read page by page: from an id on, so many entries."""
    so_far, begin, count = RunSoFar(before), "-", FIRST_COUNT
    versions: Versions | None = None
    while not so_far.over:
        page = await read(begin, count)
        if page is None:
            return FirstRun(None, 0, "", None)
        schemas, entries = page
        try:
            versions = load_versions(schemas) if schemas else None
        except (ValueError, TypeError, RecursionError):
            raise damaged_stream(stream) from None
        for id, fields in entries:
            if not so_far.over:
                so_far.add(id, fields)
        if len(entries) < count:
            break
        size = sum(len(part) for _, fields in entries for part in fields)
        begin = "(" + entries[-1][0].decode("ascii")
        count = max(1, min(MOST_COUNT, PAGE_BYTES * len(entries) // max(1, size)))
    unreadable = so_far.unreadable if so_far.run is None else b""
    return FirstRun(so_far.run, so_far.wanted_end, "", versions, unreadable)


async def replace(redis: Redis, stream: StreamId, run: LogRun, mark: str, fields: Fields) -> Compacted | None:
    """Put an entry with these fields in the place of a run; None if the run may not be there any more.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    args: list[Argument] = [run.entries[0][0], run.entries[-1][0]]
    if len(run.entries) > 1:
        args += (mark, sum(len(part) for _, flat in run.entries for part in flat), *fields)
    keys = [stream_meta(stream), stream_log(stream), stream_merged(stream)]
    reply = await _MERGE.run(redis, keys, args)
    match reply[0]:
        case b"merged":
            return Compacted(stream, len(run.entries), len(run.offsets))
        case b"moved" | b"unknown":
            return None
        case _:
            raise StoreRefused(f"the merge script answered {reply!r}: client and script do not fit")
