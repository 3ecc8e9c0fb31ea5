"""Multisets: changes add up the same in every order, and in every way of doing it."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.streams.collections.core.multiset import Change, Multiset, consolidated
from streamlease.streams.collections.core.tables import added_up, changes_of

SOME = st.builds(
    Change,
    topic=st.sampled_from(["a", "b"]),
    key=st.sampled_from([None, b"", b"k"]),
    payload=st.sampled_from([b"", b"x", b"y"]),
    diff=st.integers(-3, 3).filter(bool) | st.sampled_from([2**63 - 1, -(2**63) + 1]),
)


def table_of(changes: list[Change]) -> pa.Table:
    schema = pa.schema(
        [("topic", pa.string()), ("key", pa.binary()), ("payload", pa.binary()), ("diff", pa.int64())]
    )
    return pa.Table.from_pylist([one._asdict() for one in changes], schema=schema)


def sums(changes: list[Change]) -> dict[object, int]:
    """The model: add up, leave out 0."""
    found: Counter[object] = Counter()
    for one in changes:
        found[one.item] += one.diff
    return {item: count for item, count in found.items() if count}


@settings(deadline=None, max_examples=100)
@given(st.lists(SOME, max_size=12))
def test_all_ways_of_adding_up_agree(changes: list[Change]) -> None:
    multiset = Multiset()
    multiset.add_all(changes)
    assert multiset.counts == sums(changes)
    assert sums(consolidated(changes)) == sums(changes)
    assert len(consolidated(changes)) == len(sums(changes))
    assert sums(changes_of(added_up(table_of(changes)))) == sums(changes)


def test_a_snapshot_and_what_is_behind_it_are_all_changes_at_every_point() -> None:
    """Exhaustive: each four changes of two items, each point of the snapshot, each of the reader."""
    items = [("a", None, b"x"), ("a", b"k", b"x")]
    for steps in product([(item, diff) for item in items for diff in (1, -1, 2)], repeat=4):
        changes = [Change(*item, diff) for item, diff in steps]
        for end in range(5):
            whole = sums(changes[:end])
            for point in range(end + 1):
                multiset = Multiset()
                multiset.add_all(consolidated(changes[:point]))
                multiset.add_all(changes[point:end])
                assert multiset.counts == whole


def test_what_is_taken_away_without_being_there_is_told() -> None:
    multiset = Multiset()
    multiset.add(("a", None, b"x"), -2)
    assert multiset.counts == {("a", None, b"x"): -2}
    multiset.add(("a", None, b"x"), 2)
    assert multiset.counts == {} and len(multiset) == 0


def test_items_come_by_topic_key_and_payload() -> None:
    ordered = [("a", None, b"z"), ("a", b"", b"x"), ("a", b"k", b"x"), ("a", b"k", b"y"), ("b", None, b"")]
    for some in permutations(ordered):
        changes = [Change(*item, 1) for item in some]
        assert [one.item for one in consolidated(changes)] == ordered


def test_counts_beyond_64_bits_are_right() -> None:
    changes = [Change("a", None, b"x", 2**63 - 1)] * 3
    assert Multiset(sums(changes)).counts == {("a", None, b"x"): 3 * (2**63 - 1)}  # type: ignore[arg-type]
    assert sums(changes_of(added_up(table_of(changes)))) == sums(changes)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, float("nan"), None, "x"])
def test_typed_values_of_each_kind_are_parts_of_items(value: object) -> None:
    table = pa.table({"topic": ["a", "a"], "key": pa.nulls(2, pa.binary()), "v": [value] * 2, "diff": [1, 2]})
    changes = changes_of(added_up(table))
    (one,) = consolidated(changes)
    assert one.diff == 3 and isinstance(one.payload, tuple) and one.payload[0][0] == "v"
