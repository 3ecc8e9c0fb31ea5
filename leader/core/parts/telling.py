"""What a leader says to the owner of a lease: pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from streamlease.leader.core.lease import Lease, LeaseState
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.peer import Peer
from streamlease.protocol.messages import Grant, Grants, Revoke, Revoked

MANY = 64
"""From so many grants on, which one borrower gets at once, they are one message."""

MOST_TOGETHER = 10_000
"""Most grants in one message."""

Begun = list[tuple[str, Lease]]


def about(
    ledger: Ledger, stream: str, lease: Lease, peer: Peer, retry_after_ms: int
) -> Grant | Revoke | Revoked:
    """The message that belongs to the state of a lease that is not at rest."""
    group, term, lease_epoch = ledger.group, ledger.term, lease.lease_epoch
    if lease.state is LeaseState.REVOKING:
        return Revoke(group=group, borrower=peer.borrower, term=term, stream=stream, lease_epoch=lease_epoch)
    if lease.state is LeaseState.REVOKED:
        return Revoked(group=group, borrower=peer.borrower, term=term, stream=stream, lease_epoch=lease_epoch)
    assert lease.state is LeaseState.GRANTING
    progress = ledger.durable.streams[stream]
    return Grant(
        group=group,
        borrower=peer.borrower,
        term=term,
        stream=stream,
        lease_epoch=lease_epoch,
        progress=progress.committed,
        pinned_end=progress.pinned_end,
        resumes=lease.resumes,
        follows=progress.follows,
        retry_after_ms=retry_after_ms,
    )


def is_plain(ledger: Ledger, stream: str, lease: Lease) -> bool:
    """Whether a stream is only to be granted, and nothing is to be said of it."""
    progress = ledger.durable.streams[stream]
    plain = progress.pinned_end is None and progress.failure is None
    return plain and lease.state is LeaseState.GRANTING


def apart(ledger: Ledger, leases: Begun) -> tuple[list[Begun], Begun]:
    """Those that may be granted in one message each, if they are many; and those that go alone."""
    together = [one for one in leases if is_plain(ledger, *one)] if len(leases) >= MANY else []
    told = {stream for stream, _ in together}
    messages = [together[i : i + MOST_TOGETHER] for i in range(0, len(together), MOST_TOGETHER)]
    return messages, [one for one in leases if one[0] not in told]


def granted(ledger: Ledger, leases: Sequence[tuple[str, Lease]], peer: Peer) -> Grants:
    """Many grants in one, of streams with nothing out of the ordinary."""
    known = ledger.durable.streams
    streams = tuple(stream for stream, _ in leases)
    return Grants(
        group=ledger.group,
        borrower=peer.borrower,
        term=ledger.term,
        streams=streams,
        lease_epochs=tuple(lease.lease_epoch for _, lease in leases),
        offsets=tuple(known[stream].committed for stream in streams),
        resumes=tuple(lease.resumes for _, lease in leases),
        follows=tuple(known[stream].follows for stream in streams),
    )


def forced_out(ledger: Ledger, stream: str, lease_epoch: int, peer: Peer) -> Revoked:
    """An operator has ended that lease."""
    return Revoked(
        group=ledger.group,
        borrower=peer.borrower,
        term=ledger.term,
        stream=stream,
        lease_epoch=lease_epoch,
        forced=True,
    )
