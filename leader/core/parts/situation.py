"""The situation that a plan is made from: pure functions over what the parts hold now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from streamlease.leader.core.generations import Listing
from streamlease.leader.core.lease import Lease, LeaseState
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.planning.planner import Situation
from streamlease.leader.core.state.group_state import GroupState


def free(durable: GroupState, leases: Collection[str]) -> list[str]:
    """The streams that nobody has and somebody may have."""
    return [
        stream
        for stream, progress in durable.streams.items()
        if stream not in leases and not (progress.waiting or progress.finished or progress.blocked)
    ]


def now(
    durable: GroupState,
    peers: Peers,
    leases: Mapping[str, Lease],
    listing: Listing | None,
    free: Collection[str],
    pins: Mapping[str, str],
    *,
    taking: bool,
) -> Situation:
    """Who has what, and what is to be had; streams with a pin stand outside of it.

    Args:
        taking: whether streams may be taken from their owners.
    """
    held: dict[str, set[str]] = {name: set() for name in peers if peers.takes(name)}
    fixed: set[str] = set()
    leaving: list[str] = []
    for stream, lease in leases.items():
        if not peers[lease.name].borrower:
            taking = False  # owners of the former term may still come back
        elif stream in pins:
            continue
        elif lease.state in (LeaseState.REVOKING, LeaseState.REVOKED) or lease.name not in held:
            if listing is None or not listing.at_end(durable, stream):
                leaving.append(stream)
        else:
            held[lease.name].add(stream)
            if lease.state is LeaseState.GRANTING:
                fixed.add(stream)
    if not taking:
        fixed.update(*held.values())
    return Situation(held, [stream for stream in free if stream not in pins], fixed, leaving)


def staying(leases: Mapping[str, Lease], pins: Collection[str]) -> Counter[str]:
    """How many streams each borrower has that it is not asked to give back; those with a pin left out."""
    states = (LeaseState.GRANTING, LeaseState.GRANTED)
    return Counter(lease.name for s, lease in leases.items() if lease.state in states and s not in pins)
