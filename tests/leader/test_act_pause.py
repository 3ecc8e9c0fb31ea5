"""Pausing and resuming: streams are asked back, open cuts are finished, a pause ends at its time."""

from __future__ import annotations

from streamlease.leader.core.events import Tick
from streamlease.protocol.messages import CutFixed, Grant, Revoke
from tests.leader.make import S0, S1, command, finish, fix, led, only, part, progress, sent, wanted
from tests.leader.operating import alive, answer, in_state, successor


def test_a_paused_group_asks_its_streams_back_and_grants_nothing() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    effects = rig.hear(command("pause"))
    assert {m.stream for m in sent(effects, Revoke)} == {S0, S1}
    for stream in (S0, S1):
        rig.give_back(stream, 4)
    rig.join("b3")
    alive(rig, 2000, "b1", "b2", "b3")
    assert (rig.owners, rig.committed(S0), rig.leader.plans.propose().grants) == ({}, 4, ())
    effects = rig.hear(command("resume", request="r2"))
    assert {(m.stream, m.progress) for m in sent(effects, Grant)} == {(S0, 4), (S1, 4)}


def test_an_open_cut_is_finished_in_a_paused_group_and_no_other_is_opened() -> None:
    rig = led((S0,), ("b1",))
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 10)))
    rig.hear(command("pause"))
    assert rig.leader.durable.sessions["s-n-b1"].ranges
    answer = only(rig.hear(fix("s-n-b1", 2, part(S0, 1, 10, 20))), CutFixed)
    assert (answer.ranges, rig.committed(S0)) == ((), 10)


def test_an_open_cut_survives_a_leader_of_a_paused_group() -> None:
    rig = led((S0, S1), ("b1",))
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 10)))
    rig.hear(command("pause"))
    rig = successor(rig)
    rig.streams(S0, S1)
    rig.join("b1", attempt=2)
    rig.accept()
    assert (rig.lease_state(S0), rig.lease_state(S1)) == ("revoking", "revoking")
    rig.give_back(S1, 0)
    rig.hear(finish("s-n-b1", 1))
    rig.give_back(S0, 10)
    assert (rig.owners, rig.committed(S0)) == ({}, 10)


def test_a_newcomer_takes_no_streams_over_in_a_paused_group() -> None:
    rig = led((S0, S1), ("b1",))
    rig.hear(command("pause"))
    rig.hear(wanted("b2", name="n-b1", session="other", arrival=2), "box-b2")
    alive(rig, 1000, "b2")
    assert rig.owners == {}


def test_a_grant_that_is_not_answered_yet_is_asked_back_once_it_is() -> None:
    rig = in_state("granting")
    assert S0 not in {m.stream for m in sent(rig.hear(command("pause")), Revoke)}
    assert S0 in {m.stream for m in sent(rig.hear(progress("b1", S0, 1, 0), "box-b1"), Revoke)}


def test_a_pause_ends_at_its_time_by_itself() -> None:
    rig = led()
    rig.hear(command("pause", at=1_000_000, until=1_000_500, request="p"))
    for stream in (S0, S1):
        rig.give_back(stream, 0)
    rig.step(Tick(wall=1_000_499))
    assert rig.owners == {}
    rig.now += 1
    effects = rig.step(Tick(wall=1_000_500))
    assert {m.stream for m in sent(effects, Grant)} == {S0, S1}
    last = rig.leader.durable.operated.acts[-1]
    assert (last.act, last.who, last.at) == ("resume", "", 1_000_500)


def test_a_pause_whose_time_came_while_nobody_led_ends_at_the_first_look() -> None:
    rig = led()
    rig.hear(command("pause", at=5, until=10, request="p"))
    rig = successor(rig)
    rig.step(Tick(wall=11))
    assert rig.leader.durable.operated.paused is None


def test_a_pause_until_a_time_that_has_passed_is_refused() -> None:
    ok, why = answer(led(), "pause", at=10, until=10)
    assert (ok, why) == (False, "the time to pause group g/a until has passed: give a later one")
