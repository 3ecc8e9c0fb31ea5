"""A step that brings all there is of a stream, and little, is taken at once; any other as it ever was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import entry_id
from streamlease.streams.entries.decoding import Entry
from streamlease.streams.entries.entries import CODECS, encode_rows
from streamlease.streams.entries.message_rows import ALL_COLUMNS
from streamlease.streams.log.ranges import RangeReader
from tests.streams.helpers import rows

STREAM = StreamId("s", 0, 0)


def reader(start: int = 0, end: int | None = None, **more: Any) -> RangeReader:
    return RangeReader(STREAM, start, end, columns=ALL_COLUMNS, **more)


def entries_of(lengths: list[int], first: int, codec: Any = "none") -> list[Entry]:
    entries: list[Entry] = []
    for length in lengths:
        fields = [*encode_rows(rows(first, length), codec).fields, b"a", b"%d" % 10**15]
        entries.append((entry_id(first, length).encode(), fields))
        first += length
    return entries


def meta(next: int, **more: Any) -> list[bytes | None]:
    known: dict[str, Any] = {"next": next, "floor": 0, "state": "open", "last_append": 1, "bytes": 1} | more
    names = ("next", "floor", "state", "last_append", "bytes", "exists", "merged", "schemas")
    return [None if known.get(name) is None else str(known[name]).encode() for name in names]


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(1, 9), max_size=5), first=st.integers(0, 2**40),
       codec=st.sampled_from(CODECS), end=st.booleans())  # fmt: skip
def test_it_is_what_a_step_brings(lengths: list[int], first: int, codec: Any, end: bool) -> None:
    next = first + sum(lengths)
    replies = [meta(next, floor=first), entries_of(lengths, first, codec)]
    known = next + 1 if end else None  # it was told to end later than it does
    fast, slow = (reader(first, known, enough=100, max_bytes=10**6) for _ in range(2))
    found, taken = fast.take_few(replies), slow.take(replies, few=True)
    assert found is not None
    few = slow.read_few(taken)
    assert [one for rows in found for one in rows.messages] == ([] if few is None else [*few.messages])
    for name in ("position", "bytes", "done", "state", "in_merged", "_bytes_left", "_seen"):
        if name != "_seen" or lengths:
            assert getattr(fast, name) == getattr(slow, name), name
    assert fast.entries_for(1000) == slow.entries_for(1000)


USUAL = entries_of([3, 2], 0)
UNUSUAL = {
    "an error": ([ResponseError("no"), USUAL], {}),
    "an error of the entries": ([meta(5), ResponseError("no")], {}),
    "no stream": ([[None] * 8, []], {}),
    "damaged": ([[b"five", *meta(5)[1:]], USUAL], {}),
    "trimmed": ([meta(5, floor=1), USUAL], {}),
    "merged": ([meta(5, merged=3), USUAL], {}),
    "with a schema": ([meta(5, schemas="[]"), USUAL], {}),
    "there may be more": ([meta(5), USUAL], {"count": 2}),
    "messages are missing at the end": ([meta(6), USUAL], {}),
    "messages are missing before it": ([meta(5), USUAL[1:]], {}),
    "trimmed while it was read": ([meta(5), [(USUAL[0][0], None), USUAL[1]]], {}),
    "ends inside": ([meta(5), USUAL], {"end": 4}),
    "begins inside": ([meta(5), USUAL], {"start": 1}),
    "more than is wanted": ([meta(5), USUAL], {"enough": 4}),
    "too large": ([meta(5), USUAL], {"max_bytes": 100}),
    "to be whole": ([meta(5), USUAL], {"whole": True}),
    "of some columns": ([meta(5), USUAL], {"columns": frozenset({"topic"})}),
    "merged entries are asked for": ([meta(5), USUAL], {"merged": True}),
    "many messages": ([meta(60), entries_of([60], 0)], {}),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_a_step(name: str) -> None:
    replies, arguments = UNUSUAL[name]
    one = RangeReader(STREAM, **{"start": 0, "columns": ALL_COLUMNS} | arguments)  # type: ignore[arg-type]
    before = {**vars(one)}
    assert one.take_few(replies) is None
    assert vars(one) == before, "nothing is changed"


def test_only_the_first_step_is() -> None:
    one = reader(0, count=2)
    one.take([meta(5), USUAL])
    assert not one.done
    assert one.take_few([meta(5), []]) is None
