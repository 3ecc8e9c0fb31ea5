"""A shared subscription as a Python program sees it: an async iterator of batches, each to be committed.

Per stream the batches come in order. What was delivered but not committed when the program crashes is
delivered again, to whoever gets the stream; nothing is delivered again on a clean hand-over, because a
stream that is being revoked stays until its delivered batches are committed.

A message that cannot be decoded, because its entry is damaged, fails by itself, as if the program had called
``Batch.fail``: the group counts, waits and writes a dead letter as for every other poison message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamlease.agent import metrics
from streamlease.agent.batch import Batch, Failing, Held, writable
from streamlease.agent.fetching import Fetching, News
from streamlease.agent.session import Session
from streamlease.borrower.machine import (
    Failed,
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import (
    Fenced,
    HistoryTruncated,
    Indefinite,
    InvalidOption,
    SchemaMismatch,
    StreamleaseError,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import MAX_CAUSE, CutRead, LeaderToSession, Verdict
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.clock import seconds
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.entries.messages import filter_batch
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.tails import Tails
from streamlease.streams.publish import traces
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Batch", "Failing", "Held", "SharedReader", "Subscription"]

log = logging.getLogger(__name__)

_Opener = Callable[[], "Awaitable[SharedReader]"]
WATCH_SECONDS = 0.005
COMMIT_SECONDS = 30.0
LIMBO_SECONDS = 3.0
"""How long after the session is connected again a stream may still come back to it. The leader grants at once
what is to go on, and repeats that every second."""

LOOK_SECONDS = 1.0
"""So often it is looked what came back. A longer time between two looks counts as so much: a process that
stood still did not hear what came for it meanwhile."""


class SharedReader:
    """Handler of a session with one slot, and the async iterator over its batches."""

    def __init__(
        self,
        redis: AsyncRedis,
        shared: SharedSubscription,
        *,
        max_batch: int,
        buffered_batches: int,
        schema: Schema | None = None,
        clock: Callable[[], float] = seconds,
    ) -> None:
        self._clock = clock
        self._traces = traces.active()
        self._tails = Tails(redis, on_change=lambda stream, next: self._changed.set())
        self._filter = shared.filter
        self.subscription = str(shared)
        self._read = metrics.READ.labels(self.subscription)
        self._delivered = metrics.DELIVERED.labels(self.subscription)
        self._committed = metrics.COMMITTED.labels(self.subscription)
        self._streams: dict[str, Held] = {}
        self._ready: deque[Batch] = deque()
        self._changed = asyncio.Event()
        """There may be something to fetch, or room for it."""
        self._arrived = asyncio.Event()
        """There may be something to hand out, or the end."""
        self._fetching = Fetching(
            redis, self._tails, self._streams, self._ready, self._fetched, self._found_damage,
            max_batch=max_batch, most_waiting=buffered_batches, schema=schema, clock=clock, term=self._term,
            skip=self._pass_hole,
        )  # fmt: skip
        self._tasks = Supervisor(f"subscription {shared}", lambda _, error: self._give_up(error))
        self._session: Session | None = None
        self._closed = False
        self._watching = False
        """Whether the set of streams that are watched is about to be made anew."""
        self._ended = asyncio.Event()
        self._error: StreamleaseError | None = None
        self._looked_at: float | None = None

    def start(self, session: Session) -> None:
        """Begin to borrow and to fetch."""
        self._session = session
        metrics.watch(self)
        self._tails.start()
        session.start()
        self._tasks.start("fetching", self._fetch())

    @property
    def streams(self) -> list[str]:
        """The streams that are held now."""
        return sorted(stream for stream, held in self._streams.items() if not held.limbo)

    def holding(self) -> tuple[int | None, int | None]:
        """Streams held, and their uncommitted messages; None where that is unknown. From any thread."""
        if self._session is None or not self._session.connected:
            return None, None  # what it has may be another's already
        mine = [(stream, held) for stream, held in list(self._streams.items()) if not held.limbo]
        lag: int | None = 0
        for stream, held in mine:
            next = self._tails.next_of(StreamId.parse(stream))
            lag = None if lag is None or next is None else lag + max(0, next - held.acknowledged)
        return len(mine), lag

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        while True:
            batch = self._take()
            if batch is not None:
                return batch
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    def at_once(self, most: int) -> list[Batch]:
        """Up to `most` batches for which nobody has to wait; none if there are none."""
        group: list[Batch] = []
        while len(group) < most and (batch := self._take()) is not None:
            group.append(batch)
        return group

    def _take(self) -> Batch | None:
        """The next batch that may be handed to the program."""
        while self._ready:
            batch = self._ready.popleft()
            self._changed.set()
            if self._streams.get(str(batch.stream)) is not batch.held or batch.held.revoking:
                continue
            if batch.held.failing is None:
                batch.held.delivered = batch.end
                batch.turn = batch.held.turn
                self._delivered.inc(len(batch))
                if self._traces is not None:
                    batch.received = self._traces.received(
                        batch.stream, batch.to_arrow(), batch.start, batch.began
                    )
                return batch
        return None

    async def commit(self, held: Held, stream: StreamId, end: int, received: Any = None) -> None:
        """See `Batch.commit`; `received` is the span context of the delivery, where the program traces."""
        if self._traces is None:
            await self._commit(held, stream, end)
            return
        with self._traces.settling(stream, end, received):
            await self._commit(held, stream, end)

    async def _commit(self, held: Held, stream: StreamId, end: int) -> None:
        if self._error is not None:
            raise self._error
        if self._streams.get(str(stream)) is not held:
            raise _taken(stream)
        if end <= held.acknowledged:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        held.waiters.append((end, waiter))
        if end > held.committed:
            held.advance(end)
            self._report(str(stream), held)
            self._fail_damaged(str(stream), held)
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await waiter
        except TimeoutError:
            raise Indefinite(
                f"no leader confirmed the commit of {stream} up to offset {end} "
                f"within {COMMIT_SECONDS:.0f} s: "
                f"it may be committed, or its messages may come again"
            ) from None

    async def fail(self, held: Held, stream: StreamId, offset: int, cause: str) -> Verdict:
        """See `Batch.fail`."""
        if self._error is not None:
            raise self._error
        if self._session is None or self._closed or self._streams.get(str(stream)) is not held:
            raise _taken(stream)
        if offset < held.committed:
            raise InvalidOption(f"offset {offset} of stream {stream} is committed: it cannot fail any more")
        waiter: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        held.advance(offset)
        if held.holes:
            self._report(str(stream), held)  # a failure says nothing of them
        held.failing = Failing(offset, self._session.new_failure(), cause, waiter)
        self._report_failure(str(stream), held, held.failing)
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                return await asyncio.shield(waiter)
        except TimeoutError:
            waiter.add_done_callback(_forget)
            raise Indefinite(
                f"no leader said within {COMMIT_SECONDS:.0f} s what becomes of offset {offset} of stream "
                f"{stream}: its failure may count, and its dead letter may not be written yet; look at "
                f"'streamlease group describe'"
            ) from None

    async def close(self) -> None:
        """Give all streams back in good order; delivered but uncommitted batches will come again."""
        if self._closed or self._session is None:
            return
        self._closed = True
        metrics.forget(self)
        self._wake()
        if not self._session.over:
            self._session.unsubscribe()
            await self._ended.wait()
        await self._tasks.close()
        for stream, held in self._streams.items():
            held.fail(_taken(stream))
        await self._tails.close()

    # ------------------------------------------------------------ handler

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """Continue where this program was, if nobody had the stream in between; else at the progress."""
        held = self._streams.get(grant.stream)
        if held is not None and grant.resumes is not None and grant.resumes <= held.lease_epoch:
            held.lease_epoch = grant.lease_epoch
            if held.revoking:
                self._rewind(held)
            held.limbo = held.revoking = False
            held.waited = 0.0
            if held.failing is not None and grant.progress > held.failing.offset:
                self._settle(grant.stream, held, held.failing, "passed")
            elif held.failing is not None:
                self._report_failure(grant.stream, held, held.failing)
            elif held.committed > grant.progress:
                self._report(grant.stream, held)
            if held.committed < grant.progress:
                self._pass_over(held, grant.progress)
            self._fail_damaged(grant.stream, held)
            self._acknowledge(grant.stream, grant.progress)
        else:
            if held is not None:
                held.fail(_taken(grant.stream))
            start = grant.progress
            held = self._streams[grant.stream] = Held(slot, grant.lease_epoch, start, start, start, start)
            self._put_off(held, grant.retry_after_ms)
        self._watch()

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """Wake those who wait for this commit."""
        held = self._streams.get(ack.stream)
        if held is not None and held.lease_epoch == ack.lease_epoch:
            self._acknowledge(ack.stream, ack.offset)

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """Hand out what follows, from the failed message on or from behind it."""
        held = self._streams.get(answer.stream)
        failing = held.failing if held is not None else None
        if held is not None and failing is not None and failing.failure == answer.failure:
            going_on = failing.offset < held.damaged_until and answer.verdict == "retry"
            self._put_off(held, 0 if going_on else answer.retry_after_ms)
            self._settle(answer.stream, held, failing, answer.verdict)

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """Deliver no more of the stream; give it back once what was delivered is committed."""
        held = self._streams.get(revoking.stream)
        if held is not None and held.lease_epoch == revoking.lease_epoch:
            held.revoking = True
            self._report(revoking.stream, held)

    def gone(self, slot: int, gone: StreamGone) -> None:
        """Keep the stream in limbo: after a leader's end it comes back at once."""
        held = self._streams.get(gone.stream)
        if held is None or held.lease_epoch != gone.lease_epoch:
            return
        if held.revoking and held.committed >= held.delivered and not held.waiters:
            del self._streams[gone.stream]
        else:
            held.limbo = True
        self._watch()

    def received(self, message: LeaderToSession | CutRead) -> None:
        """Cuts are not used here."""

    def failed(self, error: StreamleaseError) -> None:
        """The session is over: the iterator and all commits raise."""
        self._error = error
        for held in self._streams.values():
            held.fail(error)
        self._ended.set()
        self._wake()

    def ended(self) -> None:
        """The session has left."""
        self._ended.set()

    # ------------------------------------------------------------ inside

    def _term(self) -> int | None:
        return self._session.term if self._session is not None else None

    def _wake(self) -> None:
        self._changed.set()
        self._arrived.set()

    def _watch(self) -> None:
        """Watch the streams held; many grants in a row make one new set of them."""
        if not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_later(WATCH_SECONDS, self._watch_now)
        self._wake()

    def _watch_now(self) -> None:
        self._watching = False
        if self._closed:
            return
        self._tails.set_streams(
            [StreamId.parse(stream) for stream, held in self._streams.items() if not held.limbo]
        )
        self._wake()

    def _report(self, stream: str, held: Held) -> None:
        if self._session is None:
            return
        # A closing program commits nothing more; otherwise what was delivered must be committed first.
        final = held.revoking and (self._closed or held.committed >= held.delivered)
        self._session.progressed(
            held.slot, Progressed(stream, held.lease_epoch, held.committed, final, held.lost())
        )

    def _report_failure(self, stream: str, held: Held, failing: Failing) -> None:
        assert self._session is not None
        self._session.failed(
            held.slot, Failed(stream, held.lease_epoch, failing.offset, failing.failure, failing.cause)
        )

    def _settle(self, stream: str, held: Held, failing: Failing, verdict: Verdict) -> None:
        """The failure is answered: what was handed out behind the message is void, and comes again."""
        damaged, held.failing = held.damaged, None
        held.turn += 1
        if verdict == "passed":
            held.advance(failing.offset + 1)
        held.delivered = held.committed
        self._rewind(held)
        self._acknowledge(stream, failing.offset + (verdict == "passed"))
        # Beyond the message may be what the filter does not match: else nobody would say that it is done.
        if held.revoking or held.committed > held.acknowledged:
            self._report(stream, held)
        if not failing.waiter.done():
            failing.waiter.set_result(verdict)
        if damaged is not None and verdict == "passed":
            held.damaged_until = damaged.end
        if damaged is not None and held.committed < held.damaged_until and held.retry_at is None:
            # It need not be read again for each of its messages.
            held.damaged = damaged.behind(held.committed)
            self._fail_damaged(stream, held)
        self._wake()

    def _pass_over(self, held: Held, progress: int) -> None:
        """What is below `progress` was decided elsewhere: it is a dead letter now, or retention took it.

        What was handed out is void, and comes again from there on.
        """
        held.turn += 1
        held.advance(progress)
        held.delivered = held.committed
        self._rewind(held)

    def _put_off(self, held: Held, milliseconds: int) -> None:
        """The next message failed: let it wait so long."""
        held.retry_at = self._clock() + milliseconds / 1000 if milliseconds else None

    def _acknowledge(self, stream: str, offset: int) -> None:
        held = self._streams[stream]
        self._committed.inc(max(0, offset - held.acknowledged))
        held.acknowledged = max(held.acknowledged, offset)
        if held.holes:
            held.holes = {start: end for start, end in held.holes.items() if end > held.acknowledged}
        waiting, held.waiters = held.waiters, []
        for end, waiter in waiting:
            if end > held.acknowledged:
                held.waiters.append((end, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    def _rewind(self, held: Held) -> None:
        """Fetch again what was not handed out: while the stream was being revoked, batches were dropped."""
        kept = [batch for batch in self._ready if batch.held is not held]
        self._ready.clear()
        self._ready.extend(kept)
        held.position = held.delivered
        held.damaged = None
        held.skips = {start: end for start, end in held.skips.items() if start < held.delivered}

    async def _fetch(self) -> None:
        if self._session is not None:
            config = self._session.config
            logs.begin(group=config.subscription.id, borrower=config.names[0])
        while not self._closed:
            self._changed.clear()
            self._give_up_lost(self._clock())
            if not await self._fetch_round():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._changed.wait()

    def _pause(self) -> float:
        """How long (s) there is nothing to do, unless something changes."""
        now = self._clock()
        due = (held.retry_at - now for held in self._streams.values() if held.retry_at is not None)
        return max(0.0, min((LOOK_SECONDS, *due)))

    def _give_up_lost(self, now: float) -> None:
        """Streams in limbo that did not come back may be somebody else's: who waits for a commit learns it.

        One that nobody waits for hands out no more, but is kept: if letters of the leader were lost, and it
        is granted after all, it goes on where it was. After an error it must not: the program may have taken
        its work back.
        """
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, LOOK_SECONDS)
        self._looked_at = now
        if self._session is None:
            return
        for stream, held in list(self._streams.items()):
            if not held.limbo or not self._session.connected:
                held.waited = 0.0
                continue
            before, held.waited = held.waited, held.waited + passed
            if held.waited >= LIMBO_SECONDS and held.is_waited_for:
                held.fail(_taken(stream))
                del self._streams[stream]
            elif before < LIMBO_SECONDS <= held.waited:
                self._rewind(held)

    async def _fetch_round(self) -> bool:
        """Read of each stream that has news; whether there was any."""
        try:
            return await self._fetching.round()
        except (HistoryTruncated, SchemaMismatch) as error:
            self._give_up(error)
            return False

    def _give_up(self, error: StreamleaseError) -> None:
        """Nothing more can be read: the program is told, and the streams go to whoever can read them."""
        self.failed(error)
        if self._session is not None and not self._session.over:
            self._session.disconnect()

    def _found_damage(self, news: News, damaged: DamagedEntry) -> None:
        """What stands next in a stream cannot be decoded: a message that failed, without the program."""
        held = news.held
        if self._streams.get(str(news.stream)) is held and held.position == damaged.start:
            log.warning("%s", damaged, extra={"stream": str(news.stream), "term": self._term()})
            held.damaged = damaged
            self._fail_damaged(str(news.stream), held)

    def _fail_damaged(self, stream: str, held: Held) -> None:
        """Report the damaged message, if all before it is committed: a failure says that it is."""
        damaged = held.damaged
        if damaged is None or held.committed != damaged.start or held.failing is not None:
            return
        if self._session is None or held.revoking or held.limbo or self._closed:
            return
        waiter: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(_forget)
        cause = writable(str(damaged))[:MAX_CAUSE]
        held.failing = Failing(damaged.start, self._session.new_failure(), cause, waiter)
        self._report_failure(stream, held, held.failing)

    def _fetched(self, news: News, batches: list[pa.RecordBatch]) -> None:
        """Queue what was read of a stream, unless it was lost or goes on elsewhere meanwhile."""
        held, start = news.held, news.start
        for data in batches:
            if self._streams.get(str(news.stream)) is not held or held.position != start:
                return
            chosen = filter_batch(data, self._filter)
            batch = Batch(self, held, news.stream, start, start + data.num_rows, chosen)
            batch.began = news.began
            held.position = start = batch.end
            self._read.inc(data.num_rows)
            if chosen.num_rows:
                self._ready.append(batch)
                self._arrived.set()
            else:
                self._skip(str(news.stream), held, batch.start, batch.end)

    def _pass_hole(self, news: News, end: int) -> None:
        """What comes next was lost: go on behind it."""
        held = news.held
        if self._streams.get(str(news.stream)) is held and held.position == news.start:
            held.position = end
            self._skip(str(news.stream), held, news.start, end)

    def _skip(self, stream: str, held: Held, start: int, end: int) -> None:
        """Nothing there for us: pass over it without bothering the program."""
        held.skips[start] = end
        if held.committed == start:
            held.advance(start)
            self._report(stream, held)


def _forget(waiter: asyncio.Future[Verdict]) -> None:
    """Nobody waits any more: an error that comes now is nobody's."""
    if not waiter.cancelled():
        waiter.exception()


def _taken(stream: StreamId | str) -> Fenced:
    return Fenced(
        f"stream {stream} was taken away before the commit: its messages since the last commit "
        f"may be delivered to somebody else; do not commit them here"
    )


class Subscription:
    """``client.subscribe(...)``: an async context manager around an async iterator of batches."""

    def __init__(self, opener: _Opener) -> None:
        self._opener = opener
        self._reader: SharedReader | None = None

    async def __aenter__(self) -> SharedReader:
        self._reader = await self._opener()
        return self._reader

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._reader is not None:
            await self._reader.close()
