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
from collections.abc import Sequence
from typing import NamedTuple

from streamlease.protocol.errors import StoreRefused
from streamlease.protocol.ids import StreamId, random_token
from streamlease.streams.entries.layout import Fields
from streamlease.streams.entries.schemas import Versions, load_versions
from streamlease.streams.log.keys import stream_log, stream_merged, stream_meta
from streamlease.streams.log.merging import LogRun, RunSoFar, merged
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
    so_far, keys = RunSoFar(before), [stream_meta(stream), stream_log(stream)]
    versions: Versions | None = None
    token, page, begin, count, mark = random_token(), 0, "-", FIRST_COUNT, ""
    while not so_far.over:
        page += 1
        before_these, mark = mark, f"{token} {page}"
        reply = await _READ.run(redis, keys, [before_these, mark, begin, count])
        if reply[0] != b"read":
            return FirstRun(None, 0, mark, None)
        _, schemas, entries = reply
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
    return FirstRun(so_far.run, so_far.wanted_end, mark, versions)


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
