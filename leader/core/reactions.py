"""Reactions: what one part of a leader does about what happened in another. `couplings` says when.

Each calls one part, where more may happen.
"""

from __future__ import annotations

from typing import Protocol

from streamlease.leader.core import happenings as h
from streamlease.leader.core.parts.failures import Failures
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.parts.operators import Operators
from streamlease.leader.core.parts.orders import Orders
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.parts.plans import Plans
from streamlease.leader.core.parts.sessions import Sessions
from streamlease.leader.core.parts.streams import Streams
from streamlease.leader.core.state import outcomes as o


class Parts(Protocol):
    """The parts of a leader, from the ground up: each may look at those before it."""

    ledger: Ledger
    peers: Peers
    failures: Failures
    leases: Leases
    orders: Orders
    streams: Streams
    sessions: Sessions
    plans: Plans
    operators: Operators


# ---------------------------------------------------------------- what follows from facts


def take_over_streams(leader: Parts, fact: h.Connected, now: int) -> None:
    if fact.before is not None:
        leader.leases.take_over(fact.before, fact.peer, now)


def forget_session_before(leader: Parts, fact: h.Connected, now: int) -> None:
    if fact.before is not None:
        leader.sessions.forget_absent(fact.before.session)


def lose_overdue(leader: Parts, fact: h.Overdue, now: int) -> None:
    leader.peers.invalidate(fact.peer, "revocation_timeout")
    leader.peers.lose(fact.peer)


def free_its_streams(leader: Parts, fact: h.BorrowerLost, now: int) -> None:
    leader.leases.free_all(fact.peer, now, clean=fact.clean)


def forget_its_session(leader: Parts, fact: h.BorrowerLost, now: int) -> None:
    leader.sessions.forget_absent(fact.peer.session)


def forget_what_was_set_for_it(leader: Parts, fact: h.BorrowerLost, now: int) -> None:
    if fact.clean:
        leader.operators.forget_borrower(fact.peer.name)


def plan_at_once_if_clean(leader: Parts, fact: h.BorrowerLost, now: int) -> None:
    if fact.clean:
        leader.plans.want_at_end_of_turn(now)


def advance(leader: Parts, fact: h.Freed | h.Passed, now: int) -> None:
    leader.streams.advance(fact.streams)


def advance_one(leader: Parts, fact: h.GivenBack | h.DeadLetterStands, now: int) -> None:
    leader.streams.advance((fact.stream,))


def plan_at_end_of_turn(leader: Parts, fact: h.GivenBack, now: int) -> None:
    leader.plans.want_at_end_of_turn(now)


def give_to_another(leader: Parts, fact: h.TakenByForce, now: int) -> None:
    leader.orders.give_to_another(fact.stream, fact.owner, now)


def take_what_was_held_back(leader: Parts, fact: h.GrantsAnswered, now: int) -> None:
    leader.plans.grants_answered(now)


def ask_back_if_unwanted(leader: Parts, fact: h.GrantsAnswered, now: int) -> None:
    leader.orders.ask_back_unwanted(fact.streams, now)


def forget_hand_overs(leader: Parts, fact: h.Advanced, now: int) -> None:
    leader.leases.hand_overs.forget(fact.finished)


def ask_back(leader: Parts, fact: h.Leaving, now: int) -> None:
    leader.orders.ask_back_granted(fact.streams, now)


def ask_back_stopped(leader: Parts, fact: h.FailureStops, now: int) -> None:
    leader.orders.ask_back_granted((fact.stream,), now)


def forget_leases(leader: Parts, fact: h.Gone, now: int) -> None:
    for name in leader.leases.forget(fact.streams):
        leader.peers.begin_anew(name)


def forget_failures(leader: Parts, fact: h.Gone, now: int) -> None:
    leader.failures.forget(fact.streams)


def tell_owner_or_plan(leader: Parts, fact: h.DeadLetterStands, now: int) -> None:
    lease = leader.leases.get(fact.stream)
    if lease is None:
        leader.plans.need(now)
    else:
        leader.failures.tell_passed(leader.peers[lease.name], lease.lease_epoch, fact)


def plan_soon(leader: Parts, fact: h.Happening, now: int) -> None:
    leader.plans.need(now)


def ask_back_moved(leader: Parts, fact: h.PlanDue, now: int) -> None:
    leader.orders.ask_back_unwanted(list(leader.ledger.durable.operated.pins), now)


def make_plan(leader: Parts, fact: h.PlanDue, now: int) -> None:
    leader.plans.make(now)


def grant_and_revoke(leader: Parts, fact: h.Planned, now: int) -> None:
    leader.orders.carry_out(fact.plan, now)


def see_what_is_left(leader: Parts, fact: h.Planned, now: int) -> None:
    leader.plans.carried_out(fact.plan)


def take_as_many_as_needed(leader: Parts, fact: h.Done, now: int) -> None:
    leader.plans.weighing.lift_bound()


# ---------------------------------------------------------------- what follows from acts


def ask_back_all_unwanted(leader: Parts, fact: o.Outcome | h.RoomToAsk, now: int) -> None:
    leader.orders.ask_back_unwanted(list(leader.leases), now)


def plan_now(leader: Parts, fact: o.Outcome | h.RoomToAsk, now: int) -> None:
    leader.ledger.happened(h.PlanDue())


def step_down(leader: Parts, outcome: o.SteppedDown, now: int) -> None:
    leader.peers.dismiss("stepped_down", "stepped down by an operator")


def end(leader: Parts, outcome: o.Deleted, now: int) -> None:
    leader.peers.dismiss("deleted", "deleted by an operator")


def take_by_force(leader: Parts, outcome: o.StreamTaken, now: int) -> None:
    leader.orders.take_by_force(outcome.stream)


def go_on_behind_failure(leader: Parts, outcome: o.Retried | o.SentToDeadLetters, now: int) -> None:
    leader.leases.hand_overs.forget((outcome.stream,))
    leader.failures.decided(outcome.stream)


def begin_new_lines(leader: Parts, outcome: o.Reset, now: int) -> None:
    leader.orders.begin_new_lines(outcome.moves, outcome.behind, now)
