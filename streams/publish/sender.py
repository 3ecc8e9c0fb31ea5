"""The one task of a publisher that sends: rounds, retries, and what each outcome means.

A round takes the first part of every lane that has one and appends them all in one write. What failed is
repeated with the same sequences, after growing, jittered waits, so a part whose answer was lost is not
written again; what was written less durably than its space demands is not written again either, only waited
for. After `delivery_timeout` seconds a part fails with what is known: ``NotDurable`` if it was written,
``Indefinite`` if any attempt may have been, else the last reason. The parts that became too old behind it
fail with it.

A single message that somebody awaits, while nothing at all is under way or waits, is a round by itself. It is
written in the turn of its caller, on a line (``direct_lines``). Unless the answer is that it was appended,
the round goes on as every other one, with a repetition of the same append.

For a blocking client, the thread that sends one message after the other is lent this work: it appends its
messages itself. While the loan lasts, nothing is sent here. What does not come out as appended is taken over,
and goes on here in the same way.

A stream that takes nothing (sealed, not yet open, or gone) holds its lane still; between two rounds, when
nothing is under way, `follow` decides what becomes of the held lanes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from tenacity import AsyncRetrying, RetryCallState, retry_if_result, stop_after_delay, wait_random_exponential

from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    NotDurable,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.decoding import prepare
from streamlease.streams.entries.entries import Encoded
from streamlease.streams.log.appends import outcome_of_reply
from streamlease.streams.log.keys import append_keys, stream_meta
from streamlease.streams.log.log import Append, Appended, AsyncLog, OutOfSequence, StreamPending
from streamlease.streams.publish.lanes import Lane
from streamlease.streams.publish.parts import Part
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.direct_line import DirectLine
from streamlease.streams.redis.direct_lines import DirectLines
from streamlease.streams.redis.durability import MEMORY, WAIT_SECONDS
from streamlease.streams.tasks import Supervisor

FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0
LEAST_ATTEMPT = 1.0

Finished = Callable[[Part, StreamleaseError | None], None]
Follow = Callable[[Sequence[Lane]], Awaitable[None]]
Mend = Callable[[StreamId, Part], Awaitable[bool]]
_Flight = tuple[Lane, Part]

_logger = logging.getLogger(__name__)


class Converting:
    """The first Python values that become columns: pyarrow imports pandas then, if it is installed.

    A thread does it: the event loop may have leases, which must not wait for an import.
    """

    def __init__(self) -> None:
        self.done = False

    async def ready(self) -> None:
        """Values may be converted now without a wait."""
        if not self.done:
            await asyncio.to_thread(prepare)
            self.done = True


converting = Converting()


class Sender:
    """Sends the parts of the lanes that are offered to it until it is closed.

    Args:
        finished: called once for each part, with the error if it failed, after its receipts were told.
        follow: called with the held lanes while no part is in flight; it empties, fails or releases them, or
            raises what it could not do.
        round_bytes: most bytes of one write, unless a single part is larger.
        linger: seconds for which a part that is not full waits for more messages.
        answer_seconds: how long the reply to a single message may take.
        mend: brings a stream and a part, whose schema versions differ, to the newest; False if it cannot.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        log: AsyncLog,
        publisher: str,
        *,
        delivery_timeout: float,
        finished: Finished,
        follow: Follow,
        mend: Mend,
        round_bytes: int,
        linger: float,
        answer_seconds: float,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._timeout = delivery_timeout
        self._round_bytes = round_bytes
        self._finished = finished
        self._follow = follow
        self._follow_at = 0.0
        self._follow_wait = FIRST_WAIT
        self._held: dict[StreamId, Lane] = {}
        self._mend = mend
        self._linger = linger
        self._hurries = 0
        self._ready: dict[StreamId, Lane] = {}
        self._flights: list[_Flight] = []
        self._work = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.error: StreamleaseError | None = None
        """Why it ended by itself; it sends nothing more."""
        self._tasks = Supervisor(f"publisher {publisher}", lambda _, error: self._ended(error))
        self._lines = DirectLines(redis, self._tasks, answer_seconds)
        self._on_line = False
        """Whether the present round was sent on a line, and has no answer yet."""
        self._loan = 0
        """The number of the present loan, 0 for none; within one, `_on_line`, and nothing is in flight."""
        self._loans = 0
        self._wanted: Callable[[], None] = _nobody
        self._resting = False
        """Whether the task that sends waits for work."""
        self._tasks.start("sending", self._run(), endless=True)

    @property
    def in_flight(self) -> list[Part]:
        """The parts of the present round."""
        return [part for _, part in self._flights]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, and nothing waits."""
        return (
            self._resting
            and not self._on_line
            and not self._flights
            and self.error is None
            and not self._work.is_set()
        )

    def can_send_at_once(self, lane: Lane) -> bool:
        """Whether a part of `lane` needs nothing but a line to be sent at once. From any thread."""
        return self.is_idle and lane.durability.kind == MEMORY.kind and not self._linger

    def line_for(self, lane: Lane) -> DirectLine | None:
        """The line on which a part of `lane` can be sent at once; None if it cannot."""
        return self._lines.to(append_keys(lane.stream)[0]) if self.can_send_at_once(lane) else None

    def write(self, lane: Lane, entry: Encoded, line: DirectLine) -> None:
        """Append `entry` on what :meth:`line_for` gave. To be told :meth:`wrote` in the same turn."""
        append = lane.append_of_entry(entry, self._publisher, self._loop.time())
        self._on_line = True
        line.ask_packed(append.packed, partial(self._heard, append))

    def wrote(self, lane: Lane, part: Part) -> None:
        """`part` is that of the entry that was written in this turn."""
        self._flights = [(lane, part)]

    def lend(self, wanted: Callable[[], None]) -> int:
        """While idle, leave it to a thread to append single parts, one by one; the number of the loan, or 0.

        Args:
            wanted: called, on the event loop, when something is to be sent here: take the loan back.
        """
        if not self.is_idle or self._linger:
            return 0
        self._loans += 1
        self._loan, self._wanted = self._loans, wanted
        self._on_line = True
        return self._loan

    def take_back(self, loan: int) -> None:
        """The loan ends, and what waits is sent; does nothing if it has ended."""
        if self._loan == loan:
            self._loan, self._on_line = 0, False
            if self._ready:
                self._work.set()

    def take_over(self, loan: int, lane: Lane, part: Part, append: Append, reply: Any) -> bool:
        """The loan ends with `reply` to an append, and that goes on here; False if the loan had ended."""
        if self._loan != loan:
            return False
        self._loan = 0
        self._flights = [(lane, part)]
        self._heard(append, reply)
        return True

    def want_line(self, stream: StreamId) -> None:
        """Messages for `stream` are sent one by one: have a line for the next."""
        if self.error is None and not self._linger:
            self._lines.want(stream_meta(stream))

    def _heard(self, append: Append, reply: Any) -> None:
        """What came of a round on a line. Unless it was appended, the task that sends repeats it."""
        if not self._on_line:
            return
        self._on_line = False
        ((lane, part),) = self._flights
        try:
            if reply is None:
                part.maybe, part.error = True, _no_answer()
            elif isinstance(outcome := outcome_of_reply(append, reply), Appended):
                self._flights = []
                self._appended(lane, part, outcome)
        finally:
            if self._flights or self._ready:
                self._work.set()

    def offer(self, lane: Lane) -> None:
        """`lane` has a part to send."""
        if self.error is not None:
            self._loop.call_soon(self.fail_all, lane, self.error)  # once whoever offers it has put it there
        elif lane.refusal is None:
            self._ready[lane.stream] = lane
            self._work.set()
            if self._loan:
                self._wanted()

    def release(self, lane: Lane) -> None:
        """`lane` does not hold still any more."""
        lane.refusal = None
        self._held.pop(lane.stream, None)
        if lane.queue and self.error is None:
            self.offer(lane)
        else:
            self._ready.pop(lane.stream, None)

    def fail_all(self, lane: Lane, error: StreamleaseError) -> None:
        """Everything in `lane` fails, and the lane does not hold still any more."""
        while lane.queue:
            part = lane.take()
            self.fail(lane, part, error)
        self.release(lane)

    def fail(self, lane: Lane, part: Part, error: StreamleaseError) -> None:
        """A part of `lane` that is not in flight fails."""
        self._fail(lane, part, _or_indefinite(part, error))

    async def close(self) -> None:
        """Stop at once. Parts that are still there fail: those in flight as ``Indefinite``."""
        self._loan, self._on_line = 0, False
        await self._tasks.close()
        await self._lines.close()
        why = "the publisher was closed before"
        for lane, part in self._flights:
            self._fail(lane, part, Indefinite(f"{why} an answer came: it was written, or it was not"))
        self._flights = []
        for lane in {**self._ready, **self._held}.values():
            for part in lane.queue:
                self._fail(lane, part, StoreUnavailable(f"{why} it was sent: publish it again"))
            lane.queue.clear()
            lane.open = None

    def _ended(self, error: StreamleaseError) -> None:
        """The task that sends ended by a defect: nothing that is here will be sent."""
        self.error = error
        self._loan, self._on_line = 0, False
        for lane, part in self._flights:
            self._fail(lane, part, Indefinite(f"{error}; the message was written, or it was not"))
        self._flights = []
        for lane in {**self._ready, **self._held}.values():
            self.fail_all(lane, error)

    async def _run(self) -> None:
        while True:
            self._resting = True
            await self._work.wait()
            self._resting = False
            self._work.clear()
            while not self._on_line and (self._flights or self._ready or self._held):
                if not self._flights:
                    await self._follow_held()
                    if not self._ready or not await self._is_due():
                        continue
                    if not converting.done and any(lane.queue[0].count > 1 for lane in self._ready.values()):
                        await converting.ready()
                    self._flights = self._next_round()
                    if not self._flights:
                        continue
                try:
                    await self._deliver()
                except Exception as error:
                    _logger.exception("publisher %s: a round of appends failed", self._publisher)
                    for lane, part in self._flights:
                        part.maybe = True
                        self._fail(lane, part, Indefinite(f"the publisher failed while sending: {error!r}"))
                self._flights = []

    def _hold(self, lane: Lane, part: Part, refusal: StreamleaseError) -> None:
        """The stream takes nothing: put the part back, and let the lane hold still."""
        if not isinstance(refusal, UnknownSpace):
            part.maybe, part.error = False, None
        elif part.written and part.error is not None:
            self._fail(lane, part, part.error)
            return
        if isinstance(refusal, StreamPending) and part.born + self._timeout <= self._loop.time():
            self._fail(lane, part, refusal)
            if lane.queue:
                self.offer(lane)
            return
        lane.queue.appendleft(part)
        lane.refusal = refusal
        self._ready.pop(lane.stream, None)
        self._held[lane.stream] = lane

    async def _follow_held(self) -> None:
        """Have it decided what becomes of the held lanes; if that fails, again after growing waits."""
        if not self._held:
            return
        now = self._loop.time()
        if now < self._follow_at:
            if self._ready:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._follow_at - now):
                    self._work.clear()
                    await self._work.wait()
            return
        pending = any(isinstance(lane.refusal, StreamPending) for lane in self._held.values())
        try:
            await self._follow([*self._held.values()])
            if pending:  # should it stay so, look again after a pause
                self._follow_at = self._loop.time() + self._follow_wait
                self._follow_wait = min(LONGEST_WAIT, self._follow_wait * 2)
            else:
                self._follow_wait = FIRST_WAIT
        except Exception as error:
            known = error if isinstance(error, StreamleaseError) else None
            if known is None:
                _logger.exception("publisher %s cannot follow a new generation", self._publisher)
            self._follow_failed(known or StoreRefused(f"the publisher failed while looking: {error!r}"))

    def _follow_failed(self, error: StreamleaseError) -> None:
        now = self._loop.time()
        for lane in [*self._held.values()]:
            while lane.queue and (not error.retriable or lane.queue[0].born + self._timeout <= now):
                part = lane.take()
                self._fail(lane, part, _or_indefinite(part, _not_placed(error)))
            if not lane.queue:
                self.release(lane)
        self._follow_at = now + self._follow_wait
        self._follow_wait = min(LONGEST_WAIT, self._follow_wait * 2)

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Within this, no part waits for more messages."""
        self._hurries += 1
        self._work.set()
        try:
            yield
        finally:
            self._hurries -= 1

    def _due_at(self, lane: Lane) -> float:
        """When the first part of a lane is to be sent."""
        part = lane.queue[0]
        waits = self._linger and not self._hurries and part is lane.open
        return part.born + self._linger if waits else 0.0

    async def _is_due(self) -> bool:
        """Whether a lane has a part that waits no longer; if not, wait until that may have changed."""
        if not self._linger:
            return True
        now = self._loop.time()
        due = min(map(self._due_at, self._ready.values()))
        if due <= now:
            return True
        if self._held:
            due = min(due, max(now, self._follow_at))
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._work.wait()
        return False

    def _next_round(self) -> list[_Flight]:
        flights: list[_Flight] = []
        size = 0
        now = self._loop.time()
        for stream, lane in list(self._ready.items()):
            if size >= self._round_bytes:
                break
            if self._linger and self._due_at(lane) > now:
                continue
            del self._ready[stream]
            part = lane.take()
            if lane.queue:
                self._ready[stream] = lane  # behind the others
            try:
                part.encoded()
            except StreamleaseError as error:
                self._fail(lane, part, error)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                self._fail(lane, part, InvalidInput(f"a message cannot be stored: {error}"))
            else:
                flights.append((lane, part))
                size += part.size
        return flights

    async def _deliver(self) -> None:
        deadline = max(part.born for _, part in self._flights) + self._timeout
        if await self._attempt(deadline):
            retrying = AsyncRetrying(
                wait=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
                stop=stop_after_delay(max(0.0, deadline - self._loop.time())),
                retry=retry_if_result(bool),
                retry_error_callback=_give_up,
            )
            if await retrying(self._attempt, deadline):
                self._expire()

    async def _attempt(self, deadline: float) -> bool:
        """Append all parts of the round that are still open; whether some remain so."""
        now = self._loop.time()
        appends = [lane.append_of(part, self._publisher, now) for lane, part in self._flights]
        limit = max(LEAST_ATTEMPT, deadline - now)
        try:
            async with asyncio.timeout(limit):
                outcomes = await self._log.append_many(
                    appends, wait_seconds=min(WAIT_SECONDS, limit / 2), evolve=False
                )
        except (StoreUnavailable, Indefinite, TimeoutError) as error:
            for _, part in self._flights:
                part.maybe |= not isinstance(error, StoreUnavailable)
                if part.written:
                    continue  # nothing that failed later makes it less certain that it is there
                part.error = error if isinstance(error, StreamleaseError) else _no_answer()
            return True
        remaining: list[_Flight] = []
        for (lane, part), outcome in zip(self._flights, outcomes, strict=True):
            if isinstance(outcome, Appended):
                self._appended(lane, part, outcome)
            elif isinstance(outcome, StreamSealed | StreamPending | UnknownSpace):
                self._hold(lane, part, outcome)
            elif isinstance(outcome, StoreRefused | StoreUnavailable | Indefinite | NotDurable):
                part.maybe |= isinstance(outcome, Indefinite)
                if not part.written or isinstance(outcome, NotDurable):
                    part.error = outcome  # of what is written but not durable, a repetition only waits again
                remaining.append((lane, part))
            elif isinstance(outcome, SchemaMismatch):
                if await self._mended(lane, part, outcome):
                    remaining.append((lane, part))
            elif isinstance(outcome, OutOfSequence) and outcome.last < lane.sequence:
                # Redis lost acknowledged writes; this part is not there either, so send it anew.
                lane.renew()
                part.error = outcome
                remaining.append((lane, part))
            else:
                self._fail(lane, part, outcome)
        self._flights = remaining
        return bool(remaining)

    def _appended(self, lane: Lane, part: Part, outcome: Appended) -> None:
        lane.appended(outcome)
        part.succeed(outcome.stream, outcome.first)
        self._finished(part, None)

    async def _mended(self, lane: Lane, part: Part, refused: SchemaMismatch) -> bool:
        """Whether a part with another version of the schema is to be sent again; if not, it has failed."""
        part.error = refused
        try:
            if part.schema is not None and await self._mend(lane.stream, part):
                part.encoded()
                return True
            error: StreamleaseError = refused
        except (StoreUnavailable, StoreRefused, Indefinite):
            return True
        except StreamleaseError as found:
            error = found
        self._fail(lane, part, error)
        return False

    def _expire(self) -> None:
        """The delivery timeout is over: fail what is in flight, and what waited for as long."""
        now = self._loop.time()
        for lane, part in self._flights:
            error = _or_indefinite(part, part.error or _no_answer())
            self._fail(lane, part, error)
            while lane.queue and lane.queue[0].born + self._timeout <= now:
                self._fail(lane, lane.take(), _never_sent(error))
            if not lane.queue:
                self._ready.pop(lane.stream, None)
        self._flights = []

    def _fail(self, lane: Lane, part: Part, error: StreamleaseError) -> None:
        if isinstance(error, NotDurable):
            lane.sequence += 1  # it is there
        elif part.maybe:
            lane.renew()
        part.fail(error)
        self._finished(part, error)


def _nobody() -> None:
    """Nobody has a loan."""


def _give_up(state: RetryCallState) -> bool:
    return state.outcome is not None and bool(state.outcome.result())


def _no_answer() -> Indefinite:
    return Indefinite("no answer came from Redis in time: it was written, or it was not")


def _or_indefinite(part: Part, error: StreamleaseError) -> StreamleaseError:
    if part.maybe and not isinstance(error, Indefinite | NotDurable):
        return Indefinite(f"an earlier attempt may have been written, or not; the last one: {error}")
    return error


def _not_placed(error: StreamleaseError) -> StreamleaseError:
    if isinstance(error, Indefinite):  # about the definition; the messages were refused for certain
        return StoreUnavailable(f"not written, because its space is being altered: {error}")
    return error


def _never_sent(error: StreamleaseError) -> StreamleaseError:
    return StoreUnavailable(f"not sent, because what was before it got no answer: {error}")
