"""Reading what is new in the streams that a subscription holds, many in one exchange with each server.

A stream is looked at when there may be news of it: its end moved, it was granted, a wait of it is over, what
was read of it was handed out. So a round costs nothing for streams in which nothing happens.

What was read waits to be handed out, up to a limit; of a stream that was read to its end there is no second
batch, for what comes meanwhile makes the next one larger. A read takes whole entries, and each entry once:
the first step of a read, and more if they are small. After a round that read all there was, the next one
begins a millisecond later at the earliest, and some milliseconds later unless most of what it read was handed
out before: a stream at a time would be read otherwise, as each is handed out. So the cost of a message falls
as soon as more come, or the program or Redis falls behind.

How many streams a round reads follows from how much the streams before had: 16 that have a backlog, and 256
that have a few messages each. They are bounded because what they have is known only when it is there: if all
have much more than those before, the reader holds one step of each (``streams.log.ranges``) for that once.

In a cluster a server that does not answer delays only its own streams: the rounds of the others go on, and
what it brings later waits beside what they brought.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from streamlease.agent.batch import Batch, ReadAhead
from streamlease.agent.deadlines import Delays
from streamlease.agent.dividing import Divided, Dividing, News, UsualEntries, stream_of
from streamlease.agent.membership import metrics
from streamlease.agent.settling import Settling
from streamlease.borrower.book import ConsumerBook, Held
from streamlease.protocol.errors import (
    ArchiveUnavailable,
    HistoryTruncated,
    Lost,
    SchemaMismatch,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.seldom import Seldom
from streamlease.streams.entries.columnar import ENOUGH_BYTES, ENOUGH_ROWS
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.entries.message_rows import ALL_COLUMNS
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.joining import BATCH_ROWS
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.many import READ_BYTES, RETRY_SECONDS, Found, read_each
from streamlease.streams.log.ranges import CHUNK_BYTES, RangeReader
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.rows.few_messages import StreamRows
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

PACE_SECONDS = 0.001
REST_SECONDS = 0.004

PATIENCE_SECONDS = 0.25
"""How long a round waits for the slowest server of a cluster before it leaves that to itself."""

FEWEST_STREAMS = 16
MOST_STREAMS = 256
"""So many streams a round reads, if there are as many with news; it begins with the fewest."""

ROUND_BYTES = 4 * 1024 * 1024
"""What the streams of a round are to bring together, as expanded, if they are more than the fewest."""

MOST_BATCHES = 1024
"""Most batches that wait, however small they are."""

TURN_BYTES = 1024 * 1024
"""After so much was decoded, others have a turn on the loop."""


UNREADABLE = (HistoryTruncated, SchemaMismatch, Lost)
"""What stands next in a stream cannot be had, now or later."""


def _rows_of(found: Found) -> int:
    return 0 if isinstance(found, StreamleaseError) else sum(map(len, found))


class Fetching:
    """Looks for news among the streams of a book, reads them, and keeps what was read until it is handed out.

    Args:
        dividing: up to where streams are read, and what of it is handed out together.
        settling: the owner of the batches.
        subscription: for the metrics.
        arrived: called when there is something to hand out.
        tasks: of the consumer, who is told if a stream of a cluster cannot be read on.
        max_batch: most messages of a batch; None: as many as came together, up to ``CHUNK_BYTES``.
        most_waiting: how many such batches may wait, if they are full.
        lines: on which streams are read, if one is free.
        learn: told where a stream ends that was read though nobody knew; None: it could not be read.
        clock: seconds; that of `Held.retry_at`.
        rest: for how long (s) at most a round waits for what was read before to be handed out.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        dividing: Dividing,
        book: ConsumerBook,
        settling: Settling,
        subscription: str,
        arrived: Callable[[], None],
        tasks: Supervisor,
        *,
        max_batch: int | None,
        most_waiting: int,
        schema: Schema | None,
        clock: Callable[[], float],
        lines: DirectLines | None = None,
        learn: Callable[[StreamId, int | None], None] = lambda stream, next: None,
        rest: float = REST_SECONDS,
    ) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._lines = lines
        self._learn = learn
        self._longest_rest = rest
        self._dividing = dividing
        self._book = book
        self._settling = settling
        self._messages = metrics.READ.labels(subscription)
        self._arrived = arrived
        self._max_batch = max_batch or BATCH_ROWS
        self._max_bytes = CHUNK_BYTES if max_batch is None else READ_BYTES
        self._schema = schema
        self._loop = asyncio.get_running_loop()
        self.waiting = ReadAhead(most_waiting * self._max_batch, most_waiting * CHUNK_BYTES, MOST_BATCHES)
        self._news: OrderedDict[Held, None] = OrderedDict()
        """Streams that may have something to read, in the order in which they are looked at."""
        self._delays = Delays(clock)
        self._at_a_time = FEWEST_STREAMS
        """How many streams the next round reads."""
        self._usual = UsualEntries()
        self._not_before = 0.0
        """When the next round may begin, by the event loop's clock."""
        self._rests_until, self._enough = 0.0, 0
        """Until then none begins while more batches than that wait."""
        self._servers = PerServer(
            redis, tasks, lambda one: stream_meta(one.stream), self._read_some, PATIENCE_SECONDS
        )

    @property
    def wants_round(self) -> bool:
        """Whether there may be something to read, room for it, and use for it."""
        return bool(self._news) and self.waiting.has_room and self._rest == 0.0

    @property
    def _rest(self) -> float:
        """For how long (s) no round begins, unless batches are handed out meanwhile."""
        if self.waiting.batches <= self._enough:
            return 0.0
        return max(0.0, self._rests_until - self._loop.time())

    def look_at(self, held: Held) -> bool:
        """There may be something to read there; whether the next round may begin earlier for that."""
        first = not self._news
        self._news.setdefault(held)
        return first or self.wants_round

    def take(self, messages: int | None = None) -> Batch | None:
        """The next batch that may be handed out, of so many messages at most."""
        while (batch := self.waiting.take(messages or self._dividing.most)) is not None:
            held = batch.held
            if self._book.holds(held) and not held.lease.asked_back and held.failing is None:
                if held.position != self._dividing.next_of(batch.stream):
                    self.look_at(held)
                return batch
            self.waiting.void(held)
        return None

    def void(self, held: Held) -> None:
        """Forget what waits of a stream behind where it is to be read again; look at it."""
        self.waiting.void(held, held.position)
        self._dividing.went_to(held)
        self.look_at(held)

    def pause(self, most: float) -> float:
        """How long (s), at most, there is nothing to read unless something changes."""
        due = self._delays.pauses()
        if self._news and self.waiting.has_room and (rest := self._rest):
            due.append(rest)
        return max(0.0, min((most, *due)))

    async def round(self) -> bool:
        """Read some of each stream that has news; whether any had.

        Raises:
            HistoryTruncated, SchemaMismatch, Lost: a stream of the only server cannot be read on.
        """
        self._end_delays()
        if not self.wants_round:
            return False
        began = self._loop.time()
        if self._not_before > began:
            await asyncio.sleep(self._not_before - began)
            began = self._loop.time()
        found = self._look()
        left = bool(self._news)
        try:
            await self._servers.turn(found)
        except StoreUnavailable as error:  # no node of a cluster says which server has what
            self._seldom.warning("reading: %s", error)
            await asyncio.sleep(RETRY_SECONDS)
        for one in found:
            if one.held.position != self._dividing.next_of(one.stream):
                self.look_at(one.held)  # not all was read, or there is more already
        reading = [one for one in found if one.is_read]
        if reading and all(one.held.position >= (one.end or 0) for one in reading):
            self._not_before = began + PACE_SECONDS
            self._rests_until = began if left else began + self._longest_rest
            self._enough = len(reading) // 4
        return bool(reading)

    async def _read_some(self, found: Sequence[News]) -> None:
        """Read of streams of one server. Raises HistoryTruncated, SchemaMismatch, Lost: of one of them."""
        reading = [one for one in found if one.is_read]
        failed = False
        for one in found:
            if one.end is not None and one.start > one.end:
                failed |= await self._went_back(one)
        brought = decoded = 0
        async with aclosing(self._read(reading)) as finding:
            async for some in finding:
                self._messages.inc(sum(_rows_of(outcome) for _, outcome, _ in some))
                for one, outcome, size in some:
                    if not isinstance(outcome, StreamleaseError):
                        self._took(one, outcome, size)
                        brought += size
                        decoded += size
                        self._delays.was_read(one.held)
                    elif isinstance(outcome, DamagedEntry):
                        self._found_damage(one, outcome)
                    elif isinstance(outcome, MissingOffsets):
                        self._missing(one, outcome)
                    elif isinstance(outcome, UNREADABLE):
                        raise outcome
                    elif isinstance(outcome, ArchiveUnavailable):
                        self._delays.put_off(one.held)
                        self._warn(one, outcome)
                    else:
                        failed = True
                        self._warn(one, outcome)
                if decoded >= TURN_BYTES:
                    decoded = 0
                    await asyncio.sleep(0)
        if reading:
            fitting = ROUND_BYTES * len(reading) // max(1, brought)
            self._at_a_time = max(FEWEST_STREAMS, min(MOST_STREAMS, fitting, 4 * self._at_a_time))
        if failed:
            await asyncio.sleep(RETRY_SECONDS)

    def _look(self) -> list[News]:
        """The streams with news for which there is room; also those that end below what was read of them."""
        began = time.time_ns()
        messages, batches = self.waiting.room
        streams = float(min(self._at_a_time, batches))
        found: list[News] = []
        for _ in range(len(self._news)):
            if streams <= 0 or messages <= 0:
                break
            held, _ = self._news.popitem(last=False)
            if not self._dividing.may_begin(held):
                self._news[held] = None
                continue
            one = self._news_of(held, began)
            if one is not None:
                found.append(one)
                messages -= min(self._max_batch, one.messages)
                streams -= self._usual.asked(one) / one.entries  # these may be large: fewer streams, then
        return found

    def _end_delays(self) -> None:
        """Look at streams whose wait is over, also without room; `pause` counts on that."""
        for held in self._delays.over():
            self.look_at(held)

    def _news_of(self, held: Held, began: int) -> News | None:
        """What there is to read in a stream; nothing if it is not the time for it."""
        if not self._book.holds(held):
            return None
        if held.retry_at is not None:
            self._delays.add(held)
        if not held.is_read or self.waiting.rests(held):
            return None  # until it is granted, answered, or handed out
        stream = stream_of(held.stream)
        next = self._dividing.next_of(stream)
        if held.position == next or (next is None and not held.end_unknown):
            return None
        return News(stream, held, held.position, next, began)

    async def _read(self, reading: Sequence[News]) -> AsyncGenerator[list[tuple[News, Found, int]]]:
        """What each stream has, and its size in bytes as expanded, as they come."""
        readers = [
            RangeReader(
                one.stream, one.start, one.held.read_up_to(one.end),
                enough=self._max_batch, max_bytes=self._max_bytes, schema=self._schema, columns=ALL_COLUMNS,
                count=self._usual.asked(one),
                merged=one.held.merged,
            )
            for one in reading
        ]  # fmt: skip
        worth = (min(ENOUGH_ROWS, self._max_batch), ENOUGH_BYTES)
        async with aclosing(
            read_each(self._redis, readers, worth=worth, few=True, lines=self._lines)
        ) as finding:
            async for some in finding:
                found: list[tuple[News, Found, int]] = []
                for place, outcome in some:
                    one, reader = reading[place], readers[place]
                    held = one.held
                    held.entries, held.merged = reader.entries_for(self._max_batch), reader.in_merged
                    if one.end is None:
                        one = self._learned(one, reader, outcome)
                    found.append((one, outcome, reader.bytes))
                strange = await self._dividing.strange([one.stream for one, _, _ in found])
                yield [one for one in found if one[0].stream not in strange] if strange else found
        self._usual.saw([(one.entries, one.entries_for(self._max_batch)) for one in readers])

    def _learned(self, one: News, reader: RangeReader, outcome: Found) -> News:
        """What was read has told where the stream ends; otherwise it is asked as of any other."""
        state, one.held.end_unknown = None if isinstance(outcome, StreamleaseError) else reader.state, False
        self._learn(one.stream, None if state is None else state.next)
        return one if state is None else News(one.stream, one.held, one.start, state.next, one.began)

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
            self._keep(one, self._dividing.hole(held, one.stream, start, end))

    def _found_damage(self, one: News, damaged: DamagedEntry) -> None:
        if self._book.holds(one.held) and one.held.position == damaged.start:
            self._keep(one, self._dividing.stopped(one.held))
            self._settling.found_damage(one.held, damaged)

    def _took(self, one: News, parts: list[StreamRows], size: int) -> None:
        """Keep what was read of a stream, unless it was lost or goes on elsewhere meanwhile."""
        held, start = one.held, one.start
        whole = _rows_of(parts)
        for rows in parts:
            end = start + len(rows)
            if not self._book.holds(held) or not held.read(start, end):
                return
            part = size * len(rows) // whole
            self._keep(one, self._dividing.pieces(held, one.stream, start, rows, part))
            start = end

    def _keep(self, one: News, pieces: Iterable[Divided]) -> None:
        """Let `pieces` wait to be handed out; pass over those that are for nobody."""
        held = one.held
        for start, end, rows, size, of in pieces:
            if rows is not None:
                batch = Batch(self._settling, held, one.stream, start, end, rows)
                batch.began, batch.of = one.began, of
                self.waiting.put(batch, size, more=one.ends_behind(end))
                self._arrived()
                continue
            if held.skip(start, end):
                self._settling.report(held)
            self._dividing.handed_out(held)

    async def _went_back(self, one: News) -> bool:
        """The stream seems to end below what was read here: what is new must not get offsets read before.
        Whether it is to be tried again."""
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
        self._seldom.warning("reading %s: %s", one.stream, error, extra=extra)
