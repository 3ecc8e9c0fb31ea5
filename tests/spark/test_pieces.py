"""Which task reads which part of a cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.borrower.book import Held
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.spark.core.pieces import divided
from streamlease.spark.core.query_cuts import QueryCuts

SLOTS = 4
parts = st.lists(
    st.builds(
        lambda shard, start, count: CutRange(f"s.0.{shard}", 5, start, start + count),
        st.integers(0, 30),
        st.integers(0, 100),
        st.integers(1, 200),
    ),
    unique_by=lambda part: part.stream,
    min_size=1,
)
asked = st.one_of(st.none(), st.integers(1, 60))
slots_of = st.dictionaries(st.integers(0, 30).map(lambda shard: f"s.0.{shard}"), st.integers(0, SLOTS - 1))


def by_slot(ranges: Ranges, slots: int, slot_of: dict[str, int]) -> dict[int, Ranges]:
    """What each slot of a query reads that holds these streams in these slots."""
    cuts = QueryCuts("g/t", lambda slot, progress: None)
    cuts.held.update({stream: Held.begin(slot, stream, 5, 0) for stream, slot in slot_of.items()})
    return cuts.by_slot(ranges, slots)


@given(parts, slots_of, asked, asked)
def test_the_pieces_are_the_whole_and_as_many_as_asked_for(
    ranges: list[CutRange], slot_of: dict[str, int], least: int | None, most: int | None
) -> None:
    slots = by_slot(Ranges.of(ranges), SLOTS, slot_of)
    assert {part for parts in slots.values() for part in parts} == set(ranges)
    found = divided(slots, least, most)
    ends: dict[str, int] = {}
    for slot, pieces in found:
        for part, whole in pieces:
            assert slot == slot_of.get(part.stream, ranges.index(whole) % SLOTS)
            assert part.start == ends.get(part.stream, whole.start)
            assert (part.stream, part.lease_epoch) == (whole.stream, whole.lease_epoch)
            assert part.start < part.end
            ends[part.stream] = part.end
    assert ends == {part.stream: part.end for part in ranges}
    total = sum(part.end - part.start for part in ranges)
    if least is not None:
        assert len(found) >= min(least, total)
    if most is not None:
        assert all(pieces.parts.messages <= most for _, pieces in found)
    if least is None and most is None:
        assert len(found) == len(slots)


@pytest.mark.parametrize("least", [1, 2, 3])
def test_slots_are_not_joined(least: int) -> None:
    ranges = Ranges.of([CutRange(f"s.0.{slot}", 1, 0, 10) for slot in range(3)])
    assert len(divided(by_slot(ranges, 3, {}), least)) == 3
