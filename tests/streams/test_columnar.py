"""Small neighbours are decoded together, and nobody can tell: the same messages, and the same damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import entry_id
from streamlease.streams.entries import columnar, expanding
from streamlease.streams.entries.decoding import DamagedEntry, Entry, decode_entries
from streamlease.streams.entries.entries import (
    CODECS,
    MESSAGE_SCHEMA,
    Encoded,
    Row,
    encode_rows,
    encode_typed_rows,
)
from streamlease.streams.entries.layout import layout_of
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.values import check_values
from tests.streams.helpers import offsets

STREAM = StreamId("s", 0, 0)


def stored(entry: Encoded, first: int, appended: int) -> Entry:
    """The entry as XRANGE gives it back."""
    return entry_id(first, entry.rows).encode(), [b"a", b"%d" % appended, *entry.fields]


def whole(batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    """All rows as Python values, with moments as numbers."""
    rows = []
    for batch in batches:
        times = {"timestamp", "append_timestamp"} & {*batch.schema.names}
        for name in times:
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, name, batch.column(name).cast(pa.int64()))  # noqa: PLW2901
        rows += batch.to_pylist()
    return rows


some_rows = st.builds(
    Row,
    topic=st.sampled_from(["s/a", "s/b", "ß/ä", "s/" + "x" * 300]),
    payload=st.binary(max_size=40) | st.integers(0, 255).map(lambda byte: bytes([byte, 7]) * 9000),
    key=st.none() | st.binary(max_size=8),
    headers=st.none() | st.just((("name", b"value"),)),
    timestamp=st.none() | st.sampled_from([0, 1, 2**40, 2**62]),
    values=st.none(),
    diff=st.just(1) | st.sampled_from([-1, 7]),
)


@settings(deadline=None, max_examples=150)
@given(st.data())
@pytest.mark.slow
def test_neighbours_give_what_each_gives_alone(data: st.DataObject) -> None:
    entries: list[Entry] = []
    first = data.draw(st.sampled_from([0, 10**12]))
    begin = first
    for rows in data.draw(st.lists(st.lists(some_rows, min_size=1, max_size=5), min_size=1, max_size=8)):
        codec = data.draw(st.sampled_from(CODECS))
        entry = encode_rows([*rows, rows[0]], codec)  # two at least, so none is a single message
        entries.append(stored(entry, first, data.draw(st.integers(0, 2**60))))
        first += entry.rows
    start, end = sorted(data.draw(st.tuples(*[st.integers(begin, first)] * 2)))
    columns = data.draw(st.none() | st.sets(st.sampled_from(MESSAGE_SCHEMA.names)).map(frozenset))

    together = decode_entries(STREAM, entries, start, end, columns=columns)
    alone = [
        batch for entry in entries for batch in decode_entries(STREAM, [entry], start, end, columns=columns)
    ]

    for batch in together:
        batch.validate(full=True)
    assert whole(together) == whole(alone)
    assert sum(batch.num_rows for batch in together) == end - start
    whole_ones = decode_entries(STREAM, entries, columns=columns)
    forms = [flat[flat.index(b"c") + 1] for _, flat in entries]
    assert len(whole_ones) == len([*groupby(forms)]), "those of one form came together"


def test_large_entries_are_not_copied_into_others() -> None:
    """Payloads of a large entry stay where Redis' answer put them."""
    sizes = [10, columnar.ENOUGH_ROWS, 10, 10, columnar.ENOUGH_ROWS]
    entries, first = [], 0
    for size in sizes:
        entries.append(stored(encode_rows([Row("s/a", b"x", None, None, None)] * size), first, 1))
        first += size
    batches = decode_entries(STREAM, entries)
    assert [batch.num_rows for batch in batches] == [10, columnar.ENOUGH_ROWS, 20, columnar.ENOUGH_ROWS]
    assert offsets(batches) == list(range(first))


def test_entries_that_do_not_follow_each_other_are_not_joined() -> None:
    two = encode_rows([Row("s/a", b"x", None, None, None)] * 2)
    batches = decode_entries(STREAM, [stored(two, first, 1) for first in (0, 2, 7, 9)])
    assert [offsets([batch]) for batch in batches] == [[0, 1, 2, 3], [7, 8, 9, 10]]


def test_what_is_too_large_together_is_decoded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error: each of them may be read."""
    two = encode_rows([Row("s/" + "x" * 98, b"x", None, None, None)] * 2)
    entries = [stored(two, first, 1) for first in (0, 2, 4)]
    assert len(decode_entries(STREAM, entries)) == 1
    monkeypatch.setattr(expanding, "MOST_TOPIC_BYTES", 200)
    assert [offsets([batch]) for batch in decode_entries(STREAM, entries)] == [[0, 1], [2, 3], [4, 5]]


def test_entries_of_two_versions_of_a_schema_have_the_columns_of_the_newest() -> None:
    old = Schema.of({"columns": [{"name": "n", "type": "int64"}]})
    new = Schema.of({"columns": [{"name": "n", "type": "int64"}, {"name": "w", "type": "string"}]})
    entries, first = [], 0
    for schema, values in ((old, {"n": 1}), (old, {"n": 2}), (new, {"n": 3, "w": "x"}), (new, {"n": 4})):
        rows = [Row("s/a", b"", b"k", None, 5, check_values(schema, values))] * 2
        entries.append(stored(encode_typed_rows(schema, rows), first, 1))
        first += 2
    batches = decode_entries(STREAM, entries, versions=Versions([old, new]))
    assert [batch.num_rows for batch in batches] == [4, 4]
    found = [(row["offset"], row["n"], row["w"]) for row in whole(batches)]
    expected = [(1, None), (1, None), (2, None), (2, None), (3, "x"), (3, "x"), (4, None), (4, None)]
    assert found == [(offset, *values) for offset, values in enumerate(expected)]


# -- damage --------------------------------------------------------------------------------------------------

Flat = dict[bytes, bytes]


def batch_message(letters: str, columns: Sequence[pa.Array]) -> bytes:
    """The field ``b`` with these columns."""
    layout = layout_of(letters, None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, layout.schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=layout.schema))
    return bytes(memoryview(sink.getvalue())[len(layout.header) : -8])


def good(letters: str) -> Flat:
    """Two messages, of the topics s/a and s/b."""
    columns = {"i": pa.array([0, 1], pa.int16()), "l": pa.array([1, 2], pa.int32())}
    fields = {b"a": b"1", b"t": b"s/a\0s/b", b"c": letters.encode()}
    fields[b"b"] = batch_message(letters, [columns[letter] for letter in letters])
    return fields | ({b"p": b"xyy"} if "l" in letters else {})


def topic_of_a_neighbour(before: Flat, damaged: Flat, after: Flat) -> None:
    """Its second message has the second topic, and it has but one; its neighbours have two."""
    damaged[b"t"] = b"s/a"


def negative_topic(before: Flat, damaged: Flat, after: Flat) -> None:
    """Its first message has the topic before its first one, which would be the last one of its neighbour."""
    before[b"t"] = b"s/c\0s/d"
    columns = [pa.array([-1, 0], pa.int16()), pa.array([1, 2], pa.int32())]
    damaged[b"b"] = batch_message("il", columns)


def payload_of_a_neighbour(before: Flat, damaged: Flat, after: Flat) -> None:
    """It has a byte too little, and the next one a byte too much."""
    damaged[b"p"], after[b"p"] = b"xy", b"yxyy"


def another_batch_behind(before: Flat, damaged: Flat, after: Flat) -> None:
    """The next one's batch stands in the one before, and it has none."""
    before[b"b"] += damaged[b"b"]
    damaged[b"b"] = b""


def cut_off(before: Flat, damaged: Flat, after: Flat) -> None:
    damaged[b"b"] = damaged[b"b"][:-8]


def one_more_than_its_id_says(before: Flat, damaged: Flat, after: Flat) -> None:
    columns = [pa.array([0, 1, 0], pa.int16()), pa.array([1, 2, 0], pa.int32())]
    damaged[b"b"] = batch_message("il", columns)


def no_append_time(before: Flat, damaged: Flat, after: Flat) -> None:
    del damaged[b"a"]


def topics_that_are_no_text(before: Flat, damaged: Flat, after: Flat) -> None:
    damaged[b"t"] = b"\xff\0\xfe"


@pytest.mark.parametrize(
    "damage",
    [
        topic_of_a_neighbour,
        negative_topic,
        payload_of_a_neighbour,
        another_batch_behind,
        cut_off,
        one_more_than_its_id_says,
        no_append_time,
        topics_that_are_no_text,
    ],
)
@pytest.mark.parametrize("columns", [None, frozenset({"payload", "append_timestamp"})])
def test_damage_between_neighbours_is_told_with_its_offsets(
    damage: Callable[[Flat, Flat, Flat], None], columns: frozenset[str] | None
) -> None:
    fields = [good("il") for _ in range(5)]
    damage(*fields[1:4])
    entries = [
        (b"%d-2" % (2 * place + 1), [part for pair in one.items() for part in pair])
        for place, one in enumerate(fields)
    ]
    with pytest.raises(DamagedEntry) as told:
        decode_entries(STREAM, entries, columns=columns)
    assert (told.value.id, told.value.start, told.value.end) == ("5-2", 4, 6)
    before = decode_entries(STREAM, entries, 0, 4)
    assert offsets(before) == [0, 1, 2, 3]
    assert [row["payload"] for row in whole(before)] == [b"x", b"yy"] * 2
    assert offsets(decode_entries(STREAM, entries[4:])) == [8, 9]


def test_the_first_of_two_damaged_entries_is_told() -> None:
    fields = [good("il") for _ in range(4)]
    del fields[1][b"a"], fields[2][b"c"]
    entries = [
        (b"%d-2" % (2 * place + 1), [part for pair in one.items() for part in pair])
        for place, one in enumerate(fields)
    ]
    with pytest.raises(DamagedEntry) as told:
        decode_entries(STREAM, entries)
    assert told.value.start == 2
