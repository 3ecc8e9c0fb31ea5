"""Strategies by name: those that there are, and those of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given

from streamlease.leader.core.planning import strategies
from streamlease.leader.core.planning.planner import Plan, Situation, by_count
from streamlease.leader.core.planning.strategies import (
    STRATEGIES,
    Strategy,
    fault,
    load_installed,
    register,
    strategy,
)
from streamlease.protocol.errors import InvalidOption
from tests.leader.test_weighted import situations


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(strategies, "STRATEGIES", dict(STRATEGIES))
    yield
    load_installed.cache_clear()


def nothing(situation: Situation) -> Plan:
    return Plan((), (), {})


SITUATION = Situation({"a": {"s0", "s1"}, "b": set()}, {"s2"}, {"s0"}, ["s3"])
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
    assert strategy("nothing").plan(SITUATION) == nothing(SITUATION)
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
    load_installed.cache_clear()
    assert strategy("count").plan is by_count
    assert "plain" not in strategies.STRATEGIES, "for a known name no package is looked at"
    assert [strategy(name).measure for name in ("plain", "weighed")] == [None, "lag"]
    assert strategy("weighed").plan(SITUATION) == nothing(SITUATION)
    assert strategy("count").plan is by_count
    assert "broken" not in strategies.STRATEGIES
    assert [record.getMessage().partition(" of ")[0] for record in caplog.records] == [
        "strategy 'broken'",
        "strategy 'count'",
    ]


def fails(situation: Situation) -> Plan:
    raise ValueError("no idea")


def plans(plan: Plan) -> Callable[[Situation], Plan]:
    return lambda situation: plan


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (fails, "ValueError: no idea"),
        (plans(Plan((("s0", "b"),), (), {})), "it grants s0, which is not free, or twice"),
        (plans(Plan((("s3", "b"),), (), {})), "it grants s3, which is not free, or twice"),
        (plans(Plan((("s2", "a"), ("s2", "b")), (), {})), "it grants s2, which is not free, or twice"),
        (plans(Plan((("s2", "c"),), (), {})), "it grants s2 to c, who takes none"),
        (plans(Plan((), ("s0",), {})), "it revokes s0, which nobody may give up now, or twice"),
        (plans(Plan((), ("s1", "s1"), {})), "it revokes s1, which nobody may give up now, or twice"),
        (plans(Plan((), (), {"c": 1})), "it has a target for c, who takes none"),
        (plans(None), "AttributeError"),  # type: ignore[arg-type]
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_made_by_count(
    own: Callable[[Situation], Plan], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    register("own", own)
    assert strategy("own").plan(SITUATION) == by_count(SITUATION)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"strategy 'own' failed ({why}")


def test_a_plan_that_can_be_carried_out_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    good = Plan((("s2", "b"),), ("s1",), {"a": 1, "b": 3})
    register("own", plans(good))
    assert strategy("own").plan(SITUATION) is good
    assert caplog.records == []


@pytest.mark.parametrize("name", ["count", "rate", "lag"])
@given(situation=situations())
def test_the_plans_of_this_package_can_be_carried_out(name: str, situation: Situation) -> None:
    assert fault(STRATEGIES[name].plan(situation), situation) == ""
