"""What a leader does with a message: who is heard, and which part it is for."""

from __future__ import annotations

from typing import assert_never

from streamlease.leader.core import cut_decisions
from streamlease.leader.core.couplings import settle
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.reactions import Parts
from streamlease.protocol.messages import (
    Command,
    Disconnect,
    FinishCut,
    FixCut,
    LeaderWanted,
    MessageFailed,
    Ping,
    Progress,
    ResumeCut,
    RevokeFinished,
    SessionToLeader,
    ToLeader,
    UpdateProgress,
)

OfBorrower = Ping | UpdateProgress | RevokeFinished | MessageFailed | Disconnect


def received(leader: Parts, sender: str, message: ToLeader, now: int) -> None:
    """Take a message; answers go to `sender`."""
    match message:
        case Ping() | UpdateProgress() | RevokeFinished() | MessageFailed() | Disconnect():
            leaves = isinstance(message, Disconnect)
            peer = leader.peers.hear(sender, message.borrower, now, leaves=leaves)
            if peer is not None:
                _of_borrower(leader, peer, message, now)
        case FixCut() | FinishCut() | ResumeCut():
            if leader.sessions.accepts(message):
                _of_session(leader, sender, message, now)
        case LeaderWanted():
            leader.streams.believe(message.attested)
            settle(leader, now)
            leader.peers.connect(sender, message, now)
        case Command():
            leader.operators.command(sender, message, now)
        case _:
            assert_never(message)


def _of_borrower(leader: Parts, peer: Peer, message: OfBorrower, now: int) -> None:
    match message:
        case Ping():
            leader.peers.answer_ping(peer)
        case UpdateProgress():
            taken = leader.leases.progress(peer, message.progress, now)
            settle(leader, now)
            leader.peers.acknowledge(peer, taken)
        case RevokeFinished():
            leader.leases.finish(peer, message.stream, message.lease_epoch)
        case MessageFailed():
            entry = Progress(stream=message.stream, lease_epoch=message.lease_epoch, offset=message.offset)
            if leader.leases.progress(peer, (entry,), now):
                settle(leader, now)
                leader.failures.failed(peer, message, now)
        case Disconnect():
            leader.leases.commit(peer, message.progress)
            leader.peers.lose(peer, clean=True)
        case _:
            assert_never(message)


def _of_session(leader: Parts, sender: str, message: SessionToLeader, now: int) -> None:
    match message:
        case FixCut():
            leader.sessions.fix(sender, message, now)
        case FinishCut():
            leader.streams.believe(cut_decisions.went_through(message))
            settle(leader, now)
            leader.sessions.finish(sender, message)
        case ResumeCut():
            leader.sessions.resume(sender, message)
        case _:
            assert_never(message)
