"""Names, stream ids and entry ids are read back as they were written, or refused."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.protocol.errors import HistoryTruncated, InvalidInput
from streamlease.protocol.ids import StreamId, check_name, random_token
from streamlease.protocol.offsets import OffsetRange, entry_id, parse_entry_id, range_start

OFFSETS = st.integers(min_value=0, max_value=2**53 - 1)
COUNTS = st.integers(min_value=1, max_value=10**6)


@given(OFFSETS, COUNTS)
def test_an_entry_id_tells_the_offsets_of_its_entry(first: int, count: int) -> None:
    id = entry_id(first, count)
    assert parse_entry_id(id) == OffsetRange(first, first + count)
    assert parse_entry_id(id.encode()) == parse_entry_id(id)
    assert len(parse_entry_id(id)) == count


def test_the_smallest_entry_id_is_one_that_redis_accepts() -> None:
    assert entry_id(0, 1) == "0-1"


def as_redis_compares(id: str) -> tuple[int, int]:
    high, _, low = id.partition("-")
    return int(high), int(low)


@given(st.lists(COUNTS, min_size=2, max_size=8), st.data())
def test_ids_rise_and_a_range_begins_with_the_entry_that_holds_its_offset(
    counts: list[int], data: st.DataObject
) -> None:
    firsts = [sum(counts[:n]) for n in range(len(counts))]
    ids = [entry_id(first, count) for first, count in zip(firsts, counts, strict=True)]
    assert sorted(ids, key=as_redis_compares) == ids
    offset = data.draw(st.integers(0, sum(counts) - 1))
    found = next(id for id in ids if as_redis_compares(id) >= as_redis_compares(range_start(offset)))
    held = parse_entry_id(found)
    assert held.start <= offset < held.end


def test_an_empty_range_has_no_length_even_when_turned_round() -> None:
    assert len(OffsetRange(5, 5)) == 0
    assert len(OffsetRange(7, 5)) == 0


@given(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}", fullmatch=True),
    st.integers(0, 10**6),
    st.integers(0, 4095),
)
def test_a_stream_id_is_read_back(space: str, generation: int, shard: int) -> None:
    stream = StreamId(check_name("space", space), generation, shard)
    assert StreamId.parse(str(stream)) == stream


@pytest.mark.parametrize(
    "text",
    ["", "a", "a.0", "a.0.", "a.0.x", "a.-1.0", ".0.0", "a b.0.0", "a.0.0.0", "a.0.0\n", "a.٣.0", "a.01.0"],
)
def test_another_text_is_no_stream_id(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"SPACE\.GENERATION\.SHARD") as caught:
        StreamId.parse(text)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a.b", "ä", "a\n", "x" * 64, "a:b", None, 3])
def test_another_text_is_no_name(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"space .* is not a name: use 1 to 63 letters") as caught:
        check_name("space", name)
    assert len(str(caught.value).splitlines()) == 1


def test_tokens_differ_and_are_names() -> None:
    tokens = {check_name("token", random_token()) for _ in range(1000)}
    assert len(tokens) == 1000


def test_a_truncated_history_survives_the_way_between_processes() -> None:
    error = HistoryTruncated("flights.0.1", 3, 17)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.stream, copy.asked, copy.oldest) == (str(error), "flights.0.1", 3, 17)
    assert "17" in str(error)
    assert "'earliest'" in str(error)
