"""A session: one shared subscription of one query or program, with one borrower per slot.

The slots keep the borrowers alive (`borrower_slot`); the session begins and ends them together, and speaks
for all of them where cuts are concerned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from streamlease.agent.membership.borrower_slot import AgentLike, BorrowerSlot, Handler, SessionConfig
from streamlease.agent.membership.metrics import Meter
from streamlease.borrower.attested import Attestations
from streamlease.borrower.events import Disconnected, Ended, Unsubscribed
from streamlease.borrower.life import BorrowerState
from streamlease.borrower.machine import Borrower
from streamlease.catalog.shown import Removal
from streamlease.protocol.errors import Fenced, StreamleaseError, UnknownGroup
from streamlease.protocol.ids import Token, random_token
from streamlease.protocol.messages import (
    CommandAstray,
    CutFinished,
    CutFixed,
    CutRead,
    CutResumed,
    FromLeader,
    SessionToLeader,
)
from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.tasks import task_failed

log = logging.getLogger(__name__)


class Session:
    """The slots of one subscription.

    Args:
        clock: seconds of a clock that does not run backwards; that of the event loop unless given.
        token: gives a fresh token for the id of each borrower.
    """

    def __init__(
        self,
        agent: AgentLike,
        config: SessionConfig,
        handler: Handler,
        *,
        clock: Callable[[], float] | None = None,
        token: Token = random_token,
    ) -> None:
        self._agent = agent
        self.config = config
        self._handler = handler
        self.attested = Attestations(len(config.names))
        meter = Meter(str(config.subscription))
        clock = clock or asyncio.get_running_loop().time
        self.slots = [
            BorrowerSlot(
                number, agent, config, handler, self.attested, meter,
                clock=clock, token=token, defect=self._defect, ended=self._slot_ended,
            )
            for number in range(len(config.names))
        ]  # fmt: skip
        self._failures = 0
        self._ticked_at: int | None = None
        self._closing = False
        self.over = False
        self._shown: list[Removal] = []
        """What takes it out of the catalog."""

    def start(self) -> None:
        """Make the borrowers; they look for their leader."""
        self._agent.mail.register(self.config.session, self._received)
        self._agent.add_ticker(self._tick)
        self._agent.add_session(self.config.subscription.id, self.end)
        subscription, shown = self.config.subscription, self._agent.shown
        self._shown = [shown.subscription(subscription.filter, subscription.group)]
        query = self.config.query_name
        self._shown += [shown.borrower(str(subscription), name, query) for name in self.config.names]
        for slot in self.slots:
            slot.begin()

    @property
    def connected(self) -> bool:
        """Whether every slot's borrower is connected to a leader."""
        return len(self._led()) == len(self.slots)

    @property
    def term(self) -> int:
        """The highest term that a borrower of the session is connected to."""
        return max((slot.borrower.term for slot in self.slots if slot.borrower is not None), default=0)

    def post(self, message: SessionToLeader) -> bool:
        """Send a message about cuts to the leader, if there is a connection to it."""
        led = self._led()
        if led:
            self._agent.mail.post(led[0].mailbox, message)
        return bool(led)

    def new_failure(self) -> str:
        """The identity of a failure that was not told before."""
        self._failures += 1
        return f"{self.config.session}#{self._failures}"

    def unsubscribe(self) -> None:
        """Leave in good order: the handler is asked for final progress, then told `ended`."""
        self._leave(Unsubscribed())

    def disconnect(self) -> None:
        """Leave at once, with the progress reported so far."""
        self._leave(Disconnected())

    def abandon(self) -> None:
        """Another process carries the session on: nobody is told anything."""
        if not self.over:
            self._over()

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

    # ------------------------------------------------------------ inside

    def _led(self) -> list[Borrower]:
        """The borrowers that are connected to a leader."""
        borrowers = [slot.borrower for slot in self.slots if slot.borrower is not None]
        return [one for one in borrowers if one.state is BorrowerState.CONNECTED]

    def _leave(self, event: Unsubscribed | Disconnected) -> None:
        self._closing = True
        for slot in self.slots:
            with collector_at_rest(0 if slot.borrower is None else len(slot.borrower.streams)):
                slot.step(event)
        self._finish_if_empty()

    def _defect(self, what: str, error: Exception) -> None:
        """What the agent calls raises nothing: a defect ends this session, and no other one of the agent."""
        log.error("%s: %s", self.config.subscription, what, exc_info=error)
        self.end(task_failed(str(self.config.subscription), what, error))

    def _tick(self, now: int) -> None:
        before, self._ticked_at = self._ticked_at, now
        try:
            for slot in self.slots:
                slot.tick(0 if before is None else now - before)
        except Exception as error:
            self._defect("a tick", error)

    def _received(self, message: FromLeader | CutRead | CommandAstray) -> None:
        try:
            if isinstance(message, CutFixed | CutFinished):
                for entry in message.progress:
                    slot = self.attested.slot_of(entry.stream)
                    self.attested.add(slot, entry.stream, entry.lease_epoch, entry.offset)
            if isinstance(message, CutFixed | CutFinished | CutResumed | CutRead) and not self.over:
                self._handler.received(message)
        except Exception as error:
            self._defect("an answer about cuts", error)

    def _slot_ended(self, slot: BorrowerSlot, ended: Ended) -> None:
        if self._closing:
            self._finish_if_empty()
        elif ended.again:
            slot.begin()
        elif ended.reason in ("replaced", "deleted"):
            self._over()
            self._handler.failed(_why_over(self.config, slot.number, ended.reason))

    def _finish_if_empty(self) -> None:
        if self._closing and not self.over and all(slot.borrower is None for slot in self.slots):
            self._over()
            self._handler.ended()

    def _over(self) -> None:
        self.over = True
        self._closing = True
        self._agent.mail.unregister(self.config.session)
        self._agent.remove_ticker(self._tick)
        self._agent.remove_session(self.end)
        for remove in self._shown:
            remove()
        for slot in self.slots:
            slot.drop()


def _why_over(config: SessionConfig, slot: int, reason: str) -> StreamleaseError:
    if reason == "deleted":
        return UnknownGroup(
            f"group {config.subscription} was deleted by an operator: subscribe again if it is to begin anew"
        )
    return Fenced(
        f"borrower '{config.names[slot]}' of {config.subscription} was replaced: "
        f"another process runs under the same name; stop one of the two"
    )
