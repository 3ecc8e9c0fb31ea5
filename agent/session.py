"""A session: one shared subscription of one query or program, with one borrower per slot.

The session keeps a borrower alive in every slot (an ended one is followed by a new one with a new id), hands
their effects to its handler, and speaks for all of them where cuts are concerned. The handler is the
session-side facade of EIP-0028; it reports progress back by `progressed`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, assert_never

from streamlease.agent.metrics import Meter
from streamlease.borrower.attested import Attestations
from streamlease.borrower.events import (
    Disconnected,
    Effect,
    Ended,
    Event,
    Failed,
    FailureAnswered,
    FindLeader,
    LeaderFound,
    ProgressAcknowledged,
    Progressed,
    Received,
    SendToLeader,
    Started,
    StreamGone,
    StreamGranted,
    StreamRevoking,
    Tick,
    Unsubscribed,
)
from streamlease.borrower.life import BorrowerConfig, BorrowerState
from streamlease.borrower.link import Identity
from streamlease.borrower.machine import Borrower
from streamlease.leader.runner import now_ms
from streamlease.protocol.errors import Fenced, StreamleaseError, UnknownGroup
from streamlease.protocol.ids import Token, random_token
from streamlease.protocol.messages import (
    CommandReply,
    CutFinished,
    CutFixed,
    CutRead,
    CutResumed,
    FromLeader,
    LeaderToBorrower,
    LeaderToSession,
    Ping,
    PingResponse,
    SessionToLeader,
    ToLeader,
)
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.tasks import task_failed

log = logging.getLogger(__name__)


class AgentLike(Protocol):
    """What a session needs of the agent of its process; see `streamlease.agent.agent.Agent`."""

    @property
    def where(self) -> str:
        """Host and process, for people."""
        ...

    def post(self, receiver: str, message: ToLeader) -> None:
        """Put a message on its way, in order, without waiting."""

    def find_leader(self, group: str, found: Callable[[str, int], None]) -> None:
        """Look for the leader of `group`; `found(mailbox, term)` is called if there is one now."""

    def saw_term(self, group: str, term: int) -> None:
        """A term of `group` is known to have been issued."""

    def register(self, receiver: str, receive: Callable[[FromLeader | CutRead], None]) -> None:
        """Deliver messages for the borrower or session `receiver` to `receive`."""

    def unregister(self, receiver: str) -> None:
        """Drop what still comes for `receiver`."""

    def add_ticker(self, tick: Callable[[int], None]) -> None:
        """Call `tick(now in ms)` on a fixed schedule."""

    def remove_ticker(self, tick: Callable[[int], None]) -> None:
        """Stop calling `tick`."""

    def add_session(self, group: str, end: Callable[[StreamleaseError], None]) -> None:
        """Call `end(why)` if the agent can do nothing more for the sessions of `group`."""

    def remove_session(self, end: Callable[[StreamleaseError], None]) -> None:
        """Stop minding that session."""


class Handler(Protocol):
    """What a session tells whoever consumes. Calls come in order, on the agent's loop, and must not wait."""

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """The stream may be consumed."""

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """Progress is durable."""

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """A failed message is counted, and this becomes of it."""

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """Finish the stream, then report final progress."""

    def gone(self, slot: int, gone: StreamGone) -> None:
        """The stream is not ours any more, or not until the next grant."""

    def received(self, message: LeaderToSession | CutRead) -> None:
        """An answer about cuts, or a task's report."""

    def failed(self, error: StreamleaseError) -> None:
        """The session is over."""

    def ended(self) -> None:
        """The session has left in good order."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Who a session is."""

    subscription: SharedSubscription
    session: str
    names: tuple[str, ...]
    """The static name of each slot's borrower."""
    arrival: int
    """Higher than that of every earlier session of the group."""
    borrower: BorrowerConfig


class Session:
    """Keeps one borrower per slot and carries their effects out.

    Args:
        clock: milliseconds of a clock that does not run backwards.
        token: gives a fresh token for the id of each borrower.
    """

    def __init__(
        self,
        agent: AgentLike,
        config: SessionConfig,
        handler: Handler,
        *,
        clock: Callable[[], int] = now_ms,
        token: Token = random_token,
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._token = token
        self.config = config
        self._group = config.subscription.id
        self._meter = Meter(str(config.subscription))
        self._handler = handler
        self._slots: list[Borrower | None] = [None] * len(config.names)
        self.attested = Attestations(len(config.names))
        self._attempts = 0
        self._failures = 0
        self._closing = False
        self.over = False

    def start(self) -> None:
        """Make the borrowers; they look for their leader."""
        self._agent.register(self.config.session, self._received)
        self._agent.add_ticker(self._tick)
        self._agent.add_session(self._group, self.end)
        for slot in range(len(self._slots)):
            self._make(slot)

    @property
    def connected(self) -> bool:
        """Whether every slot's borrower is connected to a leader."""
        return all(
            borrower is not None and borrower.state is BorrowerState.CONNECTED for borrower in self._slots
        )

    @property
    def term(self) -> int:
        """The highest term that a borrower of the session is connected to."""
        return max((borrower.term for borrower in self._slots if borrower is not None), default=0)

    def saw_term(self, term: int) -> None:
        """A term is known to have been issued, from a checkpoint."""
        self._agent.saw_term(self._group, term)

    def post(self, message: SessionToLeader) -> bool:
        """Send a message about cuts to the leader, if there is a connection to it."""
        for borrower in self._slots:
            if borrower is not None and borrower.state is BorrowerState.CONNECTED:
                self._agent.post(borrower.mailbox, message)
                return True
        return False

    def progressed(self, slot: int, event: Progressed) -> None:
        """The handler has consumed a stream up to an offset."""
        self._step(slot, event)

    def failed(self, slot: int, event: Failed) -> None:
        """The handler could not process a message."""
        self._step(slot, event)

    def new_failure(self) -> str:
        """The identity of a failure that was not told before."""
        self._failures += 1
        return f"{self.config.session}#{self._failures}"

    def unsubscribe(self) -> None:
        """Leave in good order: the handler is asked for final progress, then told `ended`."""
        self._closing = True
        for slot in range(len(self._slots)):
            self._step(slot, Unsubscribed())
        self._finish_if_empty()

    def end(self, why: StreamleaseError) -> None:
        """The session is over at once: the handler is told why, and the leader if that still works."""
        if self.over:
            return
        self._handler.failed(why)
        try:
            self.disconnect()
        except Exception:
            log.exception("%s: leaving after a defect", self.config.subscription)
        finally:
            if not self.over:
                self._over()

    def disconnect(self) -> None:
        """Leave at once, with the progress reported so far."""
        self._closing = True
        for slot in range(len(self._slots)):
            self._step(slot, Disconnected())
        self._finish_if_empty()

    # ------------------------------------------------------------ inside

    def _make(self, slot: int) -> None:
        self._attempts += 1
        config = self.config
        borrower = Borrower(
            Identity(
                group=self._group,
                borrower=f"b-{self._token()}",
                session=config.session,
                name=config.names[slot],
                arrival=config.arrival,
                attempt=self._attempts,
                host=self._agent.where,
            ),
            config.borrower,
        )
        self._slots[slot] = borrower

        def receive(message: FromLeader | CutRead) -> None:
            with self._surely("a message of the leader"):
                if isinstance(message, PingResponse):
                    self._meter.answered(borrower.identity.borrower, self._clock())
                self._step_borrower(slot, borrower, Received(_for_borrower(message)))

        self._agent.register(borrower.identity.borrower, receive)
        self._step(slot, Started())

    @contextlib.contextmanager
    def _surely(self, what: str) -> Iterator[None]:
        """What the agent calls raises nothing: a defect ends this session, and no other one of the agent."""
        try:
            yield
        except Exception as error:
            log.exception("%s: %s", self.config.subscription, what)
            self.end(task_failed(str(self.config.subscription), what, error))

    def _tick(self, now: int) -> None:
        with self._surely("a tick"):
            for slot in range(len(self._slots)):
                self._step(slot, Tick())

    def _received(self, message: FromLeader | CutRead) -> None:
        with self._surely("an answer about cuts"):
            if isinstance(message, CutFixed | CutFinished):
                for entry in message.progress:
                    slot = self.attested.slot_of(entry.stream)
                    self.attested.add(slot, entry.stream, entry.lease_epoch, entry.offset)
            if isinstance(message, CutFixed | CutFinished | CutResumed | CutRead) and not self.over:
                self._handler.received(message)

    def _step(self, slot: int, event: Event) -> None:
        borrower = self._slots[slot]
        if borrower is not None:
            self._step_borrower(slot, borrower, event)

    def _step_borrower(self, slot: int, borrower: Borrower, event: Event) -> None:
        if self._slots[slot] is not borrower:
            return
        for effect in borrower.step(event, self._clock()):
            self._carry_out(slot, borrower, effect)

    def _carry_out(self, slot: int, borrower: Borrower, effect: Effect) -> None:
        match effect:
            case FindLeader():

                def found(mailbox: str, term: int) -> None:
                    with self._surely("the leader that was found"):
                        attested = self.attested.of(slot)
                        self._step_borrower(slot, borrower, LeaderFound(mailbox, term, attested))

                self._agent.find_leader(self._group, found)
            case SendToLeader():
                if isinstance(effect.message, Ping):
                    self._meter.pinged(borrower.identity.borrower, self._clock())
                self._agent.post(effect.mailbox, effect.message)
            case StreamGranted():
                self._meter.granted(effect.stream)
                self.attested.add(slot, effect.stream, effect.lease_epoch, effect.progress)
                self._handler.granted(slot, effect)
            case ProgressAcknowledged():
                self.attested.add(slot, effect.stream, effect.lease_epoch, effect.offset)
                self._handler.acknowledged(slot, effect)
            case FailureAnswered():
                done = effect.offset + (effect.verdict == "passed")
                self.attested.add(slot, effect.stream, effect.lease_epoch, done)
                self._handler.answered(slot, effect)
            case StreamRevoking():
                self._meter.revoking(effect.stream, self._clock())
                self._handler.revoking(slot, effect)
            case StreamGone():
                self._meter.gone(effect.stream, self._clock())
                self._handler.gone(slot, effect)
            case Ended():
                self._ended(slot, borrower, effect)
            case _:
                assert_never(effect)

    def _ended(self, slot: int, borrower: Borrower, effect: Ended) -> None:
        self._agent.unregister(borrower.identity.borrower)
        self._meter.ended(borrower.identity.borrower, effect.reason, again=effect.again)
        self._slots[slot] = None
        if effect.again and not self._closing:
            self._make(slot)
        elif effect.reason in ("replaced", "deleted") and not self._closing:
            self._over()
            self._handler.failed(self._why_over(borrower.identity.name, effect.reason))
        else:
            self._finish_if_empty()

    def _why_over(self, name: str, reason: str) -> StreamleaseError:
        if reason == "deleted":
            return UnknownGroup(
                f"group {self.config.subscription} was deleted by an operator: subscribe again if it is "
                f"to begin anew"
            )
        return Fenced(
            f"borrower '{name}' of {self.config.subscription} was replaced: "
            f"another process runs under the same name; stop one of the two"
        )

    def _finish_if_empty(self) -> None:
        if self._closing and not self.over and all(borrower is None for borrower in self._slots):
            self._over()
            self._handler.ended()

    def _over(self) -> None:
        self.over = True
        self._closing = True
        self._agent.unregister(self.config.session)
        self._agent.remove_ticker(self._tick)
        self._agent.remove_session(self.end)
        for slot, borrower in enumerate(self._slots):
            if borrower is not None:
                self._agent.unregister(borrower.identity.borrower)
                self._slots[slot] = None


def _for_borrower(message: FromLeader | CutRead) -> LeaderToBorrower:
    if isinstance(message, CutFixed | CutFinished | CutResumed | CutRead | CommandReply):
        raise TypeError(f"a {message.type} is not for a borrower")
    return message
