"""Entries of a few messages are read without Arrow, and nobody can tell."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import entry_id
from streamlease.streams.entries.decoding import DAMAGE, Entry, decode_entries
from streamlease.streams.entries.encoding import encode_rows
from streamlease.streams.entries.expanding import expanded_entry_bytes
from streamlease.streams.entries.few import MOST_ROWS, expanded_frame
from streamlease.streams.entries.layout import CODECS
from streamlease.streams.entries.message_rows import ALL_COLUMNS, Row
from streamlease.streams.rows import few_reading
from streamlease.streams.rows.few_messages import FewMessages
from streamlease.streams.rows.few_reading import MOST_MESSAGES
from streamlease.streams.rows.plain_entries import PLAIN_FIELDS, expanded, plain_entry
from streamlease.streams.rows.shared_rows import Rows
from tests.streams.helpers import read_few

STREAM = StreamId("s", 0, 3)

ROWS = st.builds(
    lambda topic, payload, key, timestamp: Row(topic, payload, key, timestamp=timestamp),
    topic=st.sampled_from(["a", "b/c", "\u00fc/\U0001f600", "x" * 200]),
    payload=st.binary(max_size=300) | st.sampled_from([bytes(400), b"ab" * 300]),
    key=st.none() | st.binary(max_size=20),
    timestamp=st.none() | st.integers(-(10**6), 10**6) | st.integers(0, 2 * 10**15),
)


def entries_of(parts: list[list[Row]], codec: Any = "zstd", first: int = 0) -> list[Entry]:
    """An entry for each of `parts`, as they stand in the stream."""
    entries: list[Entry] = []
    for number, rows in enumerate(parts):
        fields = [b"a", b"%d" % (10**15 + number), *encode_rows(rows, codec).fields]
        entries.append((entry_id(first, len(rows)).encode(), fields))
        first += len(rows)
    return entries


def by_arrow(entries: list[Entry], start: int, end: int) -> list[Rows]:
    return [*map(Rows, decode_entries(STREAM, entries, start, end, columns=ALL_COLUMNS))]


def check(few: FewMessages, entries: list[Entry], start: int, end: int) -> None:
    arrow = by_arrow(entries, start, end)
    assert few.messages == [message for rows in arrow for message in rows.messages]
    assert len(few) == end - start
    batches = [rows.plain().batch for rows in arrow]
    assert few.batch.schema == batches[0].schema
    # Not as Python's values: damage makes times that no calendar has.
    assert pa.Table.from_batches([few.batch]).equals(pa.Table.from_batches(batches).combine_chunks())
    few.batch.validate(full=True)


@settings(deadline=None, max_examples=60)
@given(parts=st.lists(st.lists(ROWS, min_size=1, max_size=9), min_size=1, max_size=6),
       codec=st.sampled_from(CODECS), first=st.integers(0, 2**40), cut=st.integers(0, 8))  # fmt: skip
def test_what_is_read_is_what_arrow_reads(parts: list[list[Row]], codec: Any, first: int, cut: int) -> None:
    entries = entries_of(parts, codec, first)
    end = first + sum(map(len, parts)) - min(cut, len(parts[-1]) - 1)
    few = read_few(STREAM, entries, first, end)
    assert few is not None
    check(few, entries, first, end)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_frame_of_fewer_bytes_or_more_than_it_should_have_is_damaged(codec: Any) -> None:
    frame = pa.Codec(codec).compress(b"ab" * 10, asbytes=True)
    assert expanded_frame(frame, 20, codec) == b"ab" * 10
    for size in (19, 21, 1000):
        with pytest.raises(DAMAGE):
            expanded_frame(frame, size, codec)


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_what_is_damaged_is_left_to_arrow(data: st.DataObject, codec: Any) -> None:
    """Whatever stands there, either both read the same, or nothing is read here."""
    parts = data.draw(st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=2))
    entries = [(id, [*map(bytes, fields)]) for id, fields in entries_of(parts, codec)]
    seed = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(20):
        damaged = [(id, [*fields]) for id, fields in entries]
        _, fields = damaged[seed.randrange(len(damaged))]
        place = seed.randrange(len(fields))
        value = bytearray(fields[place])
        match seed.randrange(4):
            case 0:
                del value[seed.randrange(len(value) + 1) :]
            case 1:
                value += seed.randbytes(seed.randrange(1, 9))
            case 2 if value:
                value[seed.randrange(len(value))] = seed.choice((0, 1, 0x7F, 0x80, 0xFF))
            case _ if value:
                value[seed.randrange(len(value))] ^= 1 << seed.randrange(8)
        fields[place] = bytes(value)
        end = sum(map(len, parts))
        few = read_few(STREAM, damaged, 0, end)
        if few is not None:
            check(few, damaged, 0, end)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [1, 2, 30, 31, MOST_ROWS])
@pytest.mark.parametrize("topics", [["a"], ["a", "b/c", "\u00fc"]])
def test_what_has_payloads_and_topics_only_is_plain(topics: list[str], rows: int, codec: Any) -> None:
    """But for what is long enough for its numbers to be compressed as well."""
    for payload in (b"", b"x", b"payload" * 12):
        some = [Row(topics[number % len(topics)], payload * (number % 3)) for number in range(rows)]
        (entry,) = entries_of([some], codec, first=10**9)
        if entry[1][::2] != PLAIN_FIELDS:
            assert b"b" not in entry[1], "it is a single message"
            continue
        found = plain_entry(entry[1], rows)
        if found is None:
            assert rows > 30
            assert codec != "none"
            continue
        (columns,) = expanded([found])
        assert found.size == expanded_entry_bytes(entry[1])
        messages = [message for one in by_arrow([entry], 10**9, 10**9 + rows) for message in one.messages]
        expected = [(one.topic, one.key, one.payload, one.timestamp_us) for one in messages]
        assert [*zip(*columns[:4], strict=True)] == expected
        assert {one.append_timestamp_us for one in messages} == {columns.appended}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("topics", [["a", "b/c", "a"], ["a", "a"], ["a/b"]])
def test_what_is_plain_is_taken_apart_at_once_and_damaged_is_left_to_arrow(
    topics: list[str], codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads and topics without anything else: each byte of such an entry, damaged in some ways."""
    plain: list[bool] = []

    def counted(*about: Any) -> Any:
        found = plain_entry(*about)
        plain.append(found is not None)
        return found

    monkeypatch.setattr(few_reading, "plain_entry", counted)
    rows = [Row(topic, b"payload %d" % number * number * 20) for number, topic in enumerate(topics)]
    rows[0] = Row(topics[0], b"")  # an empty one is as good as any
    rows.append(Row(topics[0], b"x"))
    (id, fields), end = entries_of([rows], codec)[0], len(rows)
    fields = [*map(bytes, fields)]
    few = read_few(STREAM, [(id, fields)], 0, end)
    assert few is not None
    assert plain == [True]
    check(few, [(id, fields)], 0, end)
    read = 0
    for place, value in enumerate(fields):
        for at, byte in enumerate(value):
            for other in {0, 1, 0x7F, 0x80, 0xFF, byte ^ 1, byte ^ 4} - {byte}:
                damaged = [(id, [*fields])]
                damaged[0][1][place] = value[:at] + bytes([other]) + value[at + 1 :]
                few = read_few(STREAM, damaged, 0, end)
                if few is not None:
                    read += 1
                    check(few, damaged, 0, end)
        for shorter in range(len(value)):
            damaged = [(id, [*fields])]
            damaged[0][1][place] = value[:shorter]
            few = read_few(STREAM, damaged, 0, end)
            if few is not None:
                check(few, damaged, 0, end)
    assert read, "what a payload is does not matter"


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_one_entry_says_too_much_another_one_cannot_make_up_for(codec: Any) -> None:
    """What the entries of a stream have compressed is expanded together; each has its own length."""
    some = [Row("a", b"%d" % number * 300) for number in range(5)]
    whole = [(id, [*map(bytes, fields)]) for id, fields in entries_of([some, some], codec)]
    few = read_few(STREAM, whole, 0, 10)
    assert few is not None
    check(few, whole, 0, 10)
    assert sum(len(row.payload) for row in some) == 1500
    length = struct.pack("<q", 1500)
    damaged = [(id, [*fields]) for id, fields in whole]
    (_, first), (_, second) = damaged
    first[-1] = first[-1].replace(length, struct.pack("<q", 1508))
    # Here the last payload ends earlier as well.
    second[-1] = second[-1].replace(struct.pack("<i", 1500), struct.pack("<i", 1492))
    assert read_few(STREAM, damaged, 0, 10) is None
    with pytest.raises(SchemaMismatch):
        by_arrow(damaged, 0, 10)
    for place in range(2):  # and each frame has to be whole
        damaged = [(id, [*fields]) for id, fields in whole]
        stored = damaged[place][1][-1]
        at = stored.index(length) + 8
        damaged[place][1][-1] = stored[: at + 9] + bytes(4) + stored[at + 13 :]
        assert read_few(STREAM, damaged, 0, 10) is None


def test_what_is_out_of_the_ordinary_is_not_read_here() -> None:
    row = Row("a", b"x")
    whole = entries_of([[row, row], [row]])
    assert read_few(STREAM, whole, 0, 3) is not None
    assert read_few(STREAM, [], 0, 0) is None
    assert read_few(STREAM, whole, 1, 3) is None, "begins inside an entry"
    assert read_few(STREAM, whole, 0, 4) is None, "more is wanted than is there"
    assert read_few(STREAM, [whole[1]], 0, 1) is None, "something is missing before it"
    with_headers = Row("a", b"x", headers=(("h", b"1"),))
    many = [[row] * (most + 1) for most in (MOST_ROWS, MOST_MESSAGES)]
    for parts in ([[with_headers]], [[with_headers, row]], *([one] for one in many)):
        assert read_few(STREAM, entries_of(parts), 0, len(parts[0])) is None
    for field in (b"s", b"h", b"A", b"R", b"new"):
        more = [(whole[0][0], [*whole[0][1], field, b"x"])]
        assert read_few(STREAM, more, 0, 2) is None
    late = [(b"0-1", [b"t", b"a", b"p", b"x", b"a", b"%d" % 2**63])]
    assert read_few(STREAM, late, 0, 1) is None
    with pytest.raises(SchemaMismatch):
        by_arrow(late, 0, 1)


def test_rows_of_messages_are_cut_filtered_and_joined() -> None:
    parts = [[Row(f"{'ab'[n % 2]}/{n}", b"%d" % n) for n in range(first, first + 3)] for first in (0, 3)]
    entries = entries_of(parts)
    few = read_few(STREAM, entries, 0, 6)
    assert few is not None
    assert few.filtered("#") is few
    odd = few.filtered("b/+")
    assert [message.offset for message in odd.messages] == [1, 3, 5]
    assert odd.offset(1) == 3
    assert odd.batch.column("topic").to_pylist() == ["b/1", "b/3", "b/5"]
    assert not few.filtered("c/#")
    assert few.slice(2, 4).messages == few.messages[2:4]
    halves = [few.slice(0, 2), few.slice(2, 6)]
    assert FewMessages.joined(halves).messages == few.messages
    assert FewMessages.joined(halves[:1]) is halves[0]
