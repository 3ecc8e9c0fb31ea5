"""Drained borrowers and streams that operators moved."""

from __future__ import annotations

from tests.leader.make import S0, S1, S2, S3, command, goodbye, led
from tests.leader.operating import alive, answer, successor


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
    assert rig.leader.operators.away == {}


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
