"""Leases: every event in every state, and nothing is told before it is durable."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from streamlease.leader.core.events import Effect, Persist, Send
from streamlease.leader.core.lease import LEASE_TRANSITIONS, LeaseEvent, LeaseState
from streamlease.leader.core.state.records import TermStarted
from streamlease.protocol.messages import (
    Grant,
    ProgressCommitted,
)
from tests.leader.make import (
    S0,
    Rig,
    finished,
    goodbye,
    only,
    progress,
)

L, V = LeaseState, LeaseEvent


def holding(state: LeaseState) -> Rig:
    """A leader with one stream whose lease, of borrower b1, is in `state`."""
    rig = Rig()
    rig.join("b1")
    rig.streams(S0)
    rig.settle()
    if state is L.GRANTING:
        return rig
    rig.accept()
    if state is L.GRANTED:
        return rig
    rig.join("b2", name="a")  # of two equals, the first by name keeps the odd stream
    rig.join("b3", name="b")
    revoke(rig)
    if state is L.REVOKING:
        return rig
    rig.hear(progress("b1", S0, 1, 5, final=True))
    if state is L.REVOKED:
        return rig
    rig.leader.peers._rows.pop("a"), rig.leader.peers._rows.pop("b")
    rig.hear(finished("b1", S0, 1))
    rig.hear(goodbye("b1"))
    return rig


def revoke(rig: Rig) -> list[Effect]:
    """Decide to revoke S0, as a plan would."""
    lease = rig.leader.leases.get(S0)
    if lease is None or not rig.leader.leases._move(S0, lease, V.REVOKE_DECIDED):
        return []
    lease.since = rig.now
    return []


CAUSES: dict[LeaseEvent, Callable[[Rig], list[Effect]]] = {
    V.PROGRESS: lambda rig: rig.hear(progress("b1", S0, 1, 7)),
    V.FINAL_PROGRESS: lambda rig: rig.hear(progress("b1", S0, 1, 7, final=True)),
    V.REVOKE_DECIDED: revoke,
    V.REVOKE_FINISHED: lambda rig: rig.hear(finished("b1", S0, 1)),
    V.OWNER_LOST: lambda rig: rig.hear(goodbye("b1")),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(L, V)), ids=lambda value: value.value)
def test_every_event_in_every_state(state: LeaseState, event: LeaseEvent) -> None:
    rig = holding(state)
    lease = rig.leader.leases.get(S0)
    assert (lease.state if lease is not None else L.ENDED) is state
    before, refused = rig.frozen(), rig.leader.ledger.refused
    CAUSES[event](rig)
    target = LEASE_TRANSITIONS.get((state, event))
    if target is None:
        assert rig.frozen() == before
        assert rig.leader.ledger.refused > refused or state is L.ENDED
    else:
        assert lease is not None
        assert lease.state is target
        now = rig.leader.leases.get(S0)
        assert (now is lease) is (target is not L.ENDED)


def test_no_lease_goes_back() -> None:
    order = {state: n for n, state in enumerate(L)}
    assert all(order[state] <= order[target] for (state, _), target in LEASE_TRANSITIONS.items())
    assert all(state is not L.ENDED for state, _ in LEASE_TRANSITIONS)
    assert all((state, V.OWNER_LOST) in LEASE_TRANSITIONS for state in L if state is not L.ENDED)


def test_the_term_is_journalled_first() -> None:
    rig = Rig(term=4)
    assert rig.effects == [Persist((TermStarted(term=4, host="host"),))]


def test_what_a_message_tells_is_persisted_before_it_is_sent() -> None:
    rig = Rig()
    rig.join("b1")
    effects = rig.streams(S0)
    kinds = [type(effect) for effect in effects]
    assert kinds == [Persist, Send]
    assert only(effects, Grant).lease_epoch == 1
    effects = rig.hear(progress("b1", S0, 1, 9))
    assert [type(effect) for effect in effects] == [Persist, Send]
    assert only(effects, ProgressCommitted).progress[0].offset == 9
