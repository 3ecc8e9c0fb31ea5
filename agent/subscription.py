"""A shared subscription as a Python program sees it: an async iterator of batches, each to be committed.

A program commits in three ways, which may be mixed (``docs/consuming.md``): `Batch.commit` returns when it is
durable; `Batch.commit_soon` returns at once, and `SharedReader.flush` waits for all of it; with
``auto_commit`` a batch is entered so when the loop comes back for the next one.

Per stream the batches come in order. What was delivered but not committed when the program crashes is
delivered again, to whoever gets the stream; nothing is delivered again on a clean hand-over, because a
stream that is being revoked stays until its delivered batches are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import TypeVar

from streamlease.agent.batch import Batch
from streamlease.agent.deadlines import Alarm
from streamlease.agent.dividing import AsItCame, ConsumerSide, Divide, stream_of
from streamlease.agent.fetching import UNREADABLE, Fetching
from streamlease.agent.membership import metrics
from streamlease.agent.membership.limbo import Limbo
from streamlease.agent.membership.session import Session
from streamlease.agent.settling import Settling, left
from streamlease.agent.yielding import Yielding
from streamlease.borrower.book import ConsumerBook, Held
from streamlease.borrower.events import FailureAnswered, StreamGone, StreamGranted, StreamRevoking
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import CutRead, LeaderToSession
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.commits import GroupCommits
from streamlease.streams.clock import seconds
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.joining import BATCH_ROWS
from streamlease.streams.log.tails import Tails
from streamlease.streams.publish import traces
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.tasks import Supervisor

__all__ = ["Batch", "SharedReader"]

T = TypeVar("T")
_NOTHING: Batch | None = None
CLOSE_SECONDS = 5.0
"""How long the end of a subscription waits until what was entered is durable, as for the leader then."""


class SharedReader:
    """The async iterator over the batches of a shared subscription; handler of a session with one slot.

    The `ConsumerBook` knows what becomes of each stream, `Settling` who waits for which answer, `Fetching`
    what was read; the reader tells them what the session says, and hands the batches to the program.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        tails: Tails,
        shared: SharedSubscription,
        *,
        max_batch: int | None,
        buffered_batches: int,
        auto_commit: bool = False,
        schema: Schema | None = None,
        lines: DirectLines | None = None,
        reading_lines: DirectLines | None = None,
        divide: Divide | None = None,
        clock: Callable[[], float] = seconds,
    ) -> None:
        self._clock = clock
        self._traces = traces.active()
        self._tails = tails.watch(self._heard, self._pushed if divide is None else None)
        self.subscription = str(shared)
        self._delivered = metrics.DELIVERED.labels(self.subscription)
        self.book = ConsumerBook()
        self._changed = asyncio.Event()
        """There may be something to fetch, or room for it."""
        self._arrived = asyncio.Event()
        """There may be something to hand out, or the end."""
        self._tasks = Supervisor(f"subscription {shared}", lambda _, error: self._ended_by(error))
        commits = GroupCommits(redis, shared.id, lines)
        self._settling = Settling(self.book, self.subscription, commits, self._tasks)
        self.acknowledged = self._settling.acknowledged
        """Progress is durable."""
        own = ConsumerSide(
            self._tails, self.book, self._tasks, self._heard, self._arrived.set, self._restart, self._give_up
        )
        most = max_batch or BATCH_ROWS
        self._dividing = divide(own) if divide is not None else AsItCame(own.ends, shared.filter, most)
        self._fetching = Fetching(
            redis, self._dividing, self.book, self._settling, self.subscription, own.arrived, self._tasks,
            max_batch=max_batch, most_waiting=buffered_batches, schema=schema, lines=reading_lines,
            learn=self._tails.learn, clock=clock,
        )  # fmt: skip
        self._auto_commit = auto_commit
        self._in_hand: Batch | None = None
        """With `auto_commit`: what the program works on."""
        self._yielding = Yielding(clock)
        self._ended = asyncio.Event()
        self._alarm = Alarm(self._changed)
        """The streams are to be looked at though nothing changes."""
        self._limbo = Limbo(self.book, self._settling, self._restart, self._dividing.gone, clock)
        self._unreadable: StreamleaseError | None = None
        """Why nothing more is read."""
        self._told = False
        """Whether the program was told that."""

    def start(self, session: Session) -> None:
        """Begin to borrow and to fetch."""
        self._settling.session = session
        metrics.watch(self)
        session.start()
        self._tasks.start("fetching", self._fetch())

    @property
    def error(self) -> StreamleaseError | None:
        """Why it is over, if it is."""
        return self._settling.error

    @property
    def streams(self) -> list[str]:
        """The streams that are held now."""
        return sorted(held.stream for held in self.book.owned())

    def holding(self) -> tuple[int | None, int | None]:
        """Streams held, and their uncommitted messages; None where that is unknown. From any thread."""
        session = self._settling.session
        if session is None or not session.connected:
            return None, None  # what it has may be another's already
        mine = self.book.owned()
        lag: int | None = 0
        for held in mine:
            next = self._tails.next_of(stream_of(held.stream))
            lag = None if lag is None or next is None else lag + max(0, next - held.acknowledged)
        return len(mine), lag

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        return await self.next_item(lambda: _NOTHING)

    async def next_item(self, other: Callable[[], T | None], messages: int | None = None) -> Batch | T:
        """What `other` finds, or the next batch, of so many messages at most; it is asked before each."""
        self.finished()
        if self._settling.gathered.entered:
            await self._yielding.take()  # what was entered must be written, whatever the program does
        while True:
            if (found := other()) is not None:
                return found
            batch = self._take(messages)
            if batch is not None:
                if self._auto_commit:
                    self._in_hand = batch
                return batch
            if self._settling.error is not None:
                raise self._settling.error
            if self._settling.leaving:
                raise StopAsyncIteration
            if self._unreadable is not None:
                raise self._telling(self._unreadable)
            self._arrived.clear()
            await self._arrived.wait()
            self._yielding.had_turn()

    def at_once(self, most: int, messages: int | None = None) -> list[Batch]:
        """Up to `most` batches, of so many messages at most, for which nobody has to wait."""
        return [*islice(iter(lambda: self._take(messages), None), most)]

    def _take(self, messages: int | None) -> Batch | None:
        """The next batch, now handed to the program."""
        batch = self._fetching.take(messages)
        if self._fetching.wants_round:
            self._changed.set()
        if batch is not None:
            batch.held.delivered = batch.end
            self._dividing.handed_out(batch.held, batch.of)
            batch.turn = batch.held.turn
            self._delivered.inc(len(batch))
            if self._traces is not None:
                batch.received = self._traces.received(
                    batch.stream, batch.to_arrow(), batch.start, batch.began
                )
        return batch

    def finished(self) -> None:
        """With ``auto_commit``: the program is done with the batch that it got last."""
        batch, self._in_hand = self._in_hand, None
        if batch is not None and not batch.is_void:
            batch.commit_later()

    def not_seen(self) -> None:
        """The batch that was handed out last did not reach the program."""
        self._in_hand = None

    async def flush(self) -> None:
        """Wait until all that `Batch.commit_soon`, or ``auto_commit``, has entered until now is durable.

        Raises:
            Fenced: a stream was taken away before; its messages may be delivered to somebody else. Also if
                that was before this call, and nobody was told. Notes name the other streams.
            Indefinite: Redis and the leader did not answer within 30 s: it was committed, or it was not. It
                stays entered, so another flush may succeed.
            StreamleaseError: the subscription has ended, by the error that the iterator raises.
        """
        await self._settling.flush()

    async def close(self, *, leave: bool = True) -> None:
        """Write what was entered, and give all streams back in good order.

        Batches that were handed out and not committed come again.

        Args:
            leave: False: nobody is told. The session goes on in another process, or falls silent.

        Raises:
            Fenced, Indefinite: as `flush`, but after 5 s without an answer. It is closed all the same.
        """
        session = self._settling.session
        if self._settling.leaving or session is None:
            return
        self._settling.leaving = True
        metrics.forget(self)
        self._wake()
        try:
            if leave:
                await self._settling.flush(CLOSE_SECONDS)
            else:
                session.abandon()
        finally:
            await self._leave(session)

    async def _leave(self, session: Session) -> None:
        if not session.over:
            session.unsubscribe()
            await self._ended.wait()
        await self._tasks.close()
        self._alarm.close()
        for held in [*self.book.streams.values()]:
            self._settling.lose(held, left(held.stream))
            self.book.give_up(held)
        self._settling.close()
        self._tails.close()

    # ------------------------------------------------------------ handler

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """Continue where this program was, if nobody had the stream in between; else at the progress."""
        former = self.book.streams.get(grant.stream)
        acknowledged = former.acknowledged if former is not None else 0
        done = self.book.granted(slot, grant)
        if not done.goes_on:
            done.held.retry_at = self._after(grant.retry_after_ms)
        self._fetching.void(done.held)
        self._settling.granted(done, grant, acknowledged)
        self._tails.add(stream_of(grant.stream))
        self._wake()

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """Hand out what follows, from the failed message on or from behind it."""
        held = self._settling.answered(answer, self._after(answer.retry_after_ms))
        if held is not None:
            self._fetching.void(held)
            self._wake()

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """Deliver no more of the stream; give it back once what was delivered is committed."""
        held = self.book.revoking(revoking)
        if held is not None:
            self._settling.report(held)

    def gone(self, slot: int, gone: StreamGone) -> None:
        """Keep the stream, unless its work is done: after a leader's end it comes back at once."""
        held = self.book.streams.get(gone.stream)
        if held is None or self.book.gone(gone, busy=self._settling.has_commits(held)) is None:
            return
        if not self.book.holds(held):
            self._dividing.gone(held)
        if not self._settling.leaving:  # who leaves watches nothing soon, and fetches no more
            self._tails.discard(stream_of(gone.stream))
            self._wake()

    def received(self, message: LeaderToSession | CutRead) -> None:
        """Cuts are not used here."""

    def failed(self, error: StreamleaseError) -> None:
        """The session is over: the iterator and all commits raise."""
        self._settling.end(error)
        self._ended.set()
        self._wake()

    def ended(self) -> None:
        """The session has left."""
        self._ended.set()

    # ------------------------------------------------------------ inside

    def _after(self, milliseconds: int) -> float | None:
        """When a message that failed may be processed again; None: at once."""
        return self._clock() + milliseconds / 1000 if milliseconds else None

    def _heard(self, stream: StreamId, next: int | None) -> None:
        """The end of a stream is known, or has moved."""
        held = self.book.streams.get(str(stream))
        if held is not None and self._fetching.look_at(held):
            self._changed.set()

    def _pushed(self, stream: StreamId) -> None:
        """The news of a stream are pushed from now on; many are new, and where they end is told by a read."""
        if (held := self.book.streams.get(str(stream))) is not None:
            held.end_unknown = True
            self._heard(stream, None)

    def _restart(self, held: Held) -> None:
        held.rewind()
        self._fetching.void(held)
        self._changed.set()

    def _wake(self) -> None:
        self._changed.set()
        self._arrived.set()

    async def _fetch(self) -> None:
        if (session := self._settling.session) is not None:
            logs.begin(group=session.config.subscription.id, borrower=session.config.names[0])
        while not self._settling.leaving:
            self._changed.clear()
            self._limbo.look(self._clock())
            if self._unreadable is not None:
                self._let_go(self._unreadable)
                await self._alarm.wait(self._limbo.until_look)
            elif not await self._fetch_round():
                await self._alarm.wait(self._fetching.pause(self._limbo.until_look))

    async def _fetch_round(self) -> bool:
        """Read of each stream that has news; whether there was any."""
        try:
            return await self._fetching.round()
        except UNREADABLE as error:
            self._ended_by(error)
            return False

    def _ended_by(self, error: StreamleaseError) -> None:
        """What reads has failed: what it read before is not lost with it, if that is known to be right."""
        if not isinstance(error, UNREADABLE):
            self._give_up(error)
            return
        self._unreadable = self._unreadable or error
        self._wake()

    def _telling(self, error: StreamleaseError) -> StreamleaseError:
        self._told = True
        self._let_go(error)
        return error

    def _let_go(self, error: StreamleaseError) -> None:
        """Give the streams to others, once the program was told, and has committed what it was handed."""
        done = all(held.acknowledged >= held.delivered for held in self.book.owned())
        if self._told and done and self.error is None:
            self._give_up(error)

    def refuse(self, error: StreamleaseError) -> None:
        """Nothing may be read any more, for a reason that the reader does not know by itself."""
        self._give_up(error)

    def _give_up(self, error: StreamleaseError) -> None:
        """Nothing more can be read: the program is told, and the streams go to whoever can read them."""
        self.failed(error)
        session = self._settling.session
        if session is not None and not session.over:
            session.disconnect()
