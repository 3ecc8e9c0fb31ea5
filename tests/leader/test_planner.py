"""Plans are balanced, sticky and minimal, and do not depend on the order of their inputs."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.leader.core.planning.planner import Plan, balanced

Held = dict[str, set[str]]


@st.composite
def groups(draw: st.DrawFn, streams: int = 6, borrowers: int = 4) -> tuple[Held, set[str]]:
    """Who holds what, and what is free."""
    names = [f"b{n}" for n in range(draw(st.integers(1, borrowers)))]
    held: Held = {name: set() for name in names}
    free: set[str] = set()
    for n in range(draw(st.integers(0, streams))):
        owner = draw(st.sampled_from([*names, None]))
        (held[owner] if owner is not None else free).add(f"s{n}")
    return held, free


def after(held: Held, plan: Plan) -> Held:
    """Who holds what once the plan's grants and revokes are done."""
    result = {name: streams - set(plan.revokes) for name, streams in held.items()}
    for stream, name in plan.grants:
        result[name].add(stream)
    return result


def completed(held: Held, free: set[str]) -> tuple[Held, int]:
    """The assignment after as many plans as it takes, and how many streams were taken from somebody."""
    taken = 0
    for _ in range(3):
        plan = balanced(held, free)
        if not plan.grants and not plan.revokes:
            return held, taken
        held = after(held, plan)
        taken += len(plan.revokes)
        free = (free - {stream for stream, _ in plan.grants}) | set(plan.revokes)
    raise AssertionError("plans do not come to rest")


def fewest_taken(held: Held, free: set[str]) -> int:
    """By trying every balanced assignment."""
    total = sum(map(len, held.values())) + len(free)
    share, extra = divmod(total, len(held))
    best = total
    for rich in itertools.combinations(sorted(held), extra):
        taken = sum(max(0, len(streams) - share - (name in rich)) for name, streams in held.items())
        best = min(best, taken)
    return best


@given(groups())
def test_plans_end_in_balance_with_the_fewest_moves(group: tuple[Held, set[str]]) -> None:
    held, free = group
    result, taken = completed(held, free)
    counts = [len(streams) for streams in result.values()]
    assert max(counts) - min(counts) <= 1
    assert sorted(stream for streams in result.values() for stream in streams) == sorted(
        {stream for streams in held.values() for stream in streams} | free
    )
    assert taken == fewest_taken(held, free)


@given(groups())
def test_one_plan_gives_each_free_stream_once_and_takes_only_what_is_held(
    group: tuple[Held, set[str]],
) -> None:
    held, free = group
    plan = balanced(held, free)
    granted = Counter(stream for stream, _ in plan.grants)
    assert set(granted) <= free
    assert not granted or max(granted.values()) == 1
    assert set(plan.revokes) <= set().union(*held.values())
    assert len(set(plan.revokes)) == len(plan.revokes)
    assert sum(plan.targets.values()) == sum(map(len, held.values())) + len(free)
    for name, streams in after(held, plan).items():
        assert len(streams) <= plan.targets[name]


@given(groups(), st.data())
def test_what_is_fixed_is_not_taken_and_what_leaves_is_counted(
    group: tuple[Held, set[str]], data: st.DataObject
) -> None:
    held, free = group
    everything = sorted(set().union(*held.values()))
    fixed = set(data.draw(st.lists(st.sampled_from(everything)))) if everything else set()
    leaving = data.draw(st.integers(0, 3))
    plan = balanced(held, free, fixed, leaving)
    assert not fixed & set(plan.revokes)
    assert sum(plan.targets.values()) == len(everything) + len(free) + leaving
    counts = plan.targets.values()
    assert max(counts) - min(counts) <= 1


@given(groups(streams=10, borrowers=5), st.randoms())
def test_the_order_of_the_inputs_does_not_matter(group: tuple[Held, set[str]], random: object) -> None:
    held, free = group
    names, streams = list(held), sorted(free)
    random.shuffle(names)  # type: ignore[attr-defined]
    random.shuffle(streams)  # type: ignore[attr-defined]
    shuffled = {}
    for name in names:
        own = sorted(held[name])
        random.shuffle(own)  # type: ignore[attr-defined]
        shuffled[name] = own
    one, two = balanced(held, free), balanced(shuffled, streams)
    assert (one.grants, one.revokes, dict(one.targets)) == (two.grants, two.revokes, dict(two.targets))


def test_a_balanced_group_is_left_alone() -> None:
    held = {"a": {"s0", "s1"}, "b": {"s2"}, "c": {"s3", "s4"}}
    assert balanced(held, ()) == Plan((), (), {"a": 2, "b": 1, "c": 2})


def test_a_newcomer_gets_its_share_and_no_more_is_moved() -> None:
    plan = balanced({"a": {f"s{n}" for n in range(6)}, "new": set()}, ())
    assert len(plan.revokes) == 3
    assert plan.targets == {"a": 3, "new": 3}


def test_without_borrowers_nothing_is_planned() -> None:
    assert balanced({}, {"s0"}) == Plan((), (), {})


def test_more_borrowers_than_streams_leaves_some_without() -> None:
    plan = balanced({"a": (), "b": (), "c": ()}, ["s0"])
    assert plan.grants == (("s0", "a"),)


@given(st.integers(0, 400), st.integers(0, 99))
def test_a_join_or_leave_of_one_of_a_hundred_moves_few_streams(streams: int, leaver: int) -> None:
    names = [f"b{n:02}" for n in range(100)]
    held: Held = {name: set() for name in names}
    for stream, name in balanced(held, [f"s{n}" for n in range(streams)]).grants:
        held[name].add(stream)
    most = -(-streams // 100) + 1
    result, taken = completed(held | {"newcomer": set()}, set())
    moved = sum(len(own - held.get(name, set())) for name, own in result.items())
    assert taken == moved <= most
    freed = held.pop(names[leaver])
    result, taken = completed(held, freed)
    assert sum(len(own - held[name]) for name, own in result.items()) == len(freed) + taken <= most


def test_a_hundred_thousand_streams_over_a_thousand_borrowers(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints its times; no assertion on them, for they depend on the machine."""
    streams = [f"space.0.{n}" for n in range(100_000)]
    names = [f"b{n:04}" for n in range(1000)]
    began = time.perf_counter()
    first = balanced(dict.fromkeys(names, ()), streams)
    planned = time.perf_counter()
    held: Held = {name: set() for name in names}
    for stream, name in first.grants:
        held[name].add(stream)
    ready = time.perf_counter()
    second = balanced(held | {"newcomer": set()}, ())
    ended = time.perf_counter()
    with capsys.disabled():
        print(  # noqa: T201 - it is the purpose of this test
            f"\n100,000 streams over 1,000 borrowers: first plan {(planned - began) * 1000:.0f} ms, "
            f"for a newcomer {(ended - ready) * 1000:.0f} ms"
        )
    assert len(first.grants) == 100_000
    assert {len(streams) for streams in held.values()} == {100}
    assert len(second.revokes) == second.targets["newcomer"] == 99
