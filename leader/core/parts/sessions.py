"""Sessions: their cuts, which they fix, finish and resume (`cuts` has the rules, which are pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlease.leader.core import cut_decisions, healing
from streamlease.leader.core.happenings import Passed
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.parts.streams import Streams
from streamlease.leader.core.state.records import SessionForgotten
from streamlease.protocol.messages import FinishCut, FixCut, ResumeCut


@dataclass(slots=True)
class Sessions:
    """The sessions of a group and when they fixed their cuts."""

    ledger: Ledger
    peers: Peers
    leases: Leases
    streams: Streams
    cut_since: dict[str, int] = field(default_factory=dict)
    """Session -> when its newest cut was fixed; those of former terms count from the recovery."""

    def recovered(self, now: int) -> None:
        """Forget the sessions that nobody will come back for."""
        self.cut_since = dict.fromkeys(self.ledger.durable.sessions, now)
        for session in list(self.ledger.durable.sessions):
            self.forget_absent(session)

    def forget_absent(self, session: str) -> None:
        """Forget a session without borrowers: its open cut is void, and pins the ends of its ranges."""
        if not self.peers.has_session(session):
            if session in self.ledger.durable.sessions:
                self.ledger.record(SessionForgotten(session=session))
            self.cut_since.pop(session, None)

    def accepts(self, message: FixCut | FinishCut | ResumeCut) -> bool:
        """Whether it is of the newest incarnation of its session, and of a cut that this leader can know.

        What is refused because the cut may be lost comes again, with its ranges, once the session is
        connected to this leader.
        """
        accepted = self.peers.is_newest(message.session, message.arrival) and (
            not isinstance(message, FinishCut) or cut_decisions.is_certain(self.ledger.term, message)
        )
        if not accepted:
            self.ledger.refuse()
        return accepted

    def fix(self, sender: str, message: FixCut, now: int) -> None:
        """Fix the ranges of a cut, as far as the session may read them."""
        durable = self.ledger.durable
        self._close(message.session, message.finished)
        if cut_decisions.is_late(durable, message):
            self.ledger.refuse()
        elif self.peers.hears_session(message.session) and durable.operated.paused is None:
            opened = cut_decisions.opened(durable, self.leases.view, message)
            if opened is not None:
                self.ledger.record(opened)
                self.cut_since[message.session] = now
        self.ledger.send(sender, cut_decisions.fixed(durable, self.leases.view, self.ledger.term, message))

    def finish(self, sender: str, message: FinishCut) -> None:
        """A cut went through its sink."""
        self._close(message.session, message.finished)
        durable, leases = self.ledger.durable, self.leases.view
        self.ledger.send(sender, cut_decisions.finished(durable, leases, self.ledger.term, message))

    def resume(self, sender: str, message: ResumeCut) -> None:
        """A session that was restarted comes back to its cut."""
        # Who comes to a cut has had all before it go through the sink; a failover may have lost that.
        self._close(message.session, message.cut - 1)
        lost = healing.reopened(self.ledger.durable, self.leases, message)
        if lost is not None:
            self.ledger.record(lost)
        self.ledger.send(sender, cut_decisions.resumed(self.ledger.durable, self.ledger.term, message))

    def _close(self, session: str, finished: int) -> None:
        closed = cut_decisions.closed(self.ledger.durable, session, finished)
        if closed is not None:
            # Those of a cut do not wait, so only what is sealed can be finished.
            sealed = self.streams.sealed(self.ledger.durable.sessions[session].ranges)
            self.ledger.record(closed)
            if sealed:
                self.ledger.happened(Passed(sealed))
