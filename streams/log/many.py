"""Reading from many streams at once: each step of all of them goes out in one write to each server.

What is not in the memory of Redis is read from older segments, in threads, for they are files.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias, TypeGuard

import pyarrow as pa

from streamlease.protocol.errors import (
    HistoryTruncated,
    Indefinite,
    Lost,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.archived import files_commands, parse_files
from streamlease.streams.log.joining import gather
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.ranges import RangeReader, Taken
from streamlease.streams.log.segments import History, Segment
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import (
    AsyncRedis,
    Command,
    Redis,
    ask,
    beside,
    exchange_behind,
    good,
    silent,
)
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.rows.few_messages import FewMessages, StreamRows
from streamlease.streams.rows.shared_rows import Rows
from streamlease.streams.rows.together import StreamStep, decode_together
from streamlease.streams.tasks import Supervisor

READ_BYTES = 32 * 1024 * 1024
"""Most bytes, as expanded, that are read of a stream at once, but for one larger entry."""

BELOW_BYTES = 4 * 1024 * 1024
"""After so much that was read of what is not in memory, who may take less than all is handed it."""

SOME_BYTES = 256 * 1024
"""After so much that was read without Arrow, those who take it may do something else."""

RETRY_SECONDS = 0.2
"""How long a server that could not be read is left alone."""

PATIENCE_SECONDS = 0.25
"""How long a turn waits for the slowest server of a cluster before it leaves that to itself."""

_Part: TypeAlias = pa.RecordBatch | FewMessages
Outcome = list[pa.RecordBatch] | StreamleaseError
Found = list[StreamRows] | StreamleaseError


async def read_all(
    redis: Redis, readers: Sequence[RangeReader], older: Sequence[Segment] = ()
) -> list[Outcome]:
    """What each of `readers` finds, in order; see `read_each`."""
    found: dict[int, Outcome] = {}
    async for some in read_each(redis, readers, older):
        found |= {place: _plain(outcome) for place, outcome in some}
    return [found[place] for place in range(len(readers))]


def _plain(found: Found) -> Outcome:
    return found if isinstance(found, StreamleaseError) else [rows.batch for rows in found]


async def read_each(
    redis: Redis,
    readers: Sequence[RangeReader],
    older: Sequence[Segment] = (),
    *,
    worth: tuple[int, int] | None = None,
    few: bool = False,
    lines: DirectLines | None = None,
) -> AsyncGenerator[list[tuple[int, Found]]]:
    """What each of `readers` finds, with its place, as soon as it is there: batches, or why there are none.

    The batches are those of ``AsyncLog.read``. One stream's error is not another's, nor one server's another
    server's. Streams with a few messages come some at a time, and what those have that need one step, and
    have little, is decoded together.

    Args:
        older: what holds messages that are not in memory any more, newest first; the archives of their spaces
            if nothing is given.
        worth: so many messages, or bytes, are worth an end of the reading: it goes no further step. None: the
            readers say when they are done.
        few: a few messages are read without Arrow where they can be.
        lines: on which they are read if one is free; all streams are of one server then.
    """
    history, brought = History(older) if older else None, _Brought(readers, worth)
    going = [place for place, reader in enumerate(readers) if not reader.done]
    yield [(place, []) for place, reader in enumerate(readers) if reader.done]
    while going:
        commands = {place: readers[place].commands for place in going}
        try:
            asked = [one for some in commands.values() for one in some]
            replies = await _asked(redis, lines, readers[going[0]], asked)
        except (StoreUnavailable, Indefinite) as error:
            yield [(place, silent(redis, error)) for place in going]
            return
        steps: dict[int, Taken] = {}
        errors: dict[int, StreamleaseError] = {}
        for some in _take(redis, brought, commands, replies, steps, errors, few=few):
            yield some
        below: dict[int, int] = {}
        for place, why in errors.items():
            if _is_below_memory(why) and (history is not None or readers[place].is_archived):
                below[place] = why.oldest
            else:
                yield [(place, brought.cut_short(place, why))]
        shared = _decoded_together(readers, brought.parts, steps)
        if shared:
            yield [(place, [rows]) for place, rows in shared.items()]
        for place, step in steps.items():
            if place in shared:
                continue
            try:
                decoded = readers[place].finish(step)
            except StreamleaseError as error:
                yield [(place, brought.cut_short(place, error))]
                continue
            if (whole := brought.keep(place, decoded)) is not None:
                yield [(place, whole)]
        if below:
            for place, outcome in await _read_all_below(redis, history, readers, below):
                if isinstance(outcome, StreamleaseError):
                    yield [(place, brought.cut_short(place, outcome))]
                elif (whole := brought.keep(place, outcome, until_done=True)) is not None:
                    yield [(place, whole)]
        going = brought.taken_left()


class _Brought:
    """What came of each reader so far, and which of them go on."""

    def __init__(self, readers: Sequence[RangeReader], worth: tuple[int, int] | None) -> None:
        self.readers = readers
        self.parts: list[list[_Part]] = [[] for _ in readers]
        """Of those that go on."""
        self._worth = worth
        self._left: list[int] = []

    def keep(
        self, place: int, parts: Sequence[_Part], *, until_done: bool = False
    ) -> list[StreamRows] | None:
        """Keep `parts` behind the others of a reader; all that it brought, if it goes no further step.

        Args:
            until_done: it goes on, whatever that is worth.
        """
        reader = self.readers[place]
        self.parts[place] += parts
        enough = self._worth is not None and not until_done and reader.has_brought(*self._worth)
        if reader.done or enough:
            whole, self.parts[place] = self.parts[place], []
            return _joined(whole, reader.bytes)
        self._left.append(place)
        return None

    def cut_short(self, place: int, error: StreamleaseError) -> Found:
        """What came of a reader that cannot go on; the next one meets `error`. Nothing of a whole range."""
        parts, self.parts[place] = self.parts[place], []
        reader = self.readers[place]
        return _joined(parts, reader.bytes) if parts and not reader.whole else error

    def taken_left(self) -> list[int]:
        """The readers that go on, in the order in which they brought something; once."""
        left, self._left = self._left, []
        return left


def _take(
    redis: Redis,
    brought: _Brought,
    commands: Mapping[int, list[Command]],
    replies: list[Any],
    steps: dict[int, Taken],
    errors: dict[int, StreamleaseError],
    *,
    few: bool,
) -> Iterator[list[tuple[int, Found]]]:
    """Let each reader take the replies to its commands; what is read without Arrow, some streams at a time.

    One stream after the other is read to its end, and its replies are forgotten then, for Python's collector.

    Args:
        replies: is emptied.
        steps: gets what is still to be decoded, by the places of the readers.
        errors: gets why some cannot take their replies.
        few: whether anything is read without Arrow.
    """
    some: list[tuple[int, Found]] = []
    size = 0
    replies.reverse()
    for place, asked in commands.items():
        reader, mine = brought.readers[place], [replies.pop() for _ in asked]
        whole: Sequence[StreamRows] | None = reader.take_few(mine) if few else None
        if whole is None:
            try:
                step = reader.take(good(redis, mine), few=few)
            except StreamleaseError as error:
                errors[place] = error
                continue
            messages = reader.read_few(step) if few else None
            if messages is None:
                steps[place] = step
                continue
            whole = brought.keep(place, [messages])
        if whole is not None:
            some.append((place, [*whole]))
            size += reader.bytes
            if size >= SOME_BYTES:
                yield some
                some, size = [], 0
    if some:
        yield some


async def _asked(
    redis: Redis, lines: DirectLines | None, first: RangeReader, commands: Sequence[Command]
) -> list[Any]:
    """The replies, as of ``exchange_behind``; on a line if it can be, which takes a third of the time."""
    if lines is not None:
        replies = await lines.read(stream_meta(first.stream), commands)
        if replies is not None:
            return replies
    return [answer.reply for answer in await exchange_behind(redis, (), commands, ())]


def _decoded_together(
    readers: Sequence[RangeReader], batches: Sequence[list[_Part]], steps: Mapping[int, Taken]
) -> dict[int, Rows]:
    """The messages of streams that need no other step than this one, and have little, by their places."""
    places = [place for place in steps if readers[place].done and not batches[place]]
    places = [place for place in places if readers[place].wants == readers[places[0]].wants]
    if len(places) < 2:
        return {}
    taken = [(readers[place].stream, steps[place]) for place in places]
    parts = [StreamStep(stream, *step[:4], size=sum(step.sizes)) for stream, step in taken]
    found = decode_together(parts, *readers[places[0]].wants)
    return {places[number]: rows for number, rows in found.items()}


def _joined(parts: Sequence[_Part], size: int) -> list[StreamRows]:
    """What was found of a stream, of `size` bytes."""
    joined: list[StreamRows] = []
    for few, some in groupby(parts, lambda part: isinstance(part, FewMessages)):
        if few:
            joined.append(FewMessages.joined([part for part in some if isinstance(part, FewMessages)]))
        else:
            batches = [part for part in some if isinstance(part, pa.RecordBatch)]
            whole = size if len(batches) == len(parts) else None
            joined += map(Rows, gather(batches, last=True, all_bytes=whole)[0])
    return joined


def _is_below_memory(error: StreamleaseError) -> TypeGuard[HistoryTruncated]:
    return isinstance(error, HistoryTruncated) and not isinstance(error, MissingOffsets)


async def _read_all_below(
    redis: Redis, history: History | None, readers: Sequence[RangeReader], below: Mapping[int, int]
) -> list[tuple[int, Outcome]]:
    """`_read_below` of many readers, each in a thread."""

    async def one(reader: RangeReader, memory: int) -> Outcome:
        below = partial(_read_below, history, reader, memory) if history is not None else None
        return await (_read_archived(redis, reader, memory) if below is None else beside(redis, below))

    if isinstance(redis, AsyncRedis):
        reading = [one(readers[place], memory) for place, memory in below.items()]
        return list(zip(below, await asyncio.gather(*reading), strict=True))
    return [(place, await one(readers[place], memory)) for place, memory in below.items()]


async def _read_archived(redis: Redis, reader: RangeReader, memory: int) -> Outcome:
    """What `reader` wants of what the files of the archive have; some row groups of it."""
    lost: Lost | None = None
    while True:
        try:
            replies = await ask(redis, files_commands(reader.stream, reader.position))
            files = parse_files(reader.stream, replies)
        except StreamleaseError as error:
            return error
        if lost is not None and files.names(lost):
            return lost
        part = await beside(redis, partial(_read_below, files, reader, memory))
        if isinstance(part, Lost):
            lost = part  # unless another file has what it held
            continue
        return part


def _read_below(below: Segment, reader: RangeReader, memory: int) -> Outcome:
    """What `reader` wants of what is below the offset `memory`; it goes on behind that."""
    found: list[pa.RecordBatch] = []
    size = 0
    try:
        with closing(below.read(reader.wanted_below(memory))) as batches:
            while not reader.done and size < BELOW_BYTES and (batch := next(batches, None)) is not None:
                found.append(batch)
                size += batch.nbytes
                reader.pass_over(batch, BELOW_BYTES)
    except StreamleaseError as error:
        if not found:
            return error  # else the next step meets it again
    return found


class ServerReading:
    """Reads for somebody who takes what comes: all servers of a cluster at once, each in one exchange.

    A server that is slow holds up its own streams only. A stream is not read again before what came of it was
    taken.

    Args:
        reader: who reads, for people.
        arrived: called when something came of a server that a turn did not wait for.
    """

    def __init__(self, redis: AsyncRedis, reader: str, arrived: Callable[[], None]) -> None:
        self._redis = redis
        self._arrived = arrived
        self._came: deque[tuple[StreamId, Outcome]] = deque()
        self._under_way: set[StreamId] = set()
        self._in_turn = False
        self._error: StreamleaseError | None = None
        self._tasks = Supervisor(reader, self._failed)
        self._servers = PerServer(redis, self._tasks, _meta_of, self._read, PATIENCE_SECONDS)

    async def turn(self, readers: Sequence[RangeReader]) -> None:
        """Read; returns when all servers answered, or one takes longer.

        Raises:
            StoreUnavailable: no node of a cluster says which server has what.
        """
        wanted = [one for one in readers if one.stream not in self._under_way]
        streams = {one.stream for one in wanted}
        self._under_way |= streams
        self._in_turn = True
        try:
            left = await self._servers.turn(wanted)
        except StoreUnavailable:
            self._under_way -= streams
            raise
        finally:
            self._in_turn = False
        self._under_way.difference_update(one.stream for one in left)

    def take(self) -> tuple[StreamId, Outcome] | None:
        """What came of one stream; None if nothing else is there.

        Raises:
            TaskFailed: reading ended by a defect.
        """
        if self._error is not None:
            raise self._error
        if not self._came:
            return None
        stream, outcome = self._came.popleft()
        self._under_way.discard(stream)
        return stream, outcome

    async def close(self) -> None:
        """Stop reading."""
        await self._tasks.close()

    async def _read(self, readers: Sequence[RangeReader]) -> None:
        outcomes = await read_all(self._redis, readers)
        self._came += [(one.stream, outcome) for one, outcome in zip(readers, outcomes, strict=True)]
        if not self._in_turn:
            self._arrived()
        if any(isinstance(outcome, StoreUnavailable | StoreRefused) for outcome in outcomes):
            await asyncio.sleep(RETRY_SECONDS)

    def _failed(self, task: str, error: StreamleaseError) -> None:
        self._error = error
        self._arrived()


def _meta_of(reader: RangeReader) -> str:
    return stream_meta(reader.stream)
