"""Weights of streams from ends that are read now and then."""

from __future__ import annotations

import pytest

from streamlease.leader.core.planning.weights import FLOOR, SCALE, SMOOTH_MS, Weights


def rates(*steps: tuple[int, dict[str, int]]) -> Weights:
    weights = Weights()
    for at, ends in steps:
        weights.take("rate", ends, dict.fromkeys(ends, 0), at)
    return weights


def test_the_first_rate_needs_two_ends() -> None:
    weights = rates((0, {"s": 5}))
    assert not weights.knows(["s"])
    weights.take("rate", {"s": 25}, {"s": 0}, 2000)
    assert weights.values == {"s": 10.0}
    assert weights.knows(["s"])
    assert not weights.knows(["s", "t"])


def test_a_lag_is_known_at_once() -> None:
    weights = Weights()
    weights.take("lag", {"s": 25}, {"s": 5}, 0)
    assert weights.values == {"s": 20.0}


def test_values_are_smoothed_over_time_and_not_over_readings() -> None:
    often = rates((0, {"s": 0}), (1000, {"s": 100}))
    seldom = rates((0, {"s": 0}), (1000, {"s": 100}))
    for second in range(2, 32):
        often.take("rate", {"s": 100}, {"s": 0}, second * 1000)
    seldom.take("rate", {"s": 100}, {"s": 0}, 1000 + SMOOTH_MS)
    assert often.values["s"] == pytest.approx(seldom.values["s"]) == pytest.approx(100 * 0.3678794)


def test_what_redis_lost_is_no_negative_rate_and_an_old_reading_counts_nothing() -> None:
    weights = rates((0, {"s": 50}), (1000, {"s": 10}), (1000, {"s": 99}), (500, {"s": 99}))
    assert weights.values == {"s": 0.0}
    weights.take("lag", {"s": 3}, {"s": 9}, 2000)
    assert weights.values == {"s": 0.0}


def test_idle_streams_weigh_alike_and_an_unknown_one_as_the_average() -> None:
    names = ["a", "b", "c"]
    weights = rates((0, dict.fromkeys(names, 0)), (10_000, {"a": 1, "b": 0, "c": 0}))
    of = weights.of("rate", names)
    assert max(of.values()) < 1.2 * min(of.values())
    weights = rates((0, dict.fromkeys(names, 0)), (1000, {"a": 3000, "b": 0, "c": 0}))
    assert weights.of("rate", [*names, "new"]) == {
        "a": 3100 * SCALE,
        "b": 100 * SCALE,
        "c": 100 * SCALE,
        "new": 1100 * SCALE,
    }


def test_nothing_known_is_equal_weights() -> None:
    assert Weights().of("lag", ["a", "b"]) == dict.fromkeys("ab", FLOOR["lag"] * SCALE)


def test_another_measure_begins_anew_and_what_is_gone_is_forgotten() -> None:
    weights = rates((0, {"s": 0, "t": 0}), (1000, {"s": 10, "t": 10}))
    weights.keep({"t"})
    assert (list(weights.values), list(weights.seen)) == (["t"], ["t"])
    weights.take("lag", {"s": 7}, {"s": 0}, 2000)
    assert weights.values == {"s": 7.0}
    weights.take("lag", {"gone": 7}, {}, 3000)
    assert weights.values == {"s": 7.0}
