"""A few messages of each of many streams are decoded together, and nobody can tell."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.decoding import DamagedEntry, Entry, decode_entries
from streamlease.streams.entries.entries import (
    CODECS,
    Row,
    encode_rows,
    encode_typed_rows,
    filter_batch,
    to_messages,
)
from streamlease.streams.entries.message_rows import ALL_COLUMNS as COLUMNS
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.values import check_values
from streamlease.streams.rows import together
from streamlease.streams.rows.shared_rows import Rows
from streamlease.streams.rows.together import StreamStep, decode_together
from tests.streams.test_columnar import some_rows, stored, whole


def alone(part: StreamStep, columns: frozenset[str] | None = COLUMNS) -> Rows:
    """What the part has, decoded without others."""
    (batch,) = decode_entries(
        part.stream, part.entries, part.start, part.end, versions=part.versions, columns=columns
    )
    return Rows(batch)


def part_of(
    shard: int, entries: list[Entry], start: int, end: int, versions: Versions | None = None
) -> StreamStep:
    return StreamStep(StreamId("s", 0, shard), entries, start, end, versions, size=100)


@settings(deadline=None, max_examples=80)
@given(st.data())
@pytest.mark.slow
def test_streams_give_what_each_gives_alone(data: st.DataObject) -> None:
    parts: list[StreamStep] = []
    ordinary: list[int] = []
    for shard in range(data.draw(st.integers(2, 6))):
        begin = first = data.draw(st.sampled_from([0, 7, 10**12]))
        entries: list[Entry] = []
        for rows in data.draw(st.lists(st.lists(some_rows, min_size=1, max_size=4), min_size=1, max_size=3)):
            entry = encode_rows(rows, data.draw(st.sampled_from(CODECS)))
            entries.append(stored(entry, first, data.draw(st.integers(0, 2**60))))
            first += entry.rows
        start = min(first - 1, begin + data.draw(st.sampled_from([0, 0, 0, 1])))
        parts.append(part_of(shard, entries, start, first))
        if start == begin:
            ordinary.append(shard)
    columns = data.draw(st.sampled_from([COLUMNS, None]))

    decoded = decode_together(parts, None, columns)
    assert [*decoded] == (ordinary if len(ordinary) > 1 else []), "the others begin inside an entry"
    for place, found in decoded.items():
        part = parts[place]
        batches = decode_entries(part.stream, part.entries, part.start, part.end, columns=columns)
        assert whole([found.plain().batch]) == whole([Rows(batch).plain().batch for batch in batches])
        found.batch.validate(full=True)
        if columns is not None:
            messages = [message for batch in batches for message in to_messages(batch)]
            assert found.messages == messages
            for filter in ("s/a", "ß/#", "#", "none"):
                chosen = found.filtered(filter)
                expected = [one for batch in batches for one in to_messages(filter_batch(batch, filter))]
                assert chosen.messages == expected
                assert len(chosen) == len(expected)


def streams_of(count: int) -> list[StreamStep]:
    """As many streams, of one form, with five messages each, in two entries."""
    parts = []
    for shard in range(count):
        begin, rows = 10 * shard, [Row("s/a", b"%d" % shard), Row("s/b", b"x")]
        entries = [
            stored(encode_rows(rows), begin, 5),
            stored(encode_rows([*rows, rows[0]]), begin + 2, 6),
        ]
        parts.append(part_of(shard, entries, begin, begin + 5))
    return parts


def test_one_that_is_damaged_is_decoded_alone_and_the_others_of_its_batch_too() -> None:
    parts = streams_of(4)
    id, fields = parts[2].entries[1]
    body = fields.index(b"b") + 1
    parts[2] = parts[2]._replace(
        entries=[parts[2].entries[0], (id, [*fields[:body], fields[body][:-9], *fields[body + 1 :]])]
    )
    assert decode_together(parts, None, COLUMNS) == {}
    with pytest.raises(DamagedEntry):
        alone(parts[2])
    del parts[2]
    assert [*decode_together(parts, None, COLUMNS)] == [0, 1, 2]


def test_the_columns_of_a_schema_are_decoded_together() -> None:
    schema = Schema.of({"columns": [{"name": "n", "type": "int64"}]})
    versions = Versions([schema])
    typed = [
        encode_typed_rows(schema, [Row("s/a", b"", values=check_values(schema, {"n": shard}))] * 2)
        for shard in range(3)
    ]
    parts = [
        part_of(shard, [stored(entry, 0, 1)], 0, entry.rows, versions) for shard, entry in enumerate(typed)
    ]
    found = decode_together(parts, None, COLUMNS)
    assert [[message.values for message in rows.messages] for rows in found.values()] == [
        [{"n": shard}] * 2 for shard in range(3)
    ]
    untyped = [part._replace(versions=None) for part in parts]
    assert decode_together(untyped, schema, COLUMNS) == {}, "a schema that is not known is told alone"
    mixed = [parts[0], streams_of(1)[0]._replace(versions=versions), parts[2]]
    assert [*decode_together(mixed, None, COLUMNS)] == [0, 2], "what has no schema there is told alone"


def test_what_is_decoded_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "MOST_ROWS", 10)
    parts = streams_of(5)
    parts[3] = parts[3]._replace(size=together.FEW_BYTES + 1)
    found = decode_together(parts, None, COLUMNS)
    assert [*found] == [0, 1, 2, 4], "the fourth is too large"
    assert found[0]._shared is found[1]._shared is not found[2]._shared is found[4]._shared
