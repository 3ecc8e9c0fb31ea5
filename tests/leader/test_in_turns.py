"""Very many leases begin, are told of and are asked back in turns."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from streamlease.leader.core import in_turns
from streamlease.leader.core.events import Effect
from streamlease.protocol.messages import Grant, Revoke, Revoked
from tests.leader.make import CONFIG, Rig, command, finished, led, progress, sent

SIX = [f"a.0.{number}" for number in range(6)]
AT_ONCE = 2


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_turns, "MOST_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(in_turns, "LEAST_TURNS", 100)


def asked(effects: Iterable[Effect]) -> set[str]:
    return {message.stream for message in sent(effects, Revoke)}


def granted(effects: Iterable[Effect]) -> set[str]:
    return {message.stream for message in sent(effects, Grant)}


def all_held(*borrowers: str) -> Rig:
    """All six streams are held, and all grants are answered."""
    rig = led([], [])
    rig.streams(*SIX)
    for borrower in borrowers:
        rig.join(borrower)
    for _ in SIX:
        rig.tick(1)
        rig.accept()
    assert rig.owners.keys() == {*SIX}
    return rig


def gives_back(rig: Rig, borrower: str, stream: str) -> list[Effect]:
    """The borrower finishes a stream that was asked back; the effects of its last word."""
    rig.hear(progress(borrower, stream, rig.lease_epoch(stream), 0, final=True), f"box-{borrower}")
    return rig.hear(finished(borrower, stream, rig.lease_epoch(stream)), f"box-{borrower}")


def test_a_plan_asks_for_some_and_for_more_as_they_come_back() -> None:
    rig = all_held("b1")
    rig.join("b2")
    first = asked(rig.tick(CONFIG.rebalance_delay))
    assert len(first) == AT_ONCE
    assert asked(rig.tick(1)) == set()
    one, other = first
    assert asked(gives_back(rig, "b1", one)), "the plan that gives it away asks for the third"
    gives_back(rig, "b1", other)
    for _ in range(4):
        rig.accept()
        for stream in [s for s in SIX if rig.leader.leases.get(s) and rig.lease_state(s) == "revoking"]:
            gives_back(rig, "b1", stream)
        rig.tick(1)
    assert [*rig.owners.values()].count("b2") == 3
    assert not rig.leader.leases.asked_back.left


def test_who_gives_nothing_back_keeps_others_waiting_only_so_long() -> None:
    rig = all_held("b1")
    rig.join("b2")
    first = asked(rig.tick(CONFIG.rebalance_delay))
    late = asked(rig.tick(in_turns.PATIENCE))
    assert late - first, "asked for although the first are still held"
    assert len(late - first) == 1


def test_a_pause_asks_all_back_in_turns() -> None:
    rig = all_held("b1", "b2")
    first = asked(rig.hear(command("pause"), "box-op"))
    assert len(first) == AT_ONCE
    gone = set[str]()
    for _ in SIX:
        for stream in [s for s in SIX if s in rig.leader.leases and rig.lease_state(s) == "revoking"]:
            gives_back(rig, rig.owners[stream], stream)
            gone.add(stream)
        rig.tick(1)
    assert gone == {*SIX}
    assert len(rig.leader.leases) == 0


def test_an_owner_is_told_of_more_as_it_answers() -> None:
    rig = all_held("b1").crash()
    first = granted(rig.join("b1x", name="n-b1", session="s-n-b1", attempt=2))
    assert len(first) == AT_ONCE
    assert {rig.lease_state(stream) for stream in SIX} == {"granting"}
    assert granted(rig.tick(1)) == set(), "it has not answered"
    told = set(first)
    for _ in range(2):
        for stream in [*told]:
            rig.hear(progress("b1x", stream, rig.lease_epoch(stream), 0), "box-b1x")
        more = granted(rig.tick(1))
        assert len(more) == AT_ONCE
        assert not more & told
        told |= more
    assert told == {*SIX}


def test_an_owner_that_answers_nothing_is_told_of_more_later() -> None:
    rig = all_held("b1").crash()
    first = granted(rig.join("b1x", name="n-b1", session="s-n-b1", attempt=2))
    assert granted(rig.tick(in_turns.PATIENCE)) - first


def test_what_is_over_before_its_owner_is_told_is_not_told() -> None:
    rig = all_held("b1").crash()
    told = granted(rig.join("b1x", name="n-b1", session="s-n-b1", attempt=2))
    untold = next(stream for stream in SIX if stream not in told)
    taken = rig.hear(command("release", stream=untold, request="r2"), "box-op")
    assert [one.stream for one in sent(taken, Revoked) if one.forced] == [untold]
    for stream in told:
        rig.hear(progress("b1x", stream, rig.lease_epoch(stream), 0), "box-b1x")
    epochs = {one.stream: one.lease_epoch for one in sent(rig.tick(1), Grant)}
    assert all(epoch == rig.lease_epoch(stream) for stream, epoch in epochs.items())
