"""Operators' acts: each in every state of a lease, told twice, refused, found again by the next leader."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.leader.events import Describe, Stop, Tick
from streamlease.leader.operated import HISTORY_KEPT
from streamlease.leader.records import GroupState
from streamlease.leader.view import of_leader
from streamlease.protocol.messages import (
    CommandReply,
    CutFixed,
    Grant,
    Invalidate,
    ProgressCommitted,
    Revoke,
    Revoked,
)
from tests.leader.make import (
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
from tests.leader.test_recovery import EVENTS, consistent, do

STATES = ["granting", "granted", "revoking", "revoked", "absent", "free"]


def in_state(state: str) -> Rig:
    """S0 is in that state; its owner, if it has one, is b1; b2 is connected and holds S1."""
    rig = Rig()
    rig.streams(S0, S1)
    rig.join("b1")
    rig.settle()
    if state != "granting":
        rig.accept()
    rig.join("b2")
    rig.settle()
    if S1 in rig.owners and rig.owners[S1] == "b1" and rig.lease_state(S1) == "revoking":
        rig.give_back(S1, 0)
        rig.accept("b2")
    if state in ("revoking", "revoked"):
        rig.hear(command("drain", borrower="n-b1", request="before"))
        assert rig.lease_state(S0) == "revoking"
        if state == "revoked":
            rig.hear(progress("b1", S0, rig.epoch(S0), 0, final=True), "box-b1")
        rig.hear(command("undrain", borrower="n-b1", request="before too"))
    elif state == "absent":
        rig = successor(rig)
        rig.streams(S0, S1)
        rig.join("b2", attempt=2)
        rig.accept("b2")
    elif state == "free":
        rig.hear(command("pause", request="before"))
        for stream, owner in list(rig.owners.items()):
            if rig.lease_state(stream) == "granting":
                rig.accept(owner)
            rig.give_back(stream, 0)
        rig.hear(command("pause", request="still"))
    if state != "absent":
        assert rig.lease_state(S0) == state
    rig.effects.clear()
    return rig


def successor(rig: Rig) -> Rig:
    """The next leader, with the journal of both."""
    other = rig.crash()
    other.journal = rig.journal + other.journal
    return other


def answer(rig: Rig, act: str, **more: Any) -> tuple[bool, Any]:
    reply = only(rig.hear(command(act, **more), "op"), CommandReply)
    return reply.ok, json.loads(reply.body) if reply.ok else reply.error


def alive(rig: Rig, milliseconds: int, *borrowers: str) -> None:
    """Time passes, and the borrowers do what they are told."""
    for _ in range(milliseconds // 100):
        for borrower in borrowers:
            rig.hear(ping(borrower), f"box-{borrower}")
        rig.tick(100)
        rig.accept()
        for stream, owner in rig.owners.items():
            if owner in borrowers and rig.lease_state(stream) in ("revoking", "revoked"):
                rig.give_back(stream, rig.committed(stream))


ACTS: dict[str, dict[str, Any]] = {
    "pause": {},
    "resume": {},
    "rebalance": {},
    "drain": {"borrower": "n-b1"},
    "undrain": {"borrower": "n-b1"},
    "move": {"stream": S0, "borrower": "n-b2"},
    "release": {"stream": S0},
    "reset": {"offsets": {S0: 0, S1: 3}},
    "expire": {},
    "delete": {},
    "step_down": {},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("act", list(ACTS))
def test_every_act_in_every_state(act: str, state: str) -> None:
    """It is answered once and for all, recorded, told again the same, and found by the next leader."""
    rig = in_state(state)
    before = rig.frozen()
    trial = only(rig.hear(command(act, dry_run=True, request="trial", at=7, **ACTS[act]), "op"), CommandReply)
    assert rig.frozen() == before, "a dry run changes nothing"
    reply = only(
        rig.hear(command(act, request="once", who="ann@host", at=7, **ACTS[act]), "op"), CommandReply
    )
    assert (reply.ok, reply.error, reply.body) == (trial.ok, trial.error, trial.body)
    kept = rig.leader.durable.operated.history[-1]
    assert (kept.act, kept.who, kept.at, kept.request) == (act, "ann@host", 7, "once")
    assert (kept.error == "") == reply.ok
    assert rig.replayed() == rig.leader.durable
    if not rig.leader.stopped:
        consistent(rig)
        after = rig.frozen()
        again = only(rig.hear(command(act, request="once", **ACTS[act]), "op"), CommandReply)
        assert again == reply
        assert rig.frozen() == after, "told twice, it is done once"
    other = successor(rig)
    assert only(other.hear(command(act, request="once", **ACTS[act]), "op"), CommandReply) == reply


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("act", [act for act in ACTS if act not in ("delete", "step_down", "expire")])
def test_after_an_act_the_group_comes_to_rest(act: str, state: str) -> None:
    rig = in_state(state)
    rig.hear(command(act, request="once", **ACTS[act]), "op")
    if state == "absent":
        rig.join("b1", attempt=2)
    alive(rig, 45_000, "b1", "b2")
    paused = rig.leader.durable.operated.paused is not None
    assert paused == (act == "pause" or (state == "free" and act != "resume"))
    assert len(rig.owners) == (0 if paused else 2)
    if act == "move" and not paused:
        assert rig.owners[S0] == "b2"
    if act == "drain" and not paused:
        assert set(rig.owners.values()) == {"b2"}
    consistent(rig)


@pytest.mark.parametrize("act", ["pause", "drain", "move", "release", "reset"])
def test_the_leader_may_die_after_any_record_of_an_act(act: str) -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.hear(fix("s-n-b1", 1, *(part(s, rig.epoch(s), 0, 5) for s, o in rig.owners.items() if o == "b1")))
    before = len(rig.journal)
    stream = next(s for s, owner in rig.owners.items() if owner == "b1")
    more = {**ACTS[act], **({"stream": stream} if "stream" in ACTS[act] else {})}
    rig.hear(command(act, request="once", who="ann", **more), "op")
    alive(rig, 3000, "b1", "b2")
    journal = rig.journal
    for length in range(before, len(journal) + 1):
        state = GroupState()
        for record in journal[:length]:
            state.apply(record)
        state = GroupState.restore(state.snapshot())
        known = state.operated.answered("once") is not None
        assert known == (length > before)
        next_one = Rig(term=2, state=state)
        next_one.journal = [*journal[:length], *next_one.journal]
        next_one.streams(S0, S1)
        for borrower in ("b1", "b2"):
            next_one.join(borrower, attempt=2)
        alive(next_one, 15_000, "b1", "b2")
        consistent(next_one)
        assert next_one.replayed() == next_one.leader.durable
        if act == "pause" and known:
            assert next_one.owners == {}
        else:
            assert set(next_one.owners) == {S0, S1}
        if act == "drain" and known:
            assert set(next_one.owners.values()) == {"b2"}
        if act == "move" and known:
            assert next_one.owners[stream] == "b2"
        if act == "reset" and known:
            assert (next_one.committed(S0), next_one.committed(S1)) == (0, 3)


# ---------------------------------------------------------------- pause


def test_a_paused_group_asks_its_streams_back_and_grants_nothing() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    effects = rig.hear(command("pause"))
    assert {m.stream for m in sent(effects, Revoke)} == {S0, S1}
    for stream in (S0, S1):
        rig.give_back(stream, 4)
    rig.join("b3")
    alive(rig, 2000, "b1", "b2", "b3")
    assert (rig.owners, rig.committed(S0), rig.leader.plan().grants) == ({}, 4, ())
    effects = rig.hear(command("resume", request="r2"))
    assert {(m.stream, m.progress) for m in sent(effects, Grant)} == {(S0, 4), (S1, 4)}


def test_an_open_cut_is_finished_in_a_paused_group_and_no_other_is_opened() -> None:
    rig = led((S0,), ("b1",))
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 10)))
    rig.hear(command("pause"))
    assert rig.leader.durable.sessions["s-n-b1"].ranges != {}
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
    last = rig.leader.durable.operated.history[-1]
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


# ---------------------------------------------------------------- drain and move


def test_a_drained_borrower_gives_everything_up_and_gets_nothing_until_it_is_undrained() -> None:
    rig = led((S0, S1, S2, S3), ("b1", "b2"))
    ok, body = answer(rig, "drain", borrower="b1")
    assert (ok, body["borrower"], len(body["streams"])) == (True, "n-b1", 2)
    alive(rig, 2000, "b1", "b2")
    assert set(rig.owners.values()) == {"b2"}
    rig.streams(S0, S1, S2, S3, "s.0.4")
    alive(rig, 2000, "b1", "b2")
    assert set(rig.owners.values()) == {"b2"}
    assert answer(rig, "undrain", borrower="n-b1", request="r2")[0]
    alive(rig, 2000, "b1", "b2")
    assert list(rig.owners.values()).count("b1") == 2


def test_a_drain_stays_over_a_new_leader_and_ends_with_its_borrower() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.hear(command("drain", borrower="n-b1"))
    rig = successor(rig)
    rig.streams(S0, S1)
    for borrower in ("b1", "b2"):
        rig.join(borrower, attempt=2)
    alive(rig, 12_000, "b1", "b2")
    assert set(rig.owners.values()) == {"b2"}
    rig.hear(goodbye("b1"))
    assert rig.leader.durable.operated.drained == {}


def test_what_is_set_for_a_borrower_that_does_not_come_back_is_forgotten() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.hear(command("drain", borrower="n-b1"))
    rig.hear(command("move", stream=S0, borrower="n-b2", request="r2"))
    alive(rig, 25_000, "b2")
    assert rig.leader.durable.operated.drained == {}
    assert rig.leader.durable.operated.pins == {S0: "n-b2"}
    assert rig.leader.away == {}


def test_the_last_borrower_is_not_drained() -> None:
    ok, why = answer(led(), "drain", borrower="b1")
    assert not ok
    assert why.startswith("borrower n-b1 is the last one of group g/a that takes streams: ")


def test_a_moved_stream_stays_until_a_rebalance_and_takes_nothing_else_with_it() -> None:
    rig = led((S0, S1, S2, S3), ("b1", "b2"))
    before = rig.owners
    stream = next(s for s, owner in before.items() if owner == "b1")
    assert answer(rig, "move", stream=stream, borrower="b2") == (
        True,
        {"stream": stream, "from": "n-b1", "to": "n-b2"},
    )
    alive(rig, 3000, "b1", "b2")
    assert rig.owners == {**before, stream: "b2"}, "no other stream was moved in exchange"
    rig.join("b3")
    alive(rig, 3000, "b1", "b2", "b3")
    assert rig.owners[stream] == "b2"
    planned = answer(rig, "rebalance", dry_run=True, request="r2")[1]["plan"]
    assert (rig.leader.durable.operated.pins, planned["targets"]) != ({}, {})
    rig.hear(command("rebalance", request="r3"))
    alive(rig, 3000, "b1", "b2", "b3")
    assert rig.leader.durable.operated.pins == {}
    counts = sorted(list(rig.owners.values()).count(b) for b in ("b1", "b2", "b3"))
    assert counts == [1, 1, 2]


def test_a_moved_stream_goes_to_others_when_its_borrower_goes() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.hear(command("move", stream=S0, borrower="b2"))
    alive(rig, 1000, "b1", "b2")
    rig.hear(goodbye("b2"))
    alive(rig, 1000, "b1")
    assert rig.owners == {S0: "b1", S1: "b1"}
    assert rig.leader.durable.operated.pins == {}


@pytest.mark.parametrize(
    ("act", "more", "why"),
    [
        ("move", {"stream": "s.0.9", "borrower": "b2"}, "group g/a has no stream s.0.9; nearest: s.0."),
        ("move", {"stream": S0, "borrower": "n-b9"}, "group g/a has no borrower n-b9; nearest: n-b"),
        ("release", {"stream": "zzz"}, "group g/a has no stream zzz; there are 2, such as s.0.0"),
        ("drain", {"borrower": "n-b7"}, "group g/a has no borrower n-b7; nearest: n-b"),
        ("undrain", {"borrower": "n-b1"}, "borrower n-b1 of group g/a is not drained; there are none"),
        ("resume", {}, "group g/a is not paused"),
        ("reset", {"offsets": {"s.0.7": 1}}, "group g/a has no stream s.0.7; nearest: s.0."),
        ("reset", {}, "the reset names no stream"),
        ("expire", {}, "group g/a has 2 borrowers, such as n-b1: stop them first"),
        ("delete", {}, "group g/a has 2 borrowers, such as n-b1: stop them first"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason_and_recorded(
    act: str, more: dict[str, Any], why: str
) -> None:
    rig = led((S0, S1), ("b1", "b2"))
    before = rig.leader.durable.model_copy(deep=True)
    ok, said = answer(rig, act, **more)
    assert not ok
    assert said.startswith(why)
    assert rig.leader.durable.operated.history.pop().error == said
    assert rig.leader.durable == before
    assert not rig.leader.stopped


def test_a_stream_is_not_moved_to_who_cannot_have_it() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.hear(command("drain", borrower="b2"))
    assert "is drained" in answer(rig, "move", stream=S0, borrower="b2", request="r2")[1]
    rig.hear(command("pause", request="r3"))
    assert "is paused" in answer(rig, "move", stream=S0, borrower="b1", request="r4")[1]
    assert "is paused" in answer(rig, "rebalance", request="r5")[1]
    rig = successor(rig)
    rig.hear(command("resume", request="r6"))
    assert "is not connected now" in answer(rig, "move", stream=S0, borrower="n-b1", request="r7")[1]


def test_a_stream_that_waits_or_is_finished_is_not_moved() -> None:
    rig = led((S0,), ("b1", "b2"))
    rig.generations({S0: 0, S1: 5}, S2)
    assert "waits until its former generation" in answer(rig, "move", stream=S2, borrower="b1")[1]
    owner = rig.owners[S0]
    rig.give_back(S0, 0)
    assert "is sealed and consumed" in answer(rig, "move", stream=S0, borrower=owner, request="r2")[1]


# ---------------------------------------------------------------- release


def test_a_stuck_stream_is_released_at_once_and_its_owner_is_told_and_fenced() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    stream = next(s for s, owner in rig.owners.items() if owner == "b1")
    other = next(s for s, owner in rig.owners.items() if owner == "b2")
    effects = rig.hear(command("release", stream=stream))
    assert (only(effects, Revoked).stream, only(effects, Revoked).lease_epoch) == (stream, 1)
    grant = only(effects, Grant)
    assert (grant.stream, grant.lease_epoch, grant.borrower) == (stream, 2, "b2")
    assert sent(effects, Invalidate) == []
    late = rig.hear(progress("b1", stream, 1, 99), "box-b1")
    assert sent(late, ProgressCommitted) == []
    assert only(late, Revoked).lease_epoch == 1, "whoever still believes it is told again"
    assert rig.committed(stream) == 0
    assert rig.owners == {stream: "b2", other: "b2"}
    rig.hear(finished("b1", stream, 1), "box-b1")
    assert rig.owners[stream] == "b2"


def test_a_released_stream_keeps_the_end_of_its_open_cut() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    stream = next(s for s, owner in rig.owners.items() if owner == "b1")
    rig.hear(fix("s-n-b1", 1, part(stream, 1, 0, 10)))
    grant = only(rig.hear(command("release", stream=stream)), Grant)
    assert (grant.progress, grant.pinned_end, grant.resumes) == (0, 10, None)
    rig.hear(finish("s-n-b1", 1))
    assert rig.committed(stream) == 0, "the cut of the former owner counts for nothing any more"


def test_the_only_borrower_gets_a_released_stream_anew() -> None:
    rig = led((S0,), ("b1",))
    grant = only(rig.hear(command("release", stream=S0)), Grant)
    assert (grant.borrower, grant.lease_epoch, grant.resumes) == ("b1", 2, None)


# ---------------------------------------------------------------- reset


def test_a_reset_begins_a_new_line_of_progress_under_a_new_epoch() -> None:
    rig = led((S0, S1), ("b1",))
    rig.hear(progress("b1", S0, 1, 50), "box-b1")
    ok, body = answer(rig, "reset", offsets={S0: 20})
    assert (ok, body) == (
        True,
        {"streams": 1, "moves": [{"stream": S0, "from": 50, "to": 20}], "wait_again": []},
    )
    grant = sent(rig.effects, Grant)[-1]
    assert (grant.stream, grant.progress, grant.resumes, grant.borrower) == (S0, 20, None, "b1")
    assert grant.lease_epoch > 2, "one epoch is the reset's own: nothing of before can resume or attest"
    assert sent(rig.hear(progress("b1", S0, 1, 70), "box-b1"), ProgressCommitted) == []
    assert rig.committed(S0) == 20
    rig.hear(progress("b1", S0, rig.epoch(S0), 21), "box-b1")
    assert rig.committed(S0) == 21
    assert rig.leader.take_moved()[S0] == 21
    kept = json.loads(rig.replayed().operated.history[-1].body)
    assert kept["moves"] == [{"stream": S0, "from": 50, "to": 20}]


def test_a_reset_takes_its_streams_out_of_open_cuts_and_leaves_the_others() -> None:
    rig = led((S0, S1), ("b1",))
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 10), part(S1, 1, 0, 20)))
    rig.hear(command("reset", offsets={S0: 5}))
    assert rig.leader.durable.streams[S0].pinned_end is None
    rig.hear(finish("s-n-b1", 1))
    assert (rig.committed(S0), rig.committed(S1)) == (5, 20)
    late = only(rig.hear(fix("s-n-b1", 2, part(S0, 1, 5, 9))), CutFixed)
    assert late.ranges == ()
    rig.accept()
    new = part(S0, rig.epoch(S0), 5, 9)
    assert only(rig.hear(fix("s-n-b1", 2, new)), CutFixed).ranges == (new,)


def test_a_reset_of_a_consumed_generation_lets_the_next_one_wait_again() -> None:
    rig = led((S0,), ("b1",))
    rig.generations({S0: 10}, S1)
    rig.hear(progress("b1", S0, 1, 10), "box-b1")
    rig.give_back(S0, 10)
    alive(rig, 1000, "b1")
    assert (rig.owners, rig.leader.durable.streams[S0].finished) == ({S1: "b1"}, True)
    rig.hear(progress("b1", S1, rig.epoch(S1), 7), "box-b1")
    ok, body = answer(rig, "reset", offsets={S0: 4})
    assert (ok, body["wait_again"]) == (True, [S1])
    assert (
        only([e for e in rig.effects if e], Revoked).stream == S1
        if len(sent(rig.effects, Revoked)) == 1
        else True
    )
    alive(rig, 1000, "b1")
    assert rig.owners == {S0: "b1"}
    rig.hear(progress("b1", S0, rig.epoch(S0), 10), "box-b1")
    alive(rig, 1000, "b1")
    assert (rig.owners, rig.committed(S1)) == ({S1: "b1"}, 7), "it goes on where it was"


def test_a_reset_to_the_end_finishes_a_sealed_stream() -> None:
    rig = led((S0,), ("b1",))
    rig.generations({S0: 10}, S1)
    rig.hear(command("reset", offsets={S0: 10}))
    alive(rig, 1000, "b1")
    assert rig.owners == {S1: "b1"}


def test_a_reset_waits_until_it_is_known_which_streams_follow_which() -> None:
    rig = successor(led((S0,), ("b1",)))
    assert rig.hear(command("reset", offsets={S0: 3})) == []
    rig.streams(S0)
    assert only(rig.hear(command("reset", offsets={S0: 3})), CommandReply).ok


def test_a_reset_while_nobody_is_there_is_where_the_next_one_begins() -> None:
    rig = led((S0,), ("b1",))
    rig.hear(goodbye("b1"))
    rig.hear(command("reset", offsets={S0: 33}))
    rig.join("b2")
    assert only(rig.settle(), Grant).progress == 33


# ---------------------------------------------------------------- expire, delete, history, views


def test_a_group_without_borrowers_expires_and_comes_back_with_its_next_one() -> None:
    rig = Rig()
    rig.streams(S0)
    rig.leader.take_moved()
    assert answer(rig, "expire", at=77)[0]
    assert rig.leader.durable.expired_at == 77
    assert rig.leader.take_moved() == {"@expired": 77}
    rig.join("b1")
    assert rig.leader.durable.expired_at is None
    assert rig.leader.take_moved() == {"@expired": None}


def test_a_group_without_borrowers_is_deleted_by_its_leader_who_ends() -> None:
    rig = Rig()
    effects = rig.hear(command("delete"))
    assert only(effects, CommandReply).ok
    assert effects[-1] == Stop("deleted by an operator")


def test_history_is_bounded_and_survives_snapshots() -> None:
    rig = led()
    for number in range(HISTORY_KEPT + 20):
        rig.hear(command("rebalance", request=f"r{number}"))
    state = GroupState.restore(rig.leader.durable.snapshot())
    assert [act.request for act in state.operated.history] == [f"r{n}" for n in range(20, HISTORY_KEPT + 20)]


def why(rig: Rig, stream: str) -> str:
    (found,) = [s for s in of_leader(rig.leader, rig.now)["streams"] if s["stream"] == stream]
    return str(found["why"])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: in_state("granting"), "its owner has not answered the grant since 0.1 s"),
        (lambda: in_state("granted"), ""),
        (lambda: in_state("revoking"), "asked back since 0.0 s, to balance; it is taken in 30.0 s"),
        (
            lambda: in_state("absent"),
            "its owner of the former term has not come back; it is given up in 10.0 s",
        ),
        (lambda: in_state("free"), "the group is paused"),
    ],
)
def test_the_view_says_why_a_stream_waits(make: Callable[[], Rig], text: str) -> None:
    assert why(make(), S0) == text


def test_the_view_says_why_in_more_cases() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    stream = next(s for s, owner in rig.owners.items() if owner == "b1")
    rig.hear(fix("s-n-b1", 1, part(stream, 1, 0, 10)))
    rig.now += 1500
    rig.hear(command("drain", borrower="b1"))
    assert why(rig, stream) == (
        "open cut since 1.5 s; asked back since 0.0 s, because its owner is drained; it is taken in 30.0 s"
    )
    assert of_leader(rig.leader, rig.now)["borrowers"][0]["drained"] is True
    rig = Rig()
    rig.streams(S0)
    assert why(rig, S0) == "there is no borrower"
    rig.generations({S0: 5}, S1)
    assert why(rig, S1) == f"its former generation is not consumed: {S0}"
    rig.hear(command("pause", at=5, until=9))
    view = of_leader(rig.leader, rig.now)
    assert (view["state"], view["paused"]) == ("paused", {"at_ms": 5, "who": "me", "until_ms": 9})
    assert isinstance(rig.hear(command("describe"))[0], Describe)


# ---------------------------------------------------------------- anything, in any order

NAME = st.sampled_from(["a", "b", "b1", "nobody"])
STREAM = st.sampled_from([S0, S1, S2])
ANY_ACT = st.one_of(
    st.tuples(st.just("act"), st.sampled_from(["pause", "resume", "rebalance", "expire"]), st.just({})),
    st.tuples(
        st.just("act"), st.sampled_from(["drain", "undrain"]), st.fixed_dictionaries({"borrower": NAME})
    ),
    st.tuples(st.just("act"), st.just("move"), st.fixed_dictionaries({"stream": STREAM, "borrower": NAME})),
    st.tuples(st.just("act"), st.just("release"), st.fixed_dictionaries({"stream": STREAM})),
    st.tuples(
        st.just("act"),
        st.just("reset"),
        st.fixed_dictionaries({"offsets": st.dictionaries(STREAM, st.integers(0, 6), min_size=1)}),
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(EVENTS, ANY_ACT), max_size=30))
def test_the_journal_gives_the_state_after_any_acts_among_any_events(events: list[tuple[Any, ...]]) -> None:
    rig = Rig()
    rig.streams(S0, S1)
    for number, event in enumerate(events):
        committed = {stream: rig.committed(stream) for stream in rig.leader.durable.streams}
        epochs = {stream: held.lease_epoch for stream, held in rig.leader.durable.streams.items()}
        if event[0] == "act":
            rig.hear(command(event[1], request=f"r{number}", at=number + 1, **event[2]), "op")
        else:
            rig = do(rig, event)
        assert rig.replayed() == rig.leader.durable
        assert GroupState.restore(rig.leader.durable.snapshot()) == rig.leader.durable
        consistent(rig)
        if event[0] == "streams":
            continue
        reset = event[2]["offsets"] if event[:2] == ("act", "reset") else {}
        for stream, durable in rig.leader.durable.streams.items():
            assert durable.lease_epoch >= epochs.get(stream, 0)
            if stream in committed and stream not in reset:
                assert durable.committed >= committed[stream]


def test_a_late_word_of_before_an_act_is_only_counted() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.hear(wanted("b3", name="n-b3"), "box-b3")
    before = rig.leader.refused
    rig.hear(finished("b1", S1, 9), "box-b1")
    assert rig.leader.refused == before + 1
