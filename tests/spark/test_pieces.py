"""Which task reads which part of a cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.borrower.reading import Span
from streamlease.spark.core.checkpoint import SlotRange
from streamlease.spark.core.pieces import by_slot, pieces

parts = st.lists(
    st.builds(
        lambda shard, start, count, slot: SlotRange(f"s.0.{shard}", start, start + count, 5, slot),
        st.integers(0, 30),
        st.integers(0, 100),
        st.integers(1, 200),
        st.integers(0, 3),
    ),
    unique_by=lambda part: part.stream,
    min_size=1,
)
asked = st.one_of(st.none(), st.integers(1, 60))


def rows(spans: tuple[Span, ...]) -> int:
    return sum(span.end - span.start for span in spans)


@given(parts, asked, asked)
def test_the_pieces_are_the_whole_and_as_many_as_asked_for(
    ranges: list[SlotRange], least: int | None, most: int | None
) -> None:
    slots = by_slot(ranges)
    found = pieces(slots, least, most)
    ends: dict[str, int] = {}
    for slot, spans in found:
        for span in spans:
            (part,) = [one for one in ranges if one.stream == span.stream]
            assert slot == part.slot
            assert span.start == ends.get(span.stream, part.start)
            assert span.start < span.end
            assert (span.cut or (span.start, span.end)) == (part.start, part.end)
            ends[span.stream] = span.end
    assert ends == {part.stream: part.end for part in ranges}
    total = sum(part.end - part.start for part in ranges)
    if least is not None:
        assert len(found) >= min(least, total)
    if most is not None:
        assert all(rows(spans) <= most for _, spans in found)
    if least is None and most is None:
        assert len(found) == len(slots)


@pytest.mark.parametrize("least", [1, 2, 3])
def test_slots_are_not_joined(least: int) -> None:
    slots = by_slot([SlotRange(f"s.0.{slot}", 0, 10, 1, slot) for slot in range(3)])
    assert len(pieces(slots, least)) == 3
