"""What operators see of a group: pure functions over the leader's state.

The rows are documents, as they go to whoever asks: `DescribedGroup` and what is in it say their form.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypedDict

from streamlease.leader.core.machine import Leader
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.progress import Failure, StreamProgress
from streamlease.leader.core.state.records import Fate

RESTING = ("granted", "free", "waiting", "finished", "stopped")
"""States of streams that do not change by themselves."""


class FailureView(TypedDict):
    """The message at which a stream stands, if it failed."""

    offset: int
    failures: int
    cause: str
    borrower: str
    fate: Fate
    refused: str | None
    """Why its dead letter could not be written so far."""


class StreamView(TypedDict):
    """One stream of a group."""

    stream: str
    owner: str | None
    session: str | None
    lease_epoch: int
    state: str
    since_ms: int | None
    committed: int
    truncated: int
    open_cut: bool
    pinned_end: int | None
    moved_to: str | None
    why: str
    dead_letters: int
    failure: FailureView | None


class BorrowerView(TypedDict):
    """One borrower; without an id it is the memory of one that the former leader had."""

    id: str | None
    name: str
    session: str
    host: str | None
    streams: int
    last_seen_ms: int
    drained: bool


class LeaderView(TypedDict):
    """Who leads a group."""

    host: str
    term: int


class PausedView(TypedDict):
    """Since when, by whom and until when a group is paused."""

    at_ms: int
    who: str
    until_ms: int | None


class DescribedGroup(TypedDict):
    """One group; what only a leader knows is None, or empty, without one."""

    leader: LeaderView | None
    state: str
    paused: PausedView | None
    streams: list[StreamView]
    borrowers: list[BorrowerView]
    term: int
    expired_at_ms: int | None
    moves: int
    longest_hand_over_ms: int
    longest_take_over_ms: int
    plan: dict[str, Any] | None
    """As `Plan.document`: what a rebalance would do now."""
    strategy: str | None


def of_leader(leader: Leader, now: int) -> DescribedGroup:
    """The view of a live leader at its time `now` (ms)."""
    return around(leader, rows(leader, in_order(leader.durable), now), now)


def in_order(state: GroupState) -> list[str]:
    """The streams of a group in the order of their generations and shards."""
    return sorted(state.streams, key=_order)


def rows(leader: Leader, streams: list[str], now: int) -> list[StreamView]:
    """What is to be seen of those of the streams that the group has."""
    durable = leader.durable
    in_cut = durable.sessions.in_open()
    found = []
    for stream in streams:
        progress = durable.streams.get(stream)
        if progress is None:
            continue
        row = _row(durable, stream, progress, stream in in_cut)
        row["why"] = _why(leader, stream, in_cut, now)
        lease = leader.leases.get(stream)
        if lease is not None:
            row["state"] = lease.state.value if leader.peers[lease.name].connected else "absent"
            row["since_ms"] = now - lease.since
        if row["failure"] is not None:
            row["failure"]["refused"] = leader.failures.unwritten.get(stream)
        found.append(row)
    return found


def around(leader: Leader, streams: list[StreamView], now: int) -> DescribedGroup:
    """The view of a live leader, with these rows of its streams."""
    durable = leader.durable
    view = _of_group(durable)
    view["streams"] = streams
    view["leader"] = {"host": leader.ledger.host, "term": leader.ledger.term}
    held = Counter(lease.name for lease in leader.leases.values())
    view["borrowers"] = [
        {
            "id": peer.borrower or None,
            "name": peer.name,
            "session": peer.session,
            "host": peer.host or None,
            "streams": held[peer.name],
            "last_seen_ms": now - peer.last_seen,
            "drained": peer.name in durable.operated.drained,
        }
        for peer in sorted(leader.peers.values(), key=lambda peer: peer.name)
    ]
    moving = any(stream["state"] not in RESTING for stream in streams)
    if durable.operated.paused is not None:
        view["state"] = "paused"
    elif not view["borrowers"]:
        view["state"] = "idle"
    else:
        view["state"] = "rebalancing" if moving or leader.plans.rebalance_at is not None else "stable"
    view["plan"] = leader.plans.propose().document()
    view["strategy"] = leader.plans.strategy_name
    return view


def of_state(state: GroupState) -> DescribedGroup:
    """The view of a group that has no live leader, from its journal."""
    open_cuts = state.sessions.in_open()
    view = _of_group(state)
    view["streams"] = [_row(state, name, state.streams[name], name in open_cuts) for name in in_order(state)]
    return view


def _of_group(state: GroupState) -> DescribedGroup:
    paused = state.operated.paused
    return {
        "leader": None,
        "state": "no leader" if paused is None else "paused",
        "paused": None
        if paused is None
        else {"at_ms": paused.at, "who": paused.who, "until_ms": paused.until},
        "streams": [],
        "borrowers": [],
        "term": state.term,
        "expired_at_ms": state.expired_at,
        "moves": state.moves,
        "longest_hand_over_ms": state.longest_hand_over_ms,
        "longest_take_over_ms": state.longest_take_over_ms,
        "plan": None,
        "strategy": None,
    }


def _row(state: GroupState, stream: str, progress: StreamProgress, open_cut: bool) -> StreamView:
    return {
        "stream": stream,
        "owner": progress.owner,
        "session": progress.session,
        "lease_epoch": progress.lease_epoch,
        "state": _state(progress),
        "since_ms": None,
        "committed": progress.committed,
        "truncated": progress.truncated,
        "open_cut": open_cut,
        "pinned_end": progress.pinned_end,
        "moved_to": state.operated.pins.get(stream),
        "why": "no leader",
        "dead_letters": progress.dead_letters,
        "failure": _failure(progress),
    }


def _state(progress: StreamProgress) -> str:
    if progress.owner is not None:
        return "absent"
    if progress.failure is not None and progress.blocked:
        return "stopped" if progress.failure.fate == "stop" else "dead-lettering"
    return "finished" if progress.finished else "waiting" if progress.waiting else "free"


def _why(leader: Leader, stream: str, in_cut: dict[str, str], now: int) -> str:
    """Why the stream is not simply consumed, or "" if it is."""
    durable, lease = leader.durable, leader.leases.get(stream)
    if lease is None:
        return _why_free(leader, stream)
    peer = leader.peers[lease.name]
    since = _seconds(now - lease.since)
    if not peer.connected:
        left = _seconds(peer.last_seen + peer.timeout - now)
        return f"its owner of the former term has not come back; it is given up in {left}"
    reasons = []
    session = in_cut.get(stream)
    if session is not None:
        opened = leader.sessions.cut_since.get(session)
        reasons.append("open cut" if opened is None else f"open cut since {_seconds(now - opened)}")
    state = lease.state.value
    if state == "granting":
        reasons.append(f"its owner has not answered the grant since {since}")
    elif state in ("revoking", "revoked"):
        at = leader.leases.taken_at(stream, lease)
        then = "its query is waited for" if at is None else f"it is taken in {_seconds(at - now)}"
        reasons.append(f"asked back since {since}, {_asked_back(leader, stream)}; {then}")
    failure = durable.streams[stream].failure
    retry_at = leader.failures.retry_at.get(stream, now)
    if failure is not None and failure.fate == "retry" and retry_at > now:
        times = f"{len(failure.failures)} times" if len(failure.failures) > 1 else "once"
        reasons.append(
            f"offset {failure.offset} failed {times}, it is tried again in {_seconds(retry_at - now)}"
        )
    pin = durable.operated.pins.get(stream)
    if pin is not None and pin == lease.name:
        reasons.append("moved here by an operator")
    return "; ".join(reasons)


def _asked_back(leader: Leader, stream: str) -> str:
    operated = leader.durable.operated
    if operated.paused is not None:
        return "because the group is paused"
    if leader.leases[stream].name in operated.drained:
        return "because its owner is drained"
    if stream in operated.pins:
        return f"to move to {operated.pins[stream]}"
    if leader.streams.listing is not None and leader.streams.listing.at_end(leader.durable, stream):
        return "because it is sealed and consumed"
    return "to balance"


def _why_free(leader: Leader, stream: str) -> str:
    durable = leader.durable
    progress = durable.streams[stream]
    if progress.finished:
        return "sealed and consumed to its end"
    if progress.waiting:
        before = (
            leader.streams.listing.predecessors.get(stream, ()) if leader.streams.listing is not None else ()
        )
        left = [one for one in before if one in durable.streams and not durable.streams[one].finished]
        of = f": {left[0]}" + (f" and {len(left) - 1} more" if len(left) > 1 else "") if left else ""
        return f"its former generation is not consumed{of}"
    if progress.failure is not None and progress.blocked:
        return _why_blocked(leader, stream, progress.failure)
    if durable.operated.paused is not None:
        return "the group is paused"
    if not any(peer.connected for peer in leader.peers.values()):
        return "there is no borrower"
    if not any(leader.peers.takes(name) for name in leader.peers):
        return "all borrowers are drained"
    return "it is granted in a moment"


def _why_blocked(leader: Leader, stream: str, failure: Failure) -> str:
    what = f"offset {failure.offset} failed {len(failure.failures)} times ({failure.cause})"
    if failure.fate == "stop":
        return f"{what}; it is stopped until 'streamlease group dead-letters retry' or 'put'"
    refused = leader.failures.unwritten.get(stream)
    return f"{what}; its dead letter is being written" + (f": {refused}" if refused else "")


def _seconds(milliseconds: int) -> str:
    return f"{max(0, milliseconds) / 1000:.1f} s"


def _failure(progress: StreamProgress) -> FailureView | None:
    """The message at which the stream stands, if it failed."""
    failure = progress.failure
    if failure is None:
        return None
    return {
        "offset": failure.offset,
        "failures": len(failure.failures),
        "cause": failure.cause,
        "borrower": failure.borrower,
        "fate": failure.fate,
        "refused": None,
    }


def _order(stream: str) -> tuple[str, int, int]:
    space, generation, shard = stream.rsplit(".", 2)
    return space, int(generation), int(shard)
