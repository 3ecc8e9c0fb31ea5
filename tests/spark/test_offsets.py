"""What stands in Spark's checkpoint is read back, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.protocol.cuts import NO_RANGES, CutRange, Ranges
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.spark.core.checkpoint import FORM, CutOffset
from tests.spark.refusals import one_line

number = st.integers(0, 2**62)
ranges = st.builds(
    lambda stream, lease_epoch, start, count: CutRange(str(stream), lease_epoch, start, start + count),
    st.builds(StreamId, st.sampled_from(["s", "other-space"]), st.integers(0, 3), st.integers(0, 20_000)),
    number,
    number,
    number,
)
offsets = st.builds(
    CutOffset,
    group=st.just("g/t/#"),
    session=st.text(min_size=1),
    cut=number,
    term=number,
    ranges=st.lists(ranges, unique_by=lambda part: part.stream).map(Ranges.of),
)
GOOD: dict[str, Any] = CutOffset("g/t/#", "q-1", 4, 2, Ranges.of((CutRange("s.0.1", 5, 3, 9),))).to_json()


def primitive(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and primitive(part) for key, part in value.items())
    return isinstance(value, int | str)


@given(offsets)
def test_an_offset_survives_spark_s_checkpoint(offset: CutOffset) -> None:
    data = offset.to_json()
    assert primitive(data)
    read = CutOffset.from_json(json.loads(json.dumps(data)), "g/t/#")
    assert set(read.ranges) == set(offset.ranges)
    assert len(read.ranges) == len(offset.ranges)
    assert replace(read, ranges=NO_RANGES) == replace(offset, ranges=NO_RANGES)
    assert CutOffset.from_json(read.to_json(), "g/t/#") == read


def test_the_offset_of_10_000_streams_is_below_250_kb() -> None:
    parts = (CutRange(f"clickstream.12.{n}", 12, 10**9 + n, 10**9 + 2 * n) for n in range(10_000))
    assert len(json.dumps(CutOffset("g/t/#", "q-1", 4, 2, Ranges.of(parts)).to_json())) < 250_000


def test_the_form_is_what_the_checkpoints_of_this_version_hold() -> None:
    assert GOOD == {
        "streamlease": 3,
        "group": "g/t/#",
        "session": "q-1",
        "cut": 4,
        "term": 2,
        "ranges": {"s.0": "1=3+6/5"},
    }


def test_a_checkpoint_of_another_group_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"'g/t/#'.*'other/t/#'") as refused:
        CutOffset.from_json(GOOD, "other/t/#")
    assert "checkpointLocation" in one_line(refused.value)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"logOffset": 4},
        {"t": {"0": 23, "1": 345}},
        {"two\nlines": "two\nlines"},
        {**GOOD, "streamlease": FORM + 1},
        {"streamlease": FORM},
        {"streamlease": FORM, "group": "g/t/#"},
        {**GOOD, "session": 7},
        {**GOOD, "cut": "4"},
        {**GOOD, "cut": -1},
        {**GOOD, "ranges": [1]},
        {**GOOD, "ranges": {"s.0": 3}},
        {**GOOD, "ranges": {"s.0": {"1": "1=3+6/5"}}},
        {**GOOD, "ranges": {"s.0": ""}},
        {**GOOD, "ranges": {"s.0": "1=3+6"}},
        {**GOOD, "ranges": {"s.0": "1=3+-6/5"}},
        {**GOOD, "ranges": {"s.0": ["1=3+6/5"]}},
        [1, 2],
        "text",
        None,
    ],
    ids=str,
)
def test_foreign_json_is_refused_in_one_line(data: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        CutOffset.from_json(data, "g/t/#")
    assert "checkpointLocation" in one_line(refused.value)
