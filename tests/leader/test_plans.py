"""Streams that weigh: when a leader moves them, how many, and when it lets them be."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.leader.core.config import LeaderConfig
from streamlease.leader.core.events import Measured
from streamlease.leader.core.parts.weighing import WARM_UP
from streamlease.leader.core.view import of_leader
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import CommandDone, Revoke
from tests.leader.make import S0, S1, S2, S3, Rig, command, goodbye, led, only, sent
from tests.leader.test_recovery import EVENTS, consistent, do

RATE, LAG = GroupOptions(strategy="rate"), GroupOptions(strategy="lag")
FOUR = (S0, S1, S2, S3)
TURN = 2000
INTERVAL = LeaderConfig().weight_interval


def group(*streams: str, options: GroupOptions = RATE) -> Rig:
    """b1 and b2 hold half of the streams each."""
    rig = led(streams or FOUR, ("b1", "b2"), options=options)
    assert sorted(list(rig.owners.values()).count(b) for b in ("b1", "b2")) == [len(rig.owners) / 2] * 2
    return rig


def flow(rig: Rig, rates: dict[str, float], milliseconds: int, *borrowers: str) -> None:
    """So many messages per second are appended to each stream; borrowers do what they are told."""
    for _ in range(milliseconds // TURN):
        for _ in range(TURN // 100):
            for peer in rig.leader.peers.values():
                peer.last_seen = rig.now
            rig.tick(100)
            rig.accept()
            for stream in list(rig.owners):
                if rig.lease_state(stream) in ("revoking", "revoked"):
                    rig.give_back(stream, rig.committed(stream))
        before = {stream: end for stream, (end, _) in rig.leader.plans.weighing.weights.seen.items()}
        ends = {s: before.get(s, 0) + round(rate * TURN / 1000) for s, rate in rates.items()}
        rig.step(Measured(ends, rig.now))


def moved(rig: Rig) -> int:
    return len(sent(rig.effects, Revoke))


def of(rig: Rig, borrower: str) -> set[str]:
    return {stream for stream, owner in rig.owners.items() if owner == borrower}


def test_a_hot_stream_makes_the_others_move_away() -> None:
    rig = group()
    owner = rig.owners[S0]
    flow(rig, {S0: 500, S1: 5, S2: 5, S3: 5}, 2 * INTERVAL)
    assert of(rig, owner) == {S0}
    assert moved(rig) == 1
    flow(rig, {S0: 500, S1: 5, S2: 5, S3: 5}, 4 * INTERVAL)
    assert moved(rig) == 1, "there it stays"


def test_lag_weighs_by_what_waits() -> None:
    rig = group(options=LAG)
    owner = rig.owners[S0]
    flow(rig, {S0: 5000, S1: 1, S2: 1, S3: 1}, 2 * INTERVAL)
    assert of(rig, owner) == {S0}


def test_noise_moves_nothing() -> None:
    rig = group(*(f"s.0.{n}" for n in range(40)))
    steady = {stream: 5.0 * (1 + n) for n, stream in enumerate(sorted(rig.owners))}
    flow(rig, steady, 4 * INTERVAL)
    rig.effects.clear()
    random = Random(7)
    for _ in range(8):
        noisy = {stream: rate * random.uniform(0.7, 1.3) for stream, rate in steady.items()}
        flow(rig, noisy, INTERVAL)
    assert moved(rig) == 0


def test_bursts_move_nothing_because_they_are_smoothed() -> None:
    rig = group(*(f"s.0.{n}" for n in range(8)))
    steady = dict.fromkeys(sorted(rig.owners), 100.0)
    flow(rig, steady, 2 * INTERVAL)
    for _ in range(20):
        flow(rig, {**steady, S0: 400.0}, TURN)
        flow(rig, steady, 6 * TURN)
    assert moved(rig) == 0


def test_weights_move_few_streams_and_seldom() -> None:
    streams = [f"s.0.{n}" for n in range(40)]
    rig = group(*streams)
    hot = of(rig, "b1")
    rates = {stream: 1000.0 if stream in hot else 1.0 for stream in streams}
    flow(rig, rates, INTERVAL - TURN)
    assert moved(rig) == 0, "not before the interval"
    moves = []
    for _ in range(5):
        rig.effects.clear()
        flow(rig, rates, INTERVAL)
        moves.append(moved(rig))
    assert max(moves) <= 40 // 10
    assert sum(moves) >= 7, "in the end they are even"
    assert 8 <= len(of(rig, "b1") & hot) <= 12


def test_a_newcomer_gets_its_share_of_the_weight_at_once() -> None:
    rig = group()
    rates = {S0: 300.0, S1: 100.0, S2: 100.0, S3: 100.0}
    flow(rig, rates, 10_000)
    rig.effects.clear()
    rig.join("b3")
    flow(rig, rates, TURN)
    assert moved(rig) == 1
    assert len(of(rig, "b3")) == 1


def test_a_new_leader_takes_nothing_before_it_knows_the_weights() -> None:
    rig = group()
    rates = {S0: 500.0, S1: 5.0, S2: 5.0, S3: 5.0}
    flow(rig, rates, 2 * INTERVAL)
    before = {stream: lease.name for stream, lease in rig.leader.leases.items()}
    journal = rig.journal
    rig = rig.crash()
    rig.journal = [*journal, *rig.journal]
    for borrower in ("b1", "b2", "b3"):
        rig.join(borrower, attempt=2)
    rig.streams(*FOUR)
    rig.settle()
    rig.accept()
    rig.tick(500)
    assert moved(rig) == 0
    assert {stream: lease.name for stream, lease in rig.leader.leases.items()} == before
    flow(rig, rates, 3 * TURN)
    assert (of(rig, "b3") != set(), moved(rig)) == (True, 1), "the newcomer waited for the weights"
    assert rig.leader.leases[S0].name == before[S0]


def test_a_new_leader_does_not_wait_for_weights_for_ever() -> None:
    rig = group().crash()
    for borrower in ("b1", "b2", "b3"):
        rig.join(borrower, attempt=2)
    rig.streams(*FOUR)
    flow(rig, {}, WARM_UP - TURN)
    assert of(rig, "b3") == set()
    flow(rig, {}, 2 * TURN)
    assert len(of(rig, "b3")) == 1


def test_free_streams_do_not_wait_for_weights() -> None:
    rig = group().crash()
    rig.join("b1", attempt=2)
    rig.join("b2", attempt=2)
    rig.streams(*FOUR)
    rig.hear(goodbye("b2"), "box-b2")
    rig.settle()
    assert set(rig.owners.values()) == {"b1"}


def test_a_paused_group_is_left_alone() -> None:
    rig = group()
    rig.hear(command("pause"))
    flow(rig, {S0: 500, S1: 5, S2: 5, S3: 5}, 3 * INTERVAL)
    assert rig.owners == {}


def test_only_groups_that_weigh_are_measured() -> None:
    assert group().leader.plans.to_measure() == list(FOUR)
    assert Rig(options=RATE).leader.plans.to_measure() == [], "nobody is there"
    counted = led(FOUR, ("b1", "b2"))
    assert counted.leader.plans.to_measure() == []
    before = counted.frozen()
    counted.step(Measured(dict.fromkeys(FOUR, 7), 0))
    assert counted.frozen() == before


def test_what_is_gone_is_not_remembered() -> None:
    rig = group()
    flow(rig, dict.fromkeys(FOUR, 5.0), 2 * TURN)
    rig.streams(S0, S1)
    rig.step(Measured({S0: 9, "s.0.9": 1}, rig.now + 1))
    assert set(rig.leader.plans.weighing.weights.seen) == {S0, S1}


def test_operators_see_the_strategy_and_the_plan_before_it_is_done() -> None:
    rig = group()
    owner = rig.owners[S0]
    (other,) = of(rig, owner) - {S0}
    flow(rig, {S0: 500, S1: 5, S2: 5, S3: 5}, 3 * TURN)
    assert of_leader(rig.leader, rig.now)["strategy"] == "rate"
    reply = only(rig.hear(command("rebalance", dry_run=True), "op"), CommandDone)
    assert json.loads(reply.body)["plan"]["revokes"] == [other]
    assert of(rig, owner) == {S0, other}
    rig.hear(command("rebalance", request="r2"), "op")
    flow(rig, {S0: 500, S1: 5, S2: 5, S3: 5}, TURN)
    assert of(rig, owner) == {S0}, "an operator need not wait for the interval"


MEASURED = st.tuples(
    st.just("measured"),
    st.dictionaries(st.sampled_from([S0, S1, S2, "s.0.9"]), st.integers(0, 10**6), max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(EVENTS, MEASURED), max_size=40), st.sampled_from([RATE, LAG]))
def test_weights_may_come_among_any_events(events: list[tuple[Any, ...]], options: GroupOptions) -> None:
    rig = Rig(options=options)
    rig.streams(S0, S1)
    for event in events:
        if event[0] == "measured":
            rig.now += INTERVAL
            rig.step(Measured(event[1], rig.now))
        else:
            rig = do(rig, event)
        assert rig.replayed() == rig.leader.durable
        consistent(rig)
