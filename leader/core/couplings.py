"""Couplings: what happens in one part of a leader, and what the others then do.

`COUPLINGS` is the whole of it: for each kind of fact the reactions to it, in order (`reactions`). A reaction
calls one part, where more may happen; `settle` hands facts on, the oldest first, until there are none. That
ends, since every circle in the table passes a state that has no way back: leases end, streams are finished,
borrowers are gone.

`FOLLOWS` is the row of `Done` by what an act came to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlease.leader.core import happenings as h
from streamlease.leader.core import reactions as r
from streamlease.leader.core.reactions import Parts
from streamlease.leader.core.state import outcomes as o

Reaction = Callable[[Parts, Any, int], None]

FOLLOWS: dict[type[o.Outcome], tuple[Reaction, ...]] = {
    o.Rebalanced: (r.plan_now,),
    o.SteppedDown: (r.step_down,),
    o.GroupPaused: (r.ask_back_all_unwanted,),
    o.Resumed: (r.ask_back_all_unwanted, r.plan_now),
    o.Drained: (r.ask_back_all_unwanted, r.plan_now),
    o.Undrained: (r.ask_back_all_unwanted, r.plan_now),
    o.Moved: (r.ask_back_all_unwanted, r.plan_now),
    o.StreamTaken: (r.take_by_force,),
    o.Retried: (r.go_on_behind_failure,),
    o.SentToDeadLetters: (r.go_on_behind_failure,),
    o.Reset: (r.begin_new_lines,),
    o.HoldsNothing: (),
    o.Deleted: (r.end,),
}


def follow(leader: Parts, fact: h.Done, now: int) -> None:
    for react in FOLLOWS[type(fact.outcome)]:
        react(leader, fact.outcome, now)


COUPLINGS: dict[type[h.Happening], tuple[Reaction, ...]] = {
    # peers
    h.Connected: (r.take_over_streams, r.forget_session_before, r.plan_soon),
    h.Overdue: (r.lose_overdue,),
    h.BorrowerLost: (
        r.free_its_streams,
        r.forget_its_session,
        r.plan_soon,
        r.forget_what_was_set_for_it,
        r.plan_at_once_if_clean,
    ),
    # leases
    h.GrantsAnswered: (r.take_what_was_held_back, r.ask_back_if_unwanted),
    h.GivenBack: (r.advance_one, r.plan_at_end_of_turn),
    h.Freed: (r.advance,),
    h.TakenByForce: (r.give_to_another,),
    # streams
    h.Passed: (r.advance,),
    h.Advanced: (r.forget_hand_overs, r.plan_soon),
    h.Leaving: (r.ask_back,),
    h.Gone: (r.forget_leases, r.forget_failures),
    h.SituationChanged: (r.plan_soon,),
    # failures
    h.FailureStops: (r.ask_back_stopped,),
    h.DeadLetterStands: (r.tell_owner_or_plan, r.advance_one),
    # plans
    h.PlanDue: (r.ask_back_moved, r.make_plan),
    h.RoomToAsk: (r.ask_back_all_unwanted, r.plan_now),
    h.Planned: (r.grant_and_revoke, r.see_what_is_left),
    # operators
    h.Done: (r.take_as_many_as_needed, follow),
}


def settle(leader: Parts, now: int) -> None:
    """Hand on what happened, and what follows from it, until nothing does."""
    ledger = leader.ledger
    while ledger.happenings:
        fact = ledger.next_happening()
        for react in COUPLINGS[type(fact)]:
            react(leader, fact, now)
