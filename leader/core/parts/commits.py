"""What is recorded of the progress that the owners of leases report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlease.leader.core.lease import Lease
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.state.records import Committed, Truncated
from streamlease.protocol.messages import Progress


def take(ledger: Ledger, leases: Mapping[str, Lease], peer: Peer, progress: Iterable[Progress]) -> None:
    """Record progress that is above what is committed; only of leases that the peer has."""
    streams = ledger.durable.streams
    entries = [
        entry
        for entry in progress
        if (lease := leases.get(entry.stream)) is not None
        and lease.name == peer.name
        and lease.lease_epoch == entry.lease_epoch
        and entry.offset > streams[entry.stream].committed
    ]
    for entry in entries:
        _pass_holes(ledger, entry)
    offsets = {
        entry.stream: entry.offset for entry in entries if entry.offset > streams[entry.stream].committed
    }
    if offsets:
        ledger.record(Committed(offsets=offsets))


def _pass_holes(ledger: Ledger, entry: Progress) -> None:
    """What Redis lost before it was consumed is counted, as what retention removed is; each hole once."""
    stream = ledger.durable.streams[entry.stream]
    for start, end in entry.holes:
        if stream.committed < end <= entry.offset:
            if stream.committed < start:
                ledger.record(Committed(offsets={entry.stream: start}))
            ledger.record(Truncated(floors={entry.stream: end}))
