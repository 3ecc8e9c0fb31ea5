"""A slot of a session: it keeps one borrower alive, and carries its effects out.

A borrower that has ended is followed by a new one with a new id, unless the session is over. What the
borrower says to the leader goes into the mail; what it says of streams goes to the handler, which is the
session-side facade of EIP-0028.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, assert_never

from streamlease.agent.membership.metrics import Meter
from streamlease.borrower.attested import Attestations
from streamlease.borrower.events import (
    Effect,
    Ended,
    Event,
    FailureAnswered,
    FindLeader,
    LeaderFound,
    ProgressAcknowledged,
    Received,
    SendToLeader,
    Started,
    StreamGone,
    StreamGranted,
    StreamRevoking,
    Tick,
)
from streamlease.borrower.life import STOOD_STILL, BorrowerConfig
from streamlease.borrower.link import Identity
from streamlease.borrower.machine import Borrower
from streamlease.catalog.shown import Shown
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import Token
from streamlease.protocol.messages import (
    CommandAstray,
    CutRead,
    FromLeader,
    Grants,
    LeaderToBorrower,
    LeaderToSession,
    Ping,
    PingResponse,
    ToLeader,
)
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.collecting import collector_at_rest

Receive = Callable[[FromLeader | CutRead | CommandAstray], None]


class MailLike(Protocol):
    """See `streamlease.agent.membership.mail.Mail`."""

    @property
    def post(self) -> Callable[[str, ToLeader], None]:
        """Put a message on its way, in order, without waiting."""
        ...

    def register(self, receiver: str, receive: Receive) -> None:
        """Deliver messages for the borrower or session `receiver` to `receive`."""

    def unregister(self, receiver: str) -> None:
        """Drop what still comes for `receiver`."""


class LeadersLike(Protocol):
    """See `streamlease.agent.membership.leader_search.LeaderSearch`."""

    def find(self, group: str, found: Callable[[str, int], None]) -> None:
        """Look for the leader of `group`; `found(mailbox, term)` is called if there is one now."""


class AgentLike(Protocol):
    """What a session needs of the agent of its process; see `streamlease.agent.membership.agent.Agent`."""

    @property
    def where(self) -> str:
        """Host and process, for people."""
        ...

    @property
    def mail(self) -> MailLike:
        """Letters to and from this process."""
        ...

    @property
    def leaders(self) -> LeadersLike:
        """Where leaders are."""
        ...

    @property
    def shown(self) -> Shown:
        """What the process shows of itself in the catalog."""
        ...

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
    query_name: str = ""
    """What its author calls the query; the catalog shows it."""


class BorrowerSlot:
    """One of a session's slots.

    Args:
        number: its place among the session's slots.
        attested: of the session, for a leader that has lost something.
        clock: seconds of a clock that does not run backwards.
        token: gives a fresh token for the id of each borrower.
        defect: called with what failed, and why; what the agent calls raises nothing.
        ended: called when a borrower has ended, and the slot has none.
    """

    def __init__(
        self,
        number: int,
        agent: AgentLike,
        config: SessionConfig,
        handler: Handler,
        attested: Attestations,
        meter: Meter,
        *,
        clock: Callable[[], float],
        token: Token,
        defect: Callable[[str, Exception], None],
        ended: Callable[[BorrowerSlot, Ended], None],
    ) -> None:
        self.number = number
        self.borrower: Borrower | None = None
        self._agent = agent
        self._mail = agent.mail
        self._config = config
        self._group = config.subscription.id
        self._handler = handler
        self._attested = attested
        self._meter = meter
        self._clock = clock
        self._token = token
        self._defect = defect
        self._told_ended = ended
        self._attempts = 0

    def begin(self) -> None:
        """Make a borrower; it looks for its leader."""
        self._attempts += 1
        config = self._config
        identity = Identity(
            group=self._group,
            borrower=f"b-{self._token()}",
            session=config.session,
            name=config.names[self.number],
            arrival=config.arrival,
            attempt=self._attempts,
            host=self._agent.where,
        )
        borrower = self.borrower = Borrower(identity, config.borrower)
        self._mail.register(identity.borrower, partial(self._receive, borrower))
        self.step(Started())

    def drop(self) -> None:
        """Have no borrower any more; nobody is told."""
        if self.borrower is not None:
            self._mail.unregister(self.borrower.identity.borrower)
            self.borrower = None

    def step(self, event: Event) -> None:
        """Something happened that concerns the borrower, if there is one."""
        if self.borrower is not None:
            self._step(self.borrower, event)

    def tick(self, since: int) -> None:
        """Time has passed: so many milliseconds since the slot was told so before."""
        borrower = self.borrower
        if borrower is not None and (since >= STOOD_STILL or self._now() >= borrower.due_at):
            self._step(borrower, Tick(since))

    def _now(self) -> int:
        """Milliseconds of the clock."""
        return int(self._clock() * 1000)

    def _step(self, borrower: Borrower, event: Event) -> None:
        if self.borrower is borrower:
            for effect in borrower.step(event, self._now()):
                self._carry_out(borrower, effect)

    def _receive(self, borrower: Borrower, message: FromLeader | CutRead | CommandAstray) -> None:
        try:
            if not isinstance(message, LeaderToBorrower):
                raise TypeError(f"a {message.type} is not for a borrower")
            if isinstance(message, PingResponse):
                self._meter.answered(borrower.identity.borrower, self._now())
            streams = len(message.streams) if isinstance(message, Grants) else 0
            with collector_at_rest(streams):
                self._step(borrower, Received(message))
        except Exception as error:
            self._defect("a message of the leader", error)

    def _found(self, borrower: Borrower, mailbox: str, term: int) -> None:
        try:
            self._step(borrower, LeaderFound(mailbox, term, self._attested.of(self.number)))
        except Exception as error:
            self._defect("the leader that was found", error)

    def _carry_out(self, borrower: Borrower, effect: Effect) -> None:
        match effect:
            case FindLeader():
                self._agent.leaders.find(self._group, partial(self._found, borrower))
            case SendToLeader():
                if isinstance(effect.message, Ping):
                    self._meter.pinged(borrower.identity.borrower, self._now())
                self._mail.post(effect.mailbox, effect.message)
            case StreamGranted():
                self._meter.granted(effect.stream)
                self._attested.add(self.number, effect.stream, effect.lease_epoch, effect.progress)
                self._handler.granted(self.number, effect)
            case ProgressAcknowledged():
                self._handler.acknowledged(self.number, effect)
            case FailureAnswered():
                self._handler.answered(self.number, effect)
            case StreamRevoking():
                self._meter.revoking(effect.stream, self._now())
                self._handler.revoking(self.number, effect)
            case StreamGone():
                self._meter.gone(effect.stream, self._now())
                if effect.acknowledged is not None:
                    self._attested.add(self.number, effect.stream, effect.lease_epoch, effect.acknowledged)
                self._handler.gone(self.number, effect)
            case Ended():
                self._meter.ended(borrower.identity.borrower, effect.reason, again=effect.again)
                self.drop()
                self._told_ended(self, effect)
            case _:
                assert_never(effect)
