"""Plans by weight: balanced as far as single moves go, sticky, bounded, and the same for equal inputs."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.leader.core.planning.planner import Plan, Situation, by_count
from streamlease.leader.core.planning.weighted import BEGIN, _pour, by_weight

Held = dict[str, set[str]]


@st.composite
def situations(draw: st.DrawFn, streams: int = 14, borrowers: int = 5) -> Situation:
    names = [f"b{n}" for n in range(draw(st.integers(1, borrowers)))]
    held: Held = {name: set() for name in names}
    free: set[str] = set()
    weights: dict[str, int] = {}
    for n in range(draw(st.integers(0, streams))):
        owner = draw(st.sampled_from([*names, None]))
        (held[owner] if owner is not None else free).add(f"s{n:02}")
        weights[f"s{n:02}"] = draw(st.one_of(st.integers(1, 20), st.sampled_from([1, 1000])))
    return Situation(held, free, weights=weights)


def exact(situation: Situation) -> Plan:
    return by_weight(situation, begin=0, end=0)


def after(situation: Situation, plan: Plan) -> Situation:
    """Once the plan is carried out: what was revoked is free."""
    held: Held = {name: set(streams) - set(plan.revokes) for name, streams in situation.held.items()}
    for stream, name in plan.grants:
        held[name].add(stream)
    return replace(situation, held=held, free=set(plan.revokes))


def at_rest(situation: Situation, plan: Callable[[Situation], Plan]) -> Situation:
    """What comes of as many plans as there are."""
    for _ in range(12):
        made = plan(situation)
        if not made.grants and not made.revokes:
            return situation
        situation = after(situation, made)
    raise AssertionError("streams go round in circles")


def loads(situation: Situation) -> dict[str, int]:
    return {
        name: sum(situation.weights[stream] for stream in streams) for name, streams in situation.held.items()
    }


def apart(situation: Situation) -> int:
    sums = loads(situation).values()
    return max(sums) - min(sums)


@given(situations())
def test_what_is_planned_differs_by_no_more_than_the_heaviest_stream(situation: Situation) -> None:
    done = at_rest(situation, exact)
    assert apart(done) <= max(situation.weights.values(), default=0)
    assert sorted(s for streams in done.held.values() for s in streams) == sorted(situation.weights)


@given(situations())
def test_with_its_bounds_it_differs_by_the_heaviest_stream_or_a_part_of_the_average(
    situation: Situation,
) -> None:
    done = at_rest(situation, by_weight)
    average = sum(situation.weights.values()) / len(situation.held)
    assert apart(done) <= max([*situation.weights.values(), BEGIN * average])


@given(situations(), st.randoms())
def test_the_order_of_the_inputs_does_not_matter(situation: Situation, random: object) -> None:
    names, free = list(situation.held), sorted(situation.free)
    random.shuffle(names)  # type: ignore[attr-defined]
    random.shuffle(free)  # type: ignore[attr-defined]
    shuffled = replace(
        situation,
        held={name: sorted(situation.held[name], reverse=True) for name in names},
        free=free,
        weights=dict(reversed(situation.weights.items())),
    )
    one, two = by_weight(situation), by_weight(shuffled)
    assert (one.grants, one.revokes, dict(one.targets)) == (two.grants, two.revokes, dict(two.targets))


@given(situations(), st.data())
def test_what_is_fixed_stays_and_no_more_moves_than_allowed(
    situation: Situation, data: st.DataObject
) -> None:
    everything = sorted(set().union(*situation.held.values()))
    fixed = set(data.draw(st.lists(st.sampled_from(everything)))) if everything else set()
    most = data.draw(st.integers(0, 3))
    plan = exact(replace(situation, fixed=fixed, most=most))
    assert not fixed & set(plan.revokes)
    assert len(plan.revokes) <= most
    assert set(plan.revokes) <= set(everything)
    assert {stream for stream, _ in plan.grants} == set(situation.free)
    assert sum(plan.targets.values()) == len(situation.weights)


@given(situations(), st.data())
def test_what_leaves_already_is_counted_and_not_granted(situation: Situation, data: st.DataObject) -> None:
    """While the streams of a plan are on their way, the next plan takes no others for the same reason."""
    plan = exact(situation)
    middle = after(situation, plan)
    waiting = replace(middle, free=(), leaving=plan.revokes)
    again = exact(waiting)
    assert again.grants == ()
    assert sum(again.targets.values()) == len(situation.weights)
    done = after(middle, exact(middle))
    if apart(done) == 0:
        assert set(again.revokes) <= set(exact(middle).revokes)


@given(st.integers(1, 12), st.integers(0, 60))
def test_equal_weights_are_spread_by_number_with_as_few_moves_as_count(borrowers: int, streams: int) -> None:
    names = [f"b{n:02}" for n in range(borrowers)]
    weights = {f"s{n:02}": 1000 for n in range(streams)}
    first = exact(Situation(dict.fromkeys(names, ()), list(weights), weights=weights))
    held: Held = {name: set() for name in names}
    for stream, name in first.grants:
        held[name].add(stream)
    joined = Situation(held | {"new": set()}, weights=weights)
    assert len(exact(joined).revokes) == len(by_count(joined).revokes)
    assert len(by_weight(joined).revokes) <= -(-streams // (borrowers + 1)) + 1


def test_a_newcomer_gets_its_share_and_the_others_keep_theirs() -> None:
    held = {f"b{n}": {f"s{n}.{m}" for m in range(10)} for n in range(9)}
    weights = {stream: 100 + 7 * int(stream[-1]) for streams in held.values() for stream in streams}
    situation = Situation(held | {"new": set()}, weights=weights)
    plan = by_weight(situation)
    done = after(situation, plan)
    assert len(plan.revokes) <= 9
    final = by_weight(done)
    assert {name for _, name in final.grants} == {"new"}
    assert final.revokes == ()


def test_one_hot_stream_makes_the_others_move_away() -> None:
    weights = {"hot": 4000, "s1": 100, "s2": 100, "s3": 100}
    situation = Situation({"a": {"hot", "s1"}, "b": {"s2", "s3"}}, weights=weights)
    plan = by_weight(situation)
    assert plan.revokes == ("s1",)
    done = after(situation, plan)
    assert by_weight(done).grants == (("s1", "b"),)
    assert by_weight(after(done, by_weight(done))) == Plan((), (), {"a": 1, "b": 3})


@pytest.mark.parametrize(("factor", "moves"), [(1.05, 0), (1.2, 0), (2.0, 1)])
def test_small_differences_move_nothing(factor: float, moves: int) -> None:
    held = {name: {f"{name}{n}" for n in range(4)} for name in "ab"}
    weights = {s: round(1000 * factor) if s[0] == "a" else 1000 for own in held.values() for s in own}
    assert len(by_weight(Situation(held, weights=weights)).revokes) == moves


def test_without_borrowers_nothing_is_planned() -> None:
    assert by_weight(Situation({}, ["s"], weights={"s": 1})) == Plan((), (), {})


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
    st.lists(st.one_of(st.integers(1, 20), st.just(1000)), max_size=120),
)
def test_streams_are_poured_as_if_one_by_one(loads: list[int], weights: list[int]) -> None:
    size = len(loads)
    sums = sorted(load * size + rank for rank, load in enumerate(loads))
    heap, wanted = list(sums), []
    pour = sorted((weight * size for weight in weights), reverse=True)
    for weight in pour:
        wanted.append(heapq.heapreplace(heap, heap[0] + weight))
    assert _pour(sums, pour) == wanted
    assert sums == sorted(heap)
