"""What operators have set, as far as it concerns who holds which stream: pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from streamlease.leader.core.lease import Lease
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.state.operated import Operated


def is_unwanted(operated: Operated, peers: Peers, stream: str, lease: Lease) -> bool:
    """Whether the holder of a stream is to give it up."""
    if operated.paused is not None or lease.name in operated.drained:
        return True
    pin = operated.pins.get(stream)
    return pin is not None and pin != lease.name and peers.takes(pin)


def next_owner(peers: Peers, leases: Mapping[str, Lease], stream: str, old: Peer) -> Peer | None:
    """Who gets a stream that was taken from `old`: another one, of another session if there is one."""
    counts = dict.fromkeys((name for name in peers if peers.takes(name)), 0)
    for lease in leases.values():
        if lease.name in counts:
            counts[lease.name] += 1
    pin = peers.pins().get(stream)

    def rank(name: str) -> tuple[bool, bool, bool, int, str]:
        same_session = peers[name].session == old.session
        return name == old.name, name != pin, same_session, counts[name], name

    return peers[min(counts, key=rank)] if counts else None
