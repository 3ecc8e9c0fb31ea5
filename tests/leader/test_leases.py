"""Leases: the table, resending, deadlines, plans and who is believed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from streamlease.borrower.book import MOST_HOLES, Held
from streamlease.leader.core.events import Effect, Persist, Send, StepDownWanted, Stop, StreamsListed
from streamlease.leader.core.lease import LEASE_TRANSITIONS, LeaseEvent, LeaseState
from streamlease.leader.core.machine import LeaderConfig
from streamlease.leader.core.operated import Acted
from streamlease.leader.core.outcomes import SteppedDown
from streamlease.leader.core.records import HandedOver, StreamsForgotten, TermStarted
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import (
    CommandDone,
    Grant,
    Invalidate,
    LeaderConnectResponse,
    PingResponse,
    Progress,
    ProgressCommitted,
    Revoke,
    Revoked,
    UpdateProgress,
)
from tests.leader.make import (
    CONFIG,
    GROUP,
    S0,
    S1,
    S2,
    S3,
    Rig,
    command,
    finish,
    finished,
    fix,
    goodbye,
    led,
    only,
    part,
    ping,
    progress,
    sent,
    wanted,
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
    if lease is None or not rig.leader.leases._move(lease, V.REVOKE_DECIDED):
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


# ---------------------------------------------------------------- persist before send


def test_the_term_is_journalled_first() -> None:
    rig = Rig(term=4)
    assert rig.effects == [Persist((TermStarted(term=4, host="host"),))]


def test_what_a_message_tells_is_persisted_before_it_is_sent() -> None:
    rig = Rig()
    rig.join("b1")
    rig.streams(S0)
    effects = rig.settle()
    kinds = [type(effect) for effect in effects]
    assert kinds == [Persist, Send]
    assert only(effects, Grant).lease_epoch == 1
    effects = rig.hear(progress("b1", S0, 1, 9))
    assert [type(effect) for effect in effects] == [Persist, Send]
    assert only(effects, ProgressCommitted).progress[0].offset == 9


# ---------------------------------------------------------------- connecting


def test_a_late_copy_of_leader_wanted_is_answered_again_and_changes_nothing() -> None:
    rig = led()
    before = rig.frozen()
    effects = rig.hear(wanted("b1"), "box-b1")
    assert [type(effect) for effect in effects] == [Send]
    assert only(effects, LeaderConnectResponse).borrower == "b1"
    assert rig.frozen() == before


def test_asking_again_is_a_sign_of_life() -> None:
    rig = Rig()
    rig.join("b1")
    rig.now = 9000
    rig.join("b1")
    rig.tick(9999)
    assert "b1" in rig.leader.peers.names
    rig.tick(1)
    assert "b1" not in rig.leader.peers.names


def test_a_later_arrival_under_the_name_takes_the_streams_over_at_once() -> None:
    rig = led()
    effects = rig.hear(wanted("b2", name="n-b1", session="other", arrival=2), "box-b2")
    assert only(effects, Invalidate).model_dump()["reason"] == "replaced"
    assert only(effects, Invalidate).borrower == "b1"
    assert {(g.stream, g.lease_epoch, g.resumes) for g in sent(effects, Grant)} == {
        (S0, 2, None),
        (S1, 2, None),
    }
    assert rig.owners == {S0: "b2", S1: "b2"}


def test_the_same_session_resumes_its_leases() -> None:
    rig = led()
    effects = rig.hear(wanted("b2", name="n-b1", attempt=2), "box-b2")
    assert {(g.stream, g.lease_epoch, g.resumes) for g in sent(effects, Grant)} == {(S0, 2, 1), (S1, 2, 1)}


def test_a_session_that_missed_a_grant_learns_since_when_it_held_the_stream_without_a_break() -> None:
    rig = led()
    rig.hear(wanted("b2", name="n-b1", attempt=2), "box-b2")  # its grants are lost
    effects = rig.hear(wanted("b3", name="n-b1", attempt=3), "box-b3")
    assert {(g.stream, g.lease_epoch, g.resumes) for g in sent(effects, Grant)} == {(S0, 3, 1), (S1, 3, 1)}


def test_a_session_that_gave_a_stream_back_holds_it_anew() -> None:
    rig = led([S0])
    rig.hear(goodbye("b1", (S0, 1, 5)))
    effects = [*rig.hear(wanted("b2", name="n-b1", attempt=2), "box-b2"), *rig.tick(200)]
    assert [(g.lease_epoch, g.progress, g.resumes) for g in sent(effects, Grant)] == [(2, 5, None)]


@pytest.mark.parametrize(
    ("arrival", "attempt", "reason"),
    [(1, 9, "replaced"), (2, 1, "stale"), (2, 2, "stale")],
    ids=["earlier arrival", "earlier attempt", "another borrower in the same attempt"],
)
def test_an_older_borrower_of_the_name_is_refused(arrival: int, attempt: int, reason: str) -> None:
    rig = Rig()
    rig.hear(wanted("b2", name="n", arrival=2, attempt=2), "box-b2")
    before = rig.frozen()
    effects = rig.hear(wanted("b1", name="n", arrival=arrival, attempt=attempt), "box-b1")
    assert only(effects, Invalidate).reason == reason
    assert [e.mailbox for e in effects if isinstance(e, Send)] == ["box-b1"]
    assert rig.frozen() == before


def test_a_late_request_of_an_evicted_borrower_does_not_bring_it_back() -> None:
    rig = led()
    rig.tick(10_000)
    assert dict(rig.leader.peers) == {}
    assert only(rig.hear(wanted("b1"), "box-b1"), Invalidate).reason == "stale"
    assert dict(rig.leader.peers) == {}


@pytest.mark.parametrize(
    "message",
    [ping("zombie"), progress("zombie", S0, 1, 99), finished("zombie", S0, 1)],
    ids=["ping", "progress", "revoke finished"],
)
def test_an_unknown_borrower_is_invalidated_not_answered(message: object) -> None:
    rig = led()
    before = rig.frozen()
    effects = rig.hear(message, "its box")  # type: ignore[arg-type]
    assert only(effects, Invalidate).reason == "unknown"
    assert effects == [Send("its box", only(effects, Invalidate))]
    assert rig.frozen() == before


def test_a_known_borrower_s_ping_is_answered() -> None:
    assert only(led().hear(ping("b1")), PingResponse).term == 1


# ---------------------------------------------------------------- resending and deadlines


def test_each_message_of_a_lease_is_sent_again_until_it_is_answered() -> None:
    rig = Rig()
    rig.join("b1", name="z")
    rig.streams(S0, S1)
    for kind in (Grant, Revoke, Revoked):
        if kind is Grant:
            rig.settle()
        elif kind is Revoke:
            rig.accept()
            rig.join("b2", name="a")
            rig.settle()
            rig.accept("b2")
        else:
            rig.hear(progress("b1", S1, 1, 3, final=True))
        for _ in range(2):
            assert sent(rig.tick(CONFIG.resend_interval - 1), kind) == []
            assert sent(rig.tick(1), kind) != [], kind
            rig.hear(ping("b1"))
            rig.hear(ping("b2"))
    rig.hear(finished("b1", S1, 1))
    rig.accept()
    assert sent(rig.tick(CONFIG.resend_interval), Revoked) == []
    assert rig.owners == {S0: "b1", S1: "b2"}


def test_a_repeated_grant_tells_the_progress_of_now() -> None:
    rig = Rig()
    rig.join("b1")
    rig.streams(S0, start=5)
    rig.settle()
    assert only(rig.tick(CONFIG.resend_interval), Grant).progress == 5


def revoking() -> Rig:
    """b1 is asked for S1, which b2 shall have."""
    rig = led()
    rig.join("b2")
    assert only(rig.settle(), Revoke).stream == S1
    return rig


def keep_alive(rig: Rig, milliseconds: int, *borrowers: str) -> list[Effect]:
    effects: list[Effect] = []
    for _ in range(0, milliseconds, 1000):
        for borrower in borrowers:
            rig.hear(ping(borrower))
        effects += rig.tick(1000)
    return effects


def test_a_borrower_that_lets_the_revocation_deadline_pass_is_evicted() -> None:
    rig = revoking()
    effects = keep_alive(rig, CONFIG.revocation_timeout, "b1", "b2")
    assert only(effects, Invalidate).reason == "revocation_timeout"
    assert "b1" not in rig.leader.peers.names
    rig.settle()
    assert rig.owners == {S0: "b2", S1: "b2"}


def test_progress_does_not_put_the_revocation_deadline_off() -> None:
    rig = revoking()
    offset = 0
    while "b1" in rig.leader.peers.names:
        assert rig.now <= CONFIG.revocation_timeout + 1000
        offset += 1
        rig.hear(progress("b1", S1, 1, offset))
        assert rig.lease_state(S1) == "revoking"
        keep_alive(rig, 1000, "b1", "b2")
    assert rig.committed(S1) == offset


def test_final_progress_does_not_put_the_revocation_deadline_off_for_ever() -> None:
    rig = revoking()
    rig.hear(progress("b1", S1, 1, 3, final=True))
    assert sent(keep_alive(rig, CONFIG.revocation_timeout, "b1", "b2"), Invalidate) != []


def in_a_cut(**more: Any) -> Rig:
    """b1 is asked for S1, which b2 shall have, and has both streams in an open cut."""
    rig = led(**more)
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 10), part(S1, 1, 0, 10)))
    rig.join("b2")
    assert only(rig.settle(), Revoke).stream == S1
    return rig


def test_a_living_query_keeps_its_open_cut_as_long_as_it_wants() -> None:
    rig = in_a_cut()
    assert sent(keep_alive(rig, 5 * CONFIG.revocation_timeout, "b1", "b2"), Invalidate) == []
    assert rig.owners == {S0: "b1", S1: "b1"}
    rig.hear(finish("s-n-b1", 1))
    assert sent(keep_alive(rig, CONFIG.revocation_timeout - 1000, "b1", "b2"), Invalidate) == []
    rig.give_back(S1, 10)
    rig.settle()
    assert rig.owners == {S0: "b1", S1: "b2"}
    assert rig.leader.durable.streams[S1].pinned_end is None


def test_once_the_cut_is_finished_the_revocation_deadline_counts() -> None:
    rig = in_a_cut()
    keep_alive(rig, 5 * CONFIG.revocation_timeout, "b1", "b2")
    rig.hear(finish("s-n-b1", 1))
    assert [one.reason for one in sent(keep_alive(rig, 31_000, "b1", "b2"), Invalidate)] == [
        "revocation_timeout"
    ]


def test_a_silent_query_loses_its_open_cut_although_it_is_asked_for_it() -> None:
    rig = in_a_cut()
    keep_alive(rig, 11_000, "b2")
    rig.settle()
    assert rig.owners == {S0: "b2", S1: "b2"}
    assert rig.leader.durable.streams[S1].pinned_end == 10


def test_a_cut_is_waited_for_by_the_next_leader_as_well() -> None:
    rig = in_a_cut().crash()
    for borrower in ("b1", "b2"):
        rig.join(borrower, attempt=2)
    rig.streams(S0, S1)
    rig.accept()
    rig.settle()
    assert rig.lease_state(S1) == "revoking"
    assert sent(keep_alive(rig, 5 * CONFIG.revocation_timeout, "b1", "b2"), Invalidate) == []
    assert rig.owners == {S0: "b1", S1: "b1"}


def test_an_operator_takes_a_stream_out_of_an_open_cut() -> None:
    rig = in_a_cut()
    keep_alive(rig, 5000, "b1", "b2")
    rig.hear(command("release", stream=S1))
    assert rig.owners == {S0: "b1", S1: "b2"}
    assert rig.leader.durable.streams[S1].pinned_end == 10


def test_a_group_may_say_how_long_an_open_cut_is_waited_for() -> None:
    rig = in_a_cut(options=GroupOptions(revocation_timeout_ms=60_000))
    assert sent(keep_alive(rig, 59_000, "b1", "b2"), Invalidate) == []
    assert [one.reason for one in sent(keep_alive(rig, 2000, "b1", "b2"), Invalidate)] == [
        "revocation_timeout"
    ]


def test_a_leaver_that_held_a_stream_for_long_may_finish_the_others() -> None:
    """It gives streams back one by one; the first one's lease is old, its revocation is not."""
    rig = led()
    keep_alive(rig, 2 * CONFIG.revocation_timeout, "b1")
    rig.hear(progress("b1", S0, 1, 3, final=True))
    assert sent(keep_alive(rig, 2000, "b1"), Invalidate) == []
    assert "b1" in rig.leader.peers.names


def test_a_silent_borrower_is_evicted_however_much_the_others_talk() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    lost = rig.owners[S0]
    other = ({"b1", "b2"} - {lost}).pop()
    for n in range(100):
        rig.hear(ping(other))
        rig.hear(progress(other, S1, 1, n))
        rig.hear(command("describe"))
        rig.tick(100)
    assert lost not in rig.leader.peers.names
    assert rig.now == 10_100
    rig.settle()
    assert rig.owners == {S0: other, S1: other}


def test_each_borrower_has_the_timeout_that_it_asked_for() -> None:
    rig = Rig()
    rig.join("b1", timeout=2000)
    rig.join("b2", timeout=5000)
    rig.tick(1999)
    assert set(rig.leader.peers.names) == {"b1", "b2"}
    rig.tick(1)
    assert set(rig.leader.peers.names) == {"b2"}


def test_joins_within_the_delay_make_one_plan_and_do_not_put_it_off() -> None:
    rig = Rig()
    rig.streams(S0, S1, S2, S3)
    for n in range(4):
        rig.join(f"b{n}")
        assert sent(rig.tick(CONFIG.rebalance_delay // 4 - 1), Grant) == []
    assert len(sent(rig.tick(4), Grant)) == 4
    assert rig.leader.plans.rebalances == 1
    assert len(set(rig.owners.values())) == 4


def test_a_plan_that_had_to_wait_for_a_grant_is_made_after_it() -> None:
    """b2 joins while b1 has not yet acknowledged: nothing can be taken from b1 then, but soon."""
    rig = Rig()
    rig.join("b1")
    rig.streams(S0, S1, S2, S3)
    rig.settle()
    rig.join("b2")
    assert sent(rig.settle(), Revoke) == []
    rig.accept()
    assert len(sent(rig.settle(), Revoke)) == 2


def test_streams_of_those_that_may_come_back_are_left_alone_until_their_time_is_up() -> None:
    rig = led((S0, S1)).crash()
    rig.join("b2")
    assert sent(rig.settle(), Grant) == []
    keep_alive(rig, 10_000, "b2")
    rig.settle()
    assert rig.owners == {S0: "b2", S1: "b2"}


# ---------------------------------------------------------------- streams come and go


def test_a_new_stream_is_given_to_the_one_that_has_the_fewest() -> None:
    rig = led((S0, S1, S2), ("b1", "b2"))
    poorer = min(("b1", "b2"), key=list(rig.owners.values()).count)
    rig.streams(S0, S1, S2, S3, start=7)
    grant = only(rig.settle(), Grant)
    assert (grant.borrower, grant.stream, grant.progress) == (poorer, S3, 7)


def test_an_unchanged_list_of_streams_changes_nothing() -> None:
    rig = led()
    before = rig.frozen()
    assert rig.streams(S0, S1) == []
    assert rig.streams(S0, S1, start=99) == []
    assert rig.frozen() == before


def test_streams_that_are_gone_are_forgotten() -> None:
    rig = led()
    effects = rig.step(StreamsListed({S1: 0}))
    assert rig.journal[-1] == StreamsForgotten(streams=(S0,))
    # The borrower must not go on with what is gone: it begins anew, and its other streams wait for it.
    assert only(effects, Invalidate).borrower == "b1"
    assert only(rig.hear(ping("b1")), Invalidate).reason == "unknown"
    rig.join("b1b", name="n-b1", session="s-n-b1", attempt=2)
    assert rig.owners == {S1: "b1b"}
    assert rig.replayed() == rig.leader.durable


# ---------------------------------------------------------------- the end, and operators


def test_an_idle_leader_stops_and_does_nothing_after() -> None:
    rig = led()
    rig.hear(goodbye("b1"))
    rig.tick(1)
    assert [e for e in rig.tick(CONFIG.idle_timeout - 1) if isinstance(e, Stop)] == []
    assert rig.tick(1) == [Stop("idle")]
    assert rig.hear(wanted("b9"), "box") == []
    assert rig.tick(CONFIG.idle_timeout) == []


def test_a_leader_that_nobody_connects_to_stops_too() -> None:
    rig = Rig()
    assert rig.tick(CONFIG.idle_timeout) == [Stop("idle")]


def test_who_connects_just_before_the_idle_stop_keeps_the_leader() -> None:
    rig = Rig()
    rig.now = CONFIG.idle_timeout
    rig.join("b1")
    assert not any(isinstance(effect, Stop) for effect in rig.tick())


def test_stepping_down_invalidates_all_and_stops_last() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    effects = rig.step(StepDownWanted())
    assert {(m.borrower, m.reason) for m in sent(effects, Invalidate)} == {
        ("b1", "stepped_down"),
        ("b2", "stepped_down"),
    }
    assert effects[-1] == Stop("drained")
    assert rig.crash().leader.durable.streams[S0].owner is not None  # they come back to what they had


def test_an_operator_s_step_down_is_recorded_answered_and_done() -> None:
    rig = led()
    effects = rig.hear(command("step_down", who="ann"))
    assert only(effects, CommandDone)
    assert effects[-1] == Stop("stepped down by an operator")
    record = rig.journal[-1]
    assert isinstance(record, Acted)
    assert (record.outcome, record.who) == (SteppedDown(host="host", term=1), "ann")


@pytest.mark.parametrize(
    ("act", "dry_run", "effect"),
    [("describe", False, "Describe"), ("rebalance", True, "Send"), ("step_down", True, "Send")],
)
def test_looking_and_trying_change_nothing(act: str, dry_run: bool, effect: str) -> None:
    rig = led()
    rig.join("b2")
    before = rig.frozen()
    (done,) = rig.hear(command(act, dry_run=dry_run), "operator")
    assert (type(done).__name__, done.mailbox) == (effect, "operator")  # type: ignore[union-attr]
    assert rig.frozen() == before
    assert sent(rig.settle(), Revoke) != []  # the plan was there to be made


def test_an_operator_s_rebalance_does_not_wait_for_the_delay() -> None:
    rig = led()
    rig.join("b2")
    assert len(sent(rig.hear(command("rebalance")), Revoke)) == 1


def test_a_hand_over_is_measured_from_the_revoke_to_the_first_word() -> None:
    rig = revoking()
    rig.now += 40
    rig.hear(progress("b1", S1, 1, 3, final=True))
    rig.hear(finished("b1", S1, 1))
    rig.now += 2
    rig.accept("b2")
    assert rig.journal[-1] == HandedOver(stream=S1, milliseconds=42, clean=True)
    assert rig.leader.durable.longest_hand_over_ms == 42
    assert rig.leader.durable.longest_take_over_ms == 0


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize("name", ["resend_interval", "rebalance_delay", "revocation_timeout", "idle_timeout"])
@pytest.mark.parametrize("value", [0, -5])
def test_a_time_that_is_not_positive_is_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidOption, match=f"{name} is {value} ms: it must be above 0"):
        LeaderConfig(**{name: value})  # type: ignore[arg-type]


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidOption, match="strategy 'best' does not exist: use one of count"):
        LeaderConfig(strategy="best")


def test_a_hole_is_counted_once_and_what_stands_before_it_is_not() -> None:
    rig = led([S0])
    lease_epoch = rig.lease_epoch(S0)

    def report(offset: int, *holes: tuple[int, int]) -> None:
        entry = Progress(stream=S0, lease_epoch=lease_epoch, offset=offset, holes=holes)
        rig.hear(UpdateProgress(group=GROUP, borrower="b1", progress=(entry,)), "box-b1")

    for _ in range(2):  # the acknowledgement was lost
        report(8, (3, 5))
    assert (rig.committed(S0), rig.leader.durable.streams[S0].truncated) == (8, 2)
    report(20, (3, 5), (10, 12), (15, 20))
    assert (rig.committed(S0), rig.leader.durable.streams[S0].truncated) == (20, 9)
    report(21, (20, 30))  # not passed yet
    assert (rig.committed(S0), rig.leader.durable.streams[S0].truncated) == (21, 9)
    assert rig.replayed().streams[S0].truncated == 9
    lease_epoch += 1  # somebody else's lease
    report(40, (21, 40))
    assert rig.committed(S0) == 21


def test_many_holes_are_reported_as_a_few_of_the_same_length() -> None:
    held = Held.begin(0, S0, 1, 0)
    held.holes = {start: start + 2 for start in range(0, 1000, 4)}
    held.committed = 1000
    reported = held.lost()
    assert len(reported) == MOST_HOLES
    assert sum(end - start for start, end in reported) == sum(
        e - s for s, e in held.holes.items() if e <= 998
    )
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(reported))
    assert "holes" not in Progress(stream=S0, lease_epoch=1, offset=1).model_dump_json()
