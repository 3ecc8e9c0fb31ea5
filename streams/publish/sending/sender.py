"""The one task of a publisher that sends: rounds, retries, and what each outcome means.

A round takes the first part of every lane that has one and appends them all in one write. What failed is
repeated with the same sequences, after growing, jittered waits, so a part whose answer was lost is not
written again; what was written less durably than its space demands is not written again either, only waited
for. After `delivery_timeout` seconds a part fails with what is known: ``NotDurable`` if it was written,
``Indefinite`` if any attempt may have been, else the last reason. The parts that became too old behind it
fail with it.

A stream that takes nothing (sealed, not yet open, or gone) holds its lane still (``held_lanes``); what
becomes of it is decided between two rounds. Messages that are awaited one by one go another way
(``singles``), in turn with rounds (``duty``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa
from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_random_exponential

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
from streamlease.protocol.seldom import Seldom
from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.log.log import Appended, OutOfSequence, StreamPending
from streamlease.streams.publish.epoch_staging import Appends
from streamlease.streams.publish.lanes import Lane
from streamlease.streams.publish.parts import Part
from streamlease.streams.publish.sending.converting import converting
from streamlease.streams.publish.sending.duty import Duty, Who
from streamlease.streams.publish.sending.endings import Endings, never_sent, no_answer, or_indefinite
from streamlease.streams.publish.sending.held_lanes import FIRST_WAIT, LONGEST_WAIT, Follow, HeldLanes
from streamlease.streams.publish.sending.ready_lanes import Flight, ReadyLanes
from streamlease.streams.redis.durability import WAIT_SECONDS
from streamlease.streams.tasks import Supervisor

LEAST_ATTEMPT = 1.0

_WAITED_FOR = (StoreUnavailable, StoreRefused, Indefinite, NotDurable)
"""Unlike what is mended at once, such as another version of the schema."""

Mend = Callable[[StreamId, Part], Awaitable[bool]]

_logger = logging.getLogger(__name__)


class Sender:
    """Sends the parts of the lanes that are offered to it until it is closed.

    Args:
        publisher: its id.
        delivery_timeout: seconds for which a part is tried.
        follow: see ``HeldLanes``.
        mend: brings a stream and a part, whose schema versions differ, to the newest; False if it cannot.
    """

    def __init__(
        self,
        log: Appends,
        publisher: str,
        duty: Duty,
        ready: ReadyLanes,
        endings: Endings,
        *,
        delivery_timeout: float,
        follow: Follow,
        mend: Mend,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._timeout = delivery_timeout
        self._duty = duty
        self._ready = ready
        self._endings = endings
        self._mend = mend
        self._seldom = Seldom(_logger)
        self._loop = asyncio.get_running_loop()
        self._flights: list[Flight] = []
        self.held = HeldLanes(
            publisher,
            duty,
            ready,
            endings,
            self._loop.time,
            timeout=delivery_timeout,
            follow=follow,
            offer=self.offer,
        )
        self.error: StreamleaseError | None = None
        """Why it ended by itself; it sends nothing more."""
        self.tasks = Supervisor(f"publisher {publisher}", lambda _, error: self._ended(error))
        """Those of the publisher: if one of them ends by a defect, nothing more is sent."""
        self.tasks.start("sending", self._run(), endless=True)

    @property
    def in_flight(self) -> list[Part]:
        """The parts of the present round."""
        return [part for _, part in self._flights]

    def offer(self, lane: Lane) -> None:
        """`lane` has a part to send."""
        if self.error is not None:
            # Once whoever offers it has put it there.
            self._loop.call_soon(self.held.fail_all, lane, self.error)
        elif lane.refusal is None:
            self._ready.add(lane)

    def resume(self, lane: Lane, part: Part) -> None:
        """The next round is `part`, which was sent otherwise: append it again, with the same sequence."""
        if self._duty.who is Who.ENDED:
            self._endings.failed(lane, part, _left_open(self.error))
        else:
            self._flights = [(lane, part)]

    async def close(self) -> None:
        """Stop at once. Parts that are still there fail: those in flight as ``Indefinite``."""
        self._duty.end()
        await self.tasks.close()
        for lane, part in self._flights:
            self._endings.failed(lane, part, _left_open(None))
        self._flights = []
        for lane in dict.fromkeys([*self._ready, *self.held]):
            for part in lane.queue:
                why = "the publisher was closed before it was sent: publish it again"
                self._endings.failed(lane, part, StoreUnavailable(why))
            lane.queue.clear()
            lane.open = None

    def _ended(self, error: StreamleaseError) -> None:
        """A task ended by a defect: nothing that is here will be sent."""
        self.error = error
        self._duty.end()
        for lane, part in self._flights:
            self._endings.failed(lane, part, _left_open(error))
        self._flights = []
        for lane in [*self._ready, *self.held]:
            self.held.fail_all(lane, error)

    async def _run(self) -> None:
        while True:
            await self._duty.called()
            while self._flights or self._ready or self.held:
                if not self._flights:
                    await self.held.follow()
                    if not self._ready or not await self._ready.is_due(self.held.follow_at):
                        continue
                    if not converting.done and any(lane.queue[0].count > 1 for lane in self._ready):
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
                        failed = Indefinite(f"the publisher failed while sending: {error!r}")
                        self._endings.failed(lane, part, failed)
                self._flights = []
            self._duty.rest()

    def _next_round(self) -> list[Flight]:
        with collector_at_rest(len(self._ready)):
            return self._encoded_round()

    def _encoded_round(self) -> list[Flight]:
        flights: list[Flight] = []
        for lane, part in self._ready.take():
            try:
                part.encoded()
            except StreamleaseError as error:
                self._endings.failed(lane, part, error)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                self._endings.failed(lane, part, InvalidInput(f"a message cannot be stored: {error}"))
            else:
                flights.append((lane, part))
        return flights

    async def _deliver(self) -> None:
        deadline = max(part.born for _, part in self._flights) + self._timeout
        if await self._attempt(deadline):
            self._say_why()
            retrying = AsyncRetrying(
                wait=wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
                stop=lambda _: self._loop.time() >= deadline,
                retry=retry_if_result(bool),
                retry_error_callback=_give_up,
            )
            if await retrying(self._attempt, deadline):
                self._expire()

    def _say_why(self) -> None:
        """Whoever awaits a message may wait for the whole delivery timeout: this says what for."""
        errors = [part.error for _, part in self._flights if isinstance(part.error, _WAITED_FOR)]
        # What is not durable says at which offset: it is the same of all messages.
        kinds = {"not durable" if isinstance(one, NotDurable) else str(one): one for one in errors}
        for kind, error in kinds.items():
            text = "publisher %s: %s (tried again for %g s at most)"
            self._seldom.warning(text, self._publisher, error, self._timeout, kind=kind)

    async def _attempt(self, deadline: float) -> bool:
        """Append all parts of the round that are still open; whether some remain so."""
        now = self._loop.time()
        with collector_at_rest(len(self._flights)):
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
                part.error = error if isinstance(error, StreamleaseError) else no_answer()
            return True
        with collector_at_rest(len(outcomes)):
            remaining, mismatched = self._settle(outcomes)
        self._flights = [*remaining, *((lane, part) for lane, part, _ in mismatched)]
        for lane, part, refused in mismatched:
            if await self._mended(lane, part, refused):
                remaining.append((lane, part))
        self._flights = remaining
        return bool(remaining)

    def _settle(
        self, outcomes: Sequence[Appended | StreamleaseError]
    ) -> tuple[list[Flight], list[tuple[Lane, Part, SchemaMismatch]]]:
        """The parts that are still open, and those that another version of the schema may mend."""
        remaining: list[Flight] = []
        mismatched: list[tuple[Lane, Part, SchemaMismatch]] = []
        for (lane, part), outcome in zip(self._flights, outcomes, strict=True):
            if isinstance(outcome, Appended):
                self._endings.appended(lane, part, outcome.stream, outcome.first)
            elif isinstance(outcome, StreamSealed | StreamPending | UnknownSpace):
                self.held.hold(lane, part, outcome)
            elif isinstance(outcome, StoreRefused | StoreUnavailable | Indefinite | NotDurable):
                part.maybe |= isinstance(outcome, Indefinite)
                if not part.written or isinstance(outcome, NotDurable):
                    part.error = outcome  # of what is written but not durable, a repetition only waits again
                remaining.append((lane, part))
            elif isinstance(outcome, SchemaMismatch):
                mismatched.append((lane, part, outcome))
            elif isinstance(outcome, OutOfSequence) and outcome.last < lane.sequence:
                # Redis lost acknowledged writes; this part is not there either, so send it anew.
                lane.renew()
                part.error = StoreUnavailable(str(outcome))  # nobody has fenced this publisher
                remaining.append((lane, part))
            else:
                self._endings.failed(lane, part, outcome)
        return remaining, mismatched

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
        self._endings.failed(lane, part, error)
        return False

    def _expire(self) -> None:
        """The delivery timeout is over: fail what is in flight, and what waited for as long."""
        now = self._loop.time()
        for lane, part in self._flights:
            error = or_indefinite(part, part.error or no_answer())
            self._endings.failed(lane, part, error)
            while lane.queue and lane.queue[0].born + self._timeout <= now:
                self._endings.failed(lane, lane.take(), never_sent(error))
            if not lane.queue:
                self._ready.drop(lane)
        self._flights = []


def _left_open(error: StreamleaseError | None) -> Indefinite:
    """The error for what was sent, and whose answer nobody waits for: because of `error`, or at the end."""
    if error is not None:
        return Indefinite(f"{error}; the message was written, or it was not")
    return Indefinite("the publisher was closed before an answer came: it was written, or it was not")


def _give_up(state: RetryCallState) -> bool:
    return state.outcome is not None and bool(state.outcome.result())
