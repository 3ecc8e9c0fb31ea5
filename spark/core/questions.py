"""What a query asks its leader: sent again and again, and perhaps to another leader, until it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.protocol.messages import (
    CutFinished,
    CutFixed,
    CutResumed,
    FinishCut,
    FixCut,
    LeaderToSession,
    ResumeCut,
    SessionToLeader,
)

RESEND_SECONDS = 0.5
ANSWER_SECONDS = 2.0
"""How long one call waits for the leader; the next call goes on waiting."""

CONNECT_SECONDS = 0.05
"""How often it is looked whether the borrowers are connected."""


@dataclass(slots=True)
class Question:
    """One question, until it is answered or given up."""

    message: SessionToLeader
    seconds: float
    """For how long it is asked."""
    give_up: float
    again_at: float

    @classmethod
    def ask(cls, message: SessionToLeader, seconds: float, now: float) -> Question:
        """Ask from `now` on."""
        return cls(message, seconds, now + seconds, now)

    def is_due(self, now: float, *, connected: bool) -> bool:
        """Whether it is to be sent now; it is taken as sent, then."""
        if now < self.again_at:
            return False
        self.again_at = now + (RESEND_SECONDS if connected else CONNECT_SECONDS)
        return connected

    def is_answered_by(self, answer: LeaderToSession) -> bool:
        """Whether that is the answer, and not one to something that was asked before."""
        match self.message, answer:
            case FixCut(), CutFixed():
                return answer.proposal == self.message.proposal
            case FinishCut(), CutFinished():
                return answer.finished >= self.message.finished
            case ResumeCut(), CutResumed():
                return answer.cut == self.message.cut
            case _:
                return False
