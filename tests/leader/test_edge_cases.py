"""Ten edge cases in which another implementation of EIP-0028 went wrong, one or more tests each."""

from __future__ import annotations

import pytest

from streamlease.leader.core.events import Received, Recovered, Stop, Tick
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.leader.core.parts.peers import MAX_ARRIVALS
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import StreamsForgotten
from streamlease.protocol.messages import Grant, Invalidate, ProgressCommitted, Revoke, Revoked
from tests.leader.make import (
    CONFIG,
    S0,
    S1,
    Rig,
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


def revoking() -> Rig:
    """b1 is asked for S1, which b2 shall have."""
    rig = led()
    rig.join("b2")
    assert only(rig.settle(), Revoke).stream == S1
    return rig


def test_1_progress_while_revoking_is_saved_and_keeps_revoking() -> None:
    rig = revoking()
    effects = rig.hear(progress("b1", S1, 1, 8))
    assert rig.committed(S1) == 8
    assert rig.lease_state(S1) == "revoking"
    assert sent(effects, Revoked) == []
    assert only(rig.tick(CONFIG.resend_interval), Revoke).stream == S1


def test_2_late_words_about_a_former_lease_touch_neither_the_new_one_nor_the_speaker() -> None:
    rig = revoking()
    rig.hear(progress("b1", S1, 1, 8, final=True))
    rig.hear(finished("b1", S1, 1))
    rig.accept("b2")
    before = rig.frozen()
    for late in (finished("b1", S1, 1), progress("b1", S1, 1, 99, final=True), progress("b1", S1, 1, 99)):
        assert sent(rig.hear(late), Invalidate) == []
        assert rig.frozen() == before
    assert rig.leader.ledger.refused == 3


def test_2_not_even_when_the_same_borrower_got_the_stream_again() -> None:
    rig = revoking()
    rig.hear(progress("b1", S1, 1, 8, final=True))
    rig.hear(finished("b1", S1, 1))
    rig.accept("b2")
    rig.hear(goodbye("b2"))
    rig.settle()
    rig.accept("b1")
    assert (rig.owners[S1], rig.lease_epoch(S1)) == ("b1", 3)
    before = rig.frozen()
    rig.hear(finished("b1", S1, 1))
    rig.hear(progress("b1", S1, 1, 99, final=True))
    assert rig.frozen() == before
    assert rig.committed(S1) == 8


def test_3_every_message_of_a_hand_over_may_come_twice() -> None:
    rig = revoking()
    for message in (progress("b1", S1, 1, 8, final=True), finished("b1", S1, 1)):
        rig.hear(message)
        rig.hear(message)
    assert rig.owners[S1] == "b2"
    assert rig.lease_epoch(S1) == 2
    for _ in range(2):
        rig.hear(progress("b2", S1, 2, 8))
    assert rig.lease_state(S1) == "granted"
    assert sum(record.type == "handed_over" for record in rig.journal) == 1


def test_3_a_lost_revoke_finished_is_asked_for_again() -> None:
    rig = revoking()
    rig.hear(progress("b1", S1, 1, 8, final=True))
    assert only(rig.tick(CONFIG.resend_interval), Revoked).stream == S1
    rig.hear(finished("b1", S1, 1))
    assert rig.owners[S1] == "b2"


def test_3_a_lost_acknowledgement_is_given_again() -> None:
    rig = led()
    first = only(rig.hear(progress("b1", S0, 1, 5)), ProgressCommitted)
    length = len(rig.journal)
    assert only(rig.hear(progress("b1", S0, 1, 5)), ProgressCommitted) == first
    assert len(rig.journal) == length


def test_4_an_evicted_borrower_s_ping_is_not_answered_but_invalidated() -> None:
    rig = led()
    rig.tick(10_000)
    assert rig.leader.peers.names == {}
    assert only(rig.hear(ping("b1"), "box-b1"), Invalidate).reason == "unknown"


def test_5_the_term_is_in_every_message_so_a_stale_leader_is_found_out() -> None:
    stale = revoking()
    fresh = stale.crash()
    fresh.join("b1", attempt=2)
    for rig, term in ((stale, 1), (fresh, 2)):
        rig.tick(CONFIG.resend_interval)
        terms = {
            getattr(effect.message, "term", term) for effect in rig.effects if hasattr(effect, "message")
        }
        assert terms == {term}


def test_5_the_next_leader_grants_under_higher_lease_epochs_only() -> None:
    stale = led()
    fresh = stale.crash()
    fresh.join("b1", attempt=2)
    assert {grant.lease_epoch for grant in sent(fresh.effects, Grant)} == {2}


def test_6_a_storm_of_joins_and_leaves_makes_one_plan_per_delay() -> None:
    rig = led()
    plans = rig.leader.plans.rebalances
    for n in range(50):
        rig.join(f"x{n}")
        rig.tick(1)
    assert rig.leader.plans.rebalances == plans
    rig.tick(CONFIG.rebalance_delay)
    assert rig.leader.plans.rebalances == plans + 1


def test_7_a_deleted_stream_takes_its_lease_and_owner_with_it_and_survives_a_restart() -> None:
    rig = led()
    rig.streams(S1)
    assert rig.journal[-1] == StreamsForgotten(streams=(S0,))
    assert set(rig.leader.leases) == {S1}
    fresh = rig.crash()
    assert set(fresh.leader.leases) == {S1}
    assert set(fresh.leader.durable.streams) == {S1}


def test_8_a_quick_resubscription_does_not_mix_the_two_borrowers_of_a_session() -> None:
    rig = led((S0,))
    rig.hear(wanted("b1b", name="n-b1", attempt=2), "box-b1b")
    rig.accept("b1b")
    before = rig.frozen()
    for late in (progress("b1", S0, 1, 77), goodbye("b1", (S0, 1, 88)), ping("b1")):
        rig.hear(late)
        assert rig.frozen() == before
    assert rig.committed(S0) == 0


def test_8_a_leaver_s_incomplete_progress_is_taken() -> None:
    rig = led()
    rig.hear(goodbye("b1", (S0, 1, 4), (S1, 1, 0)))
    assert (rig.committed(S0), rig.committed(S1)) == (4, 0)
    assert {grant.stream: grant.progress for grant in sent(rig.join("b2"), Grant)} == {S0: 4, S1: 0}


def test_9_an_evicted_borrower_s_goodbye_does_not_overwrite_the_next_owner_s_progress() -> None:
    rig = led((S0,))
    rig.now = 5000
    rig.join("b2")
    rig.tick(5100)
    rig.settle()
    rig.accept()
    rig.hear(progress("b2", S0, 2, 50))
    before = rig.frozen()
    assert rig.hear(goodbye("b1", (S0, 1, 99))) == []
    assert rig.frozen() == before
    assert rig.owners == {S0: "b2"}


def test_9_progress_never_goes_back_even_by_the_owner_s_word() -> None:
    rig = led((S0,))
    rig.hear(progress("b1", S0, 1, 50))
    rig.hear(progress("b1", S0, 1, 20))
    rig.hear(goodbye("b1", (S0, 1, 30)))
    assert rig.committed(S0) == 50


def test_9_a_disconnect_in_an_open_cut_leaves_its_end_to_the_next_owner() -> None:
    rig = led((S0,))
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 10)))
    rig.hear(goodbye("b1", (S0, 1, 0)))
    assert only(rig.join("b2"), Grant).pinned_end == 10
    rig.hear(finish("s-n-b1", 1))
    assert rig.committed(S0) == 0


def test_10_an_idle_stop_racing_a_connect_leaves_nothing_half_done() -> None:
    rig = Rig()
    rig.now = CONFIG.idle_timeout
    assert rig.tick() == [Stop("idle")]
    assert rig.hear(wanted("b1")) == []
    assert dict(rig.leader.peers) == {}  # the host answers `NotLeader`, and the borrower finds the next one
    assert rig.replayed() == GroupState(term=1)


def test_arrivals_of_those_long_gone_are_forgotten_but_never_of_those_present() -> None:
    rig = Rig()
    rig.join("stays")
    for n in range(MAX_ARRIVALS + 10):
        rig.join(f"x{n}")
        rig.hear(goodbye(f"x{n}"))
    assert len(rig.leader.peers.arrivals) <= MAX_ARRIVALS + 1
    assert "n-stays" in rig.leader.peers.arrivals


def test_a_leader_that_was_deaf_does_not_hold_it_against_its_borrowers() -> None:
    """Its host or its Redis stood still: what borrowers sent meanwhile may not have arrived yet."""
    leader = Leader("g/a", "h", 1, LeaderConfig(), GroupState())
    leader.step(Recovered(), 0)
    leader.step(Received("box", wanted("b1", name="n", session="s")), 0)
    timeout = leader.peers["n"].timeout
    leader.step(Tick(heard=1000), 1000)
    leader.step(Tick(heard=1000), 1000 + 2 * timeout)
    assert "n" in leader.peers, "nothing was heard since 1000, so nobody was silent"
    leader.step(Tick(heard=1000 + 2 * timeout), 1000 + 2 * timeout)
    assert "n" in leader.peers, "the borrower gets its time again"
    for now in range(1000 + 2 * timeout, 1000 + 4 * timeout, 500):
        leader.step(Tick(heard=now), now)
    assert "n" not in leader.peers, "it was heard all the time and said nothing"


@pytest.mark.parametrize("then", ["its streams vanish", "another one takes the first name"])
def test_one_id_under_two_names_does_not_end_the_leader(then: str) -> None:
    """No borrower of ours does that; found by the random acts of `test_acts`."""
    rig = Rig()
    rig.streams(S0, S1)
    rig.join("b1", name="a", session="s")
    rig.join("b1", name="b", session="s")
    rig.settle()
    if then == "its streams vanish":
        rig.streams()
    else:
        rig.join("b2", name="a", session="s", arrival=2)
        rig.join("b3", name="b", session="s", arrival=2)
    rig.join("b9")
    assert "n-b9" in rig.leader.peers
