"""Where in a stream a moment lies (the first message strictly after it), and how old a waiting message is.

Append times are microseconds of the server's clock and rise strictly from entry to entry, so every moment
lies between two entries (all messages of an entry have its time), and a binary search finds the place.
Before and after the search it checks what retention removed: if a message from after the moment is gone, even
since the search began, the answer is ``HistoryTruncated``. So nobody silently gets less.

The search is a generator without I/O: it yields commands and is sent their replies; all streams go in step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, Self

from redis.exceptions import ResponseError

from streamlease.protocol.errors import (
    HistoryTruncated,
    Indefinite,
    InvalidInput,
    Lost,
    SchemaMismatch,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import parse_entry_id, range_start
from streamlease.streams.archive.files.file_reading import first_behind
from streamlease.streams.archive.files.index import parse_file
from streamlease.streams.entries.append_times import appended_until
from streamlease.streams.log.archived import files_commands, parse_files
from streamlease.streams.log.keys import stream_files, stream_log, stream_merged, stream_meta
from streamlease.streams.log.state import LogState, meta_command, no_stream, parse_meta
from streamlease.streams.redis.connection import (
    AsyncRedis,
    Command,
    Redis,
    ask,
    beside,
    refusal,
    run_blocking,
)
from streamlease.streams.redis.scripts import load_script, run_many

log = logging.getLogger(__name__)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

PAGE = 500
"""Places that are asked about in one round trip."""

SEARCHES_AT_ONCE = 16
"""Streams in whose files a moment is looked for at the same time."""

_WAITING = load_script("streamlease.streams.log", "waiting")

Steps = Generator[list[Command], list[Any], dict[StreamId, int]]


def microseconds(moment: datetime) -> int:
    """`moment` as microseconds since 1970 UTC, exactly.

    Raises:
        InvalidInput: it has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidInput(f"the time {moment.isoformat()} has no zone: give one, such as datetime.now(UTC)")
    return (moment - EPOCH) // MICROSECOND


def _meta(stream: StreamId) -> Command:
    return (*meta_command(stream), "trimmed_at")


def _searched(stream: StreamId, reply: Any, moment: int) -> LogState:
    """What is known of a stream that still has everything after `moment`."""
    state, trimmed_at = parse_meta(stream, reply), reply[-1]
    if state is None:
        raise no_stream(stream)
    if trimmed_at is not None and moment < int(trimmed_at):
        raise HistoryTruncated(str(stream), EPOCH + moment * MICROSECOND, state.memory.first)
    return state


def first_after(moments: Mapping[StreamId, int], archived: set[StreamId] | None = None) -> Steps:
    """For each stream, the offset of the first message appended strictly after the moment (microseconds).

    Args:
        archived: gets the streams whose moment lies before what is in memory, if they have an archive; they
            are left out. None: that is an error.

    Raises (out of the generator):
        UnknownSpace, HistoryTruncated, SchemaMismatch.
    """
    found: dict[StreamId, int] = {}
    left = list(moments)

    def searched(stream: StreamId, reply: Any) -> LogState | None:
        try:
            return _searched(stream, reply, moments[stream])
        except HistoryTruncated:
            state = parse_meta(stream, reply)
            if archived is None or state is None or state.exists is None:
                raise
            archived.add(stream)
            return None

    while True:
        low: dict[StreamId, int] = {}
        high: dict[StreamId, int] = {}
        merged: dict[StreamId, int] = {}
        for stream, reply in zip(left, (yield [_meta(stream) for stream in left]), strict=True):
            state = searched(stream, reply)
            if state is not None:
                (low[stream], high[stream]), merged[stream] = state.memory, state.merged
        left = [stream for stream in left if stream in low]
        while middle := {
            stream: (low[stream] + high[stream]) // 2 for stream in left if low[stream] < high[stream]
        }:
            replies = yield [
                ("XRANGE", _key_of(stream, offset, merged[stream]), range_start(offset), "+", "COUNT", 1)
                for stream, offset in middle.items()
            ]
            for (stream, offset), entries in zip(middle.items(), replies, strict=True):
                if not entries:  # trimmed meanwhile, or lost: what is looked for lies below, or nowhere
                    high[stream] = offset
                    continue
                id, fields = entries[0]
                held = parse_entry_id(id)
                until = held.start + _appended_until(stream, id, fields, moments[stream])
                if until == held.start:
                    high[stream] = min(offset, held.start)
                elif until == held.end:
                    low[stream] = held.end
                else:  # the moment lies in a merged entry
                    low[stream] = high[stream] = until
        again: list[StreamId] = []
        for stream, reply in zip(left, (yield [_meta(stream) for stream in left]), strict=True):
            state = searched(stream, reply)
            if state is None:
                continue
            if state.merged != merged[stream]:
                again.append(stream)  # entries were not where they were looked for
            found[stream] = max(low[stream], state.memory.first)
        if not again:
            return found
        left = again


def _key_of(stream: StreamId, offset: int, merged: int) -> str:
    """The key with the entry that holds `offset`, if the log begins at `merged`."""
    return stream_merged(stream) if offset < merged else stream_log(stream)


def _appended_until(stream: StreamId, id: bytes, fields: list[bytes], moment: int) -> int:
    """How many messages of an entry were appended up to `moment`; the entry's time decides, or theirs."""
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    with suppress(ValueError):
        if _time_of(named.get(b"a", b"")) is not None:
            return appended_until(named, len(parse_entry_id(id)), moment)
    raise SchemaMismatch(
        f"the entry {id.decode('ascii', 'backslashreplace')} of stream {stream} has no append time: "
        f"read it with the version that wrote it"
    )


def _time_of(value: bytes) -> int | None:
    """The append time in a field of an entry; None if it is none."""
    return int(value) if value.isdigit() and len(value) < 20 else None


async def offsets_after(redis: Redis, moments: Mapping[StreamId, int]) -> dict[StreamId, int]:
    """See :func:`first_after`; also in the archives.

    Raises:
        UnknownSpace, HistoryTruncated, SchemaMismatch, StoreUnavailable, StoreRefused, Lost,
        ArchiveUnavailable.
    """
    archived: set[StreamId] = set()
    steps = first_after(moments, archived)
    commands = next(steps)
    while True:
        try:
            commands = steps.send(await ask(redis, commands) if commands else [])
        except StopIteration as found:
            offsets: dict[StreamId, int] = found.value
            break
    return offsets | await _all_after_in_files(redis, {one: moments[one] for one in sorted(archived)})


async def _all_after_in_files(redis: Redis, moments: Mapping[StreamId, int]) -> dict[StreamId, int]:
    """`_after_in_files` of many streams, some at once: in a bucket one search takes several requests."""
    if isinstance(redis, AsyncRedis):
        limit = asyncio.Semaphore(SEARCHES_AT_ONCE)

        async def one(stream: StreamId) -> int:
            async with limit:
                return await _after_in_files(redis, stream, moments[stream])

        return dict(zip(moments, await asyncio.gather(*map(one, moments)), strict=True))
    if not moments:
        return {}
    with ThreadPoolExecutor(min(len(moments), SEARCHES_AT_ONCE)) as threads:
        searches = [
            threads.submit(run_blocking, _after_in_files(redis, stream, moment))
            for stream, moment in moments.items()
        ]
        return {stream: search.result() for stream, search in zip(moments, searches, strict=True)}


async def _after_in_files(redis: Redis, stream: StreamId, moment: int) -> int:
    """The offset of the first message that was appended after the moment, in the files of the archive."""
    position = 0
    lost: Lost | None = None
    while True:
        files = parse_files(stream, await ask(redis, files_commands(stream, position, PAGE)))
        if files.exists is None or moment < files.retired_at:
            oldest = position if files.exists is None else files.exists
            raise HistoryTruncated(str(stream), EPOCH + moment * MICROSECOND, oldest)
        if not files.some:
            return position
        if lost is not None and files.names(lost):
            raise lost
        wanted = next((file for file in files.some if file.until > moment), None)
        if wanted is None:
            position = files.some[-1].next
            continue
        if wanted.since > moment:
            return wanted.first
        try:
            return await beside(redis, partial(first_behind, wanted, str(stream), moment))
        except Lost as error:
            lost = error  # unless another file has what it held


class BeyondTheEnd(InvalidInput):
    """A stream never had an offset that somebody knows of it, or Redis lost it."""

    def __init__(self, stream: str, offset: int, next: int) -> None:
        self.stream, self.offset, self.next = stream, offset, next
        super().__init__(
            f"stream {stream} never had offset {offset}, its next one is {next}: "
            f"the offset is of another stream, or Redis lost writes; start from an offset that is there"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, int, int]]:
        return type(self), (self.stream, self.offset, self.next)


def after_offset(stream: StreamId, offset: int, state: LogState) -> int:
    """The offset right after `offset`, of a stream in that state. -1: from the beginning.

    Raises:
        HistoryTruncated: retention removed messages from after `offset`.
        BeyondTheEnd: the stream never had that offset.
    """
    if not -1 <= offset < state.next:
        raise BeyondTheEnd(str(stream), offset, state.next)
    state.check_exists(stream, offset + 1)
    return offset + 1


async def server_time(redis: AsyncRedis) -> int:
    """Microseconds since 1970 by the clock of Redis, which also stamps every append.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    ((seconds, microseconds),) = await ask(redis, [("TIME",)])
    return int(seconds) * 1_000_000 + int(microseconds)


async def append_times(redis: AsyncRedis, offsets: Mapping[StreamId, int]) -> dict[StreamId, int]:
    """When the message at each offset, or the first one left after it, was appended; in microseconds.

    Of a message that is in the archive alone, that is the time of the first one of its file: it was appended
    then, or later. Streams in which there is none, or an entry of an unknown form, are left out.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    found: dict[StreamId, int] = {}
    elsewhere: list[tuple[StreamId, int]] = []
    for (stream, offset), one in (await waiting(redis, offsets.items())).items():
        if one.since is not None:
            found[stream] = one.since
        elif (first := max(offset, one.floor)) < one.next:
            elsewhere.append((stream, first))
    for begin in range(0, len(elsewhere), PAGE):
        page = elsewhere[begin : begin + PAGE]
        asked = [files_commands(stream, first, 1) for stream, first in page]
        replies = await ask(redis, [command for both in asked for command in both])
        for (stream, _), both in zip(page, zip(replies[::2], replies[1::2], strict=True), strict=True):
            files = parse_files(stream, [*both])
            if files.some:
                found[stream] = files.some[0].since
    return found


class WaitingMessage(NamedTuple):
    """Where a stream ends, and since when the message at an offset waits there."""

    next: int
    floor: int
    """The lowest offset that exists."""
    since: int | None
    """Append time in microseconds; None if there is no message at the offset, or its time is not known, as
    that of most messages that are not in memory."""
    by: int | None
    """When it was there at the latest: `since`, or, of a message that is in a file of the archive only, when
    the last message of that file was appended. None if that is not known either."""


async def waiting(
    redis: AsyncRedis, places: Iterable[tuple[StreamId, int]]
) -> dict[tuple[StreamId, int], WaitingMessage]:
    """Since when messages wait at any number of offsets of each stream, with one question for each place.

    Streams that do not exist, or are damaged, are left out.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    found: dict[tuple[StreamId, int], WaitingMessage] = {}
    wanted = list(dict.fromkeys(places))
    for begin in range(0, len(wanted), PAGE):
        page = wanted[begin : begin + PAGE]
        calls = [
            _WAITING.call(
                [stream_meta(stream), stream_log(stream), stream_merged(stream), stream_files(stream)],
                [offset, range_start(offset)],
            )
            for stream, offset in page
        ]
        try:
            replies = await run_many(redis, calls)
        except Indefinite as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from None
        for place, reply in zip(page, replies, strict=True):
            if isinstance(reply, ResponseError):
                if "WRONGTYPE" not in str(reply) and "user_script" not in str(reply):
                    raise refusal(reply)
                log.warning("stream %s is damaged: %s", place[0], reply, extra={"stream": str(place[0])})
            elif reply is not None:
                next, floor, since, line = reply
                if not (next.isdigit() and floor.isdigit()):
                    log.warning("stream %s is damaged: %r", place[0], reply, extra={"stream": str(place[0])})
                    continue
                at = _time_of(since)
                within = (at, at) if not line else _times_in(line, max(place[1], int(floor)))
                found[place] = WaitingMessage(int(next), int(floor), *within)
    return found


def _times_in(line: bytes, offset: int) -> tuple[int | None, int | None]:
    """When the message at an offset was appended, if what stands of its file tells, and at the latest."""
    try:
        file = parse_file(line)
    except StreamleaseError as error:
        log.warning("%s", error)
        return None, None
    return (file.since, file.since) if file.first == offset else (None, file.until)
