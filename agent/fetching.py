"""Reading what is new in the streams that a subscription holds, all of one round at once.

A round reads of each stream that has news, in one write to each server. Its batches wait to be handed out:
no more than so many of them, and of a stream that was read to its end no second one, for what comes meanwhile
makes the next batch larger. After a round that read all there was, the next one begins a millisecond later at
the earliest. So the cost of a message falls as soon as more come, or the program or Redis falls behind.

In a cluster a server that does not answer delays only its own streams: the rounds of the others go on, and
what it brings later waits beside what they brought.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from streamlease.agent import metrics
from streamlease.agent.batch import Batch
from streamlease.agent.settling import Settling
from streamlease.borrower.book import ConsumerBook, Held
from streamlease.protocol.errors import HistoryTruncated, SchemaMismatch, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.many import READ_BYTES, Outcome, read_all
from streamlease.streams.log.ranges import MissingOffsets, RangeReader
from streamlease.streams.log.tails import Watch
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

FIRST_ENTRIES = 2
"""So many entries of a stream are read first: nobody knows yet how large they are, and somebody waits."""

RETRY_SECONDS = 0.2
PACE_SECONDS = 0.001
PATIENCE_SECONDS = 0.25
"""How long a round waits for the slowest server of a cluster before it leaves that to itself."""


@lru_cache(maxsize=65_536)
def _stream(name: str) -> StreamId:
    return StreamId.parse(name)


def _meta_of(one: News) -> str:
    return stream_meta(one.stream)


class News(NamedTuple):
    """A stream in which there is something to read: ``start <= offset < end``."""

    stream: StreamId
    held: Held
    start: int
    end: int
    began: int = 0
    """When the reading began, in ns since 1970."""


class Fetching:
    """Looks for news among the streams of a book, reads them, and keeps what was read until it is handed out.

    Args:
        settling: the owner of the batches.
        arrived: called when there is something to hand out.
        tasks: of the consumer, who is told if a stream of a cluster cannot be read on.
        max_batch: most messages of a batch.
        most_waiting: at so many waiting batches nothing more is read.
        clock: seconds; that of `Held.retry_at`.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        tails: Watch,
        book: ConsumerBook,
        settling: Settling,
        shared: SharedSubscription,
        arrived: Callable[[], None],
        tasks: Supervisor,
        *,
        max_batch: int,
        most_waiting: int,
        schema: Schema | None,
        clock: Callable[[], float],
    ) -> None:
        self.ready: deque[Batch] = deque()
        """What was read and waits to be handed out, perhaps in parts; some is not the consumer's any more."""
        self._redis = redis
        self._tails = tails
        self._book = book
        self._settling = settling
        self._filter = shared.filter
        self._messages = metrics.READ.labels(str(shared))
        self._arrived = arrived
        self._max_batch = max_batch
        self._most = most_waiting
        self._schema = schema
        self._clock = clock
        self._turn = 0
        """Where among the streams the next look begins: what found no room is read first then."""
        self._not_before = 0.0
        """When the next round may begin, by the event loop's clock."""
        self._servers = PerServer(redis, tasks, _meta_of, self._read_some, PATIENCE_SECONDS)

    def take(self) -> Batch | None:
        """The next batch that may be handed out."""
        while self.ready:
            batch = self.ready.popleft()
            held = batch.held
            if self._book.holds(held) and not held.lease.asked_back and held.failing is None:
                batch, rest = batch.parted(self._max_batch)
                if rest is not None:
                    self.ready.appendleft(rest)
                return batch
        return None

    def void(self, held: Held) -> None:
        """Forget what waits of a stream behind where it is to be read again."""
        kept = [batch for batch in self.ready if batch.held is not held or batch.end <= held.position]
        self.ready.clear()
        self.ready.extend(kept)

    def pause(self, most: float) -> float:
        """How long (s), at most, there is nothing to read unless something changes."""
        now = self._clock()
        due = (held.retry_at - now for held in self._book.streams.values() if held.retry_at is not None)
        return max(0.0, min((most, *due)))

    async def round(self) -> bool:
        """Read some of each stream that has news; whether any had.

        Raises:
            HistoryTruncated, SchemaMismatch: a stream of the only server cannot be read on.
        """
        loop = asyncio.get_running_loop()
        if self._not_before > loop.time():
            await asyncio.sleep(self._not_before - loop.time())
        began = loop.time()
        found = self._look()
        try:
            await self._servers.turn(found)
        except StoreUnavailable as error:  # no node of a cluster says which server has what
            log.warning("reading: %s", error)
            await asyncio.sleep(RETRY_SECONDS)
        reading = [one for one in found if one.start < one.end]
        if reading and all(one.held.position >= one.end for one in reading):
            self._not_before = began + PACE_SECONDS
        return bool(reading)

    async def _read_some(self, found: Sequence[News]) -> None:
        """Read of streams of one server.

        Raises:
            HistoryTruncated, SchemaMismatch: a stream cannot be read on.
        """
        reading = [one for one in found if one.start < one.end]
        failed = False
        for one in found:
            if one.start > one.end:
                failed |= await self._went_back(one)
        for one, outcome in zip(reading, await self._read(reading), strict=True):
            if isinstance(outcome, DamagedEntry):
                self._found_damage(one, outcome)
            elif isinstance(outcome, MissingOffsets):
                self._missing(one, outcome)
            elif isinstance(outcome, HistoryTruncated | SchemaMismatch):
                raise outcome
            elif isinstance(outcome, StreamleaseError):
                failed = True
                self._warn(one, outcome)
            else:
                self._took(one, outcome)
        if failed:
            await asyncio.sleep(RETRY_SECONDS)

    def _look(self) -> list[News]:
        """The streams with news for which there is room; also those that end below what was read of them."""
        now, began = self._clock(), time.time_ns()
        for held in self._book.streams.values():
            if held.retry_at is not None and now >= held.retry_at:
                held.retry_at = None  # also if there is no room: `pause` must not wait for what is over
        room = self._most - len(self.ready)
        if room <= 0:
            return []
        resting = {batch.held for batch in self.ready if batch.end - batch.start < self._max_batch}
        found: list[News] = []
        held_streams = list(self._book.streams.items())
        first = self._turn % max(1, len(held_streams))
        for place in range(first, first + len(held_streams)):
            name, held = held_streams[place % len(held_streams)]
            if not held.is_read or held in resting:
                continue
            stream = _stream(name)
            next = self._tails.next_of(stream)
            if next is None or held.position == next:
                continue
            if len(found) == room:
                self._turn = place
                break
            found.append(News(stream, held, held.position, next, began))
        return found

    async def _read(self, reading: Sequence[News]) -> list[Outcome]:
        readers = [
            RangeReader(
                one.stream,
                one.start,
                one.held.read_up_to(one.end),
                enough=self._max_batch,
                max_bytes=READ_BYTES,
                schema=self._schema,
                count=one.held.entries or FIRST_ENTRIES,
            )
            for one in reading
        ]
        outcomes = await read_all(self._redis, readers)
        for one, reader in zip(reading, readers, strict=True):
            one.held.entries = reader.entries_for(self._max_batch)
        return outcomes

    def _missing(self, one: News, hole: MissingOffsets) -> None:
        """Redis has lost messages: what stands before them is read first, and then what comes behind them."""
        held, start, end = one.held, int(hole.asked), hole.oldest  # type: ignore[arg-type]
        if start not in held.holes:
            held.holes[start] = end
            log.warning(
                "%s; the group passes over them and counts them as truncated", hole,
                extra={"stream": str(one.stream), "term": self._settling.term},
            )  # fmt: skip
        if start == one.start and self._book.holds(held) and held.read(start, end):
            self._skip(held, start, end)

    def _found_damage(self, one: News, damaged: DamagedEntry) -> None:
        if self._book.holds(one.held) and one.held.position == damaged.start:
            self._settling.found_damage(one.held, damaged)

    def _took(self, one: News, batches: list[pa.RecordBatch]) -> None:
        """Keep what was read of a stream, unless it was lost or goes on elsewhere meanwhile."""
        held, start = one.held, one.start
        for data in batches:
            end = start + data.num_rows
            if not self._book.holds(held) or not held.read(start, end):
                return
            self._messages.inc(data.num_rows)
            chosen = filter_batch(data, self._filter)
            if chosen.num_rows:
                batch = Batch(self._settling, held, one.stream, start, end, chosen)
                batch.began = one.began
                self.ready.append(batch)
                self._arrived()
            else:
                self._skip(held, start, end)
            start = end

    def _skip(self, held: Held, start: int, end: int) -> None:
        """Nothing there for the program: pass over it without bothering it."""
        if held.skip(start, end):
            self._settling.report(held)

    async def _went_back(self, one: News) -> bool:
        """The stream seems to end below what was read here: what is new must not get offsets read before.

        Returns:
            whether it is to be tried again.
        """
        try:
            lost = await AsyncLog(self._redis).never_again(one.stream, one.start)
        except StreamleaseError as error:
            self._warn(one, error)
            return True
        if lost is not None:
            log.warning(
                "stream %s ended at offset %d, but was read up to %d: Redis lost acknowledged messages",
                one.stream, lost, one.start, extra={"stream": str(one.stream), "term": self._settling.term},
            )  # fmt: skip
        return False

    def _warn(self, one: News, error: StreamleaseError) -> None:
        extra = {"stream": str(one.stream), "term": self._settling.term}
        log.warning("reading %s: %s", one.stream, error, extra=extra)
