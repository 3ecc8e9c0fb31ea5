"""Strategies by name: those that there are, and those of one's own."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from streamlease.leader import strategies
from streamlease.leader.planner import Plan, Situation, by_count
from streamlease.leader.strategies import STRATEGIES, Strategy, load_installed, register, strategy
from streamlease.protocol.errors import InvalidOption


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "STRATEGIES", dict(STRATEGIES))


def nothing(situation: Situation) -> Plan:
    return Plan((), (), {})


OWN = Strategy(nothing, "lag")


def test_strategies_are_found_by_name() -> None:
    assert [strategy(name).measure for name in ("count", "rate", "lag")] == [None, "rate", "lag"]
    assert strategy("count").plan is by_count


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="strategy 'x' does not exist: use one of count, lag, rate"):
        strategy("x")


def test_a_strategy_of_ones_own_is_registered_once() -> None:
    register("nothing", nothing)
    register("nothing", nothing)
    assert strategy("nothing") == Strategy(nothing)
    for measure in (None, "rate"):
        with pytest.raises(InvalidOption, match="strategy 'count' exists already"):
            register("count", nothing, measure)  # type: ignore[arg-type]


def test_installed_packages_bring_their_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = [
        EntryPoint(name, f"{__name__}:{value}", strategies.ENTRY_POINTS)
        for name, value in (("plain", "nothing"), ("weighed", "OWN"), ("broken", "no_such"), ("count", "OWN"))
    ]
    monkeypatch.setattr(strategies, "entry_points", lambda group: points)
    load_installed.__wrapped__()
    assert strategy("plain") == Strategy(nothing)
    assert strategy("weighed") == OWN
    assert strategy("count").plan is by_count
    assert "broken" not in strategies.STRATEGIES
    assert [record.getMessage().partition(" of ")[0] for record in caplog.records] == [
        "strategy 'broken'",
        "strategy 'count'",
    ]
