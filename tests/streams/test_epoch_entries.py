"""The epoch of an entry becomes the column of its messages, whichever way they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.epochs.order import HIGHEST_EPOCH, Epoch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import entry_id
from streamlease.streams.entries.decoding import DamagedEntry, Entry, decode_entries
from streamlease.streams.entries.encoding import encode_message, encode_rows, encode_typed_rows, raised
from streamlease.streams.entries.epoch_fields import epoch_column, with_epoch
from streamlease.streams.entries.layout import CODECS, Encoded
from streamlease.streams.entries.message_rows import EPOCH, Row
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.rows.shared_rows import Rows
from streamlease.streams.rows.together import StreamStep, decode_together
from tests.streams.helpers import read_few

STREAM = StreamId("s", 0, 0)
EPOCHS = st.none() | st.lists(st.integers(0, 9) | st.just(HIGHEST_EPOCH), min_size=1, max_size=3).map(tuple)

OLD = Schema.of(pa.schema([pa.field("n", pa.int64(), nullable=False)]))
NEW = Schema.of(pa.schema([pa.field("n", pa.int64(), nullable=False), ("more", pa.string())]))


def staged(entry: Encoded, epoch: Epoch | None) -> Encoded:
    return entry if epoch is None else with_epoch(entry, epoch, "ingest-1 3")


def stored(entries: Sequence[Encoded], first: int = 0) -> list[Entry]:
    """Entries as XRANGE gives them back, one behind the other."""
    found: list[Entry] = []
    for entry in entries:
        found.append((entry_id(first, entry.rows).encode(), [b"a", b"7", *entry.fields]))
        first += entry.rows
    return found


def epochs(batches: Sequence[pa.RecordBatch]) -> list[list[int] | None]:
    for batch in batches:
        batch.validate(full=True)
    return [one for batch in batches for one in batch.column("epoch").to_pylist()]


def some_rows(count: int) -> list[Row]:
    return [Row("s/a", b"payload %d" % number) for number in range(count)]


@settings(deadline=None, max_examples=150)
@given(
    parts=st.lists(st.tuples(st.integers(1, 40), EPOCHS), min_size=1, max_size=8),
    codec=st.sampled_from(CODECS),
    columns=st.sampled_from([None, frozenset({"epoch"}), frozenset({"payload", "epoch"})]),
    cut=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_each_message_has_the_epoch_of_its_entry(
    parts: list[tuple[int, Epoch | None]], codec: Any, columns: frozenset[str] | None, cut: tuple[int, int]
) -> None:
    entries = stored([staged(encode_rows(some_rows(count), codec), epoch) for count, epoch in parts])
    wanted = [None if epoch is None else [*epoch] for count, epoch in parts for _ in range(count)]
    start, end = min(cut[0], len(wanted)), max(0, len(wanted) - cut[1])
    batches = decode_entries(STREAM, entries, start, end, columns=columns)
    assert epochs(batches) == wanted[start:end]
    few = read_few(STREAM, entries, 0, len(wanted))
    if few is not None:
        assert [one.epoch and [*one.epoch] for one in few.messages] == wanted
        assert epochs([few.batch]) == wanted
        assert few.messages == [
            one for rows in map(Rows, decode_entries(STREAM, entries)) for one in rows.messages
        ]


def test_entries_of_a_few_messages_are_read_without_arrow_whatever_their_epoch() -> None:
    entries = stored(
        [staged(encode_message(some_rows(1)[0]), (4,)), staged(encode_rows(some_rows(3)), (4, 5))]
    )
    few = read_few(STREAM, entries, 0, 4)
    assert few is not None and [one.epoch for one in few.messages] == [(4,), *[(4, 5)] * 3]


def test_streams_that_are_decoded_together_keep_their_epochs_apart() -> None:
    steps = [
        StreamStep(
            StreamId("s", 0, shard),
            stored([staged(encode_rows(some_rows(rows)), epoch) for rows, epoch in parts]),
            0,
            sum(rows for rows, _ in parts),
            None,
            100,
        )
        for shard, parts in enumerate([[(3, (1,)), (1, (2,))], [(1, None)], [(2, (3,)), (2, None)]])
    ]
    decoded = decode_together(steps, None, None)
    assert [epochs([decoded[place].batch]) for place in range(3)] == [
        [[1], [1], [1], [2]],
        [None],
        [[3], [3], None, None],
    ]


def test_typed_entries_have_epochs_and_keep_them_under_a_newer_schema() -> None:
    row = Row("s/a", b"", values={"n": 1})
    entry = staged(encode_typed_rows(OLD, [row, row]), (4, 5))
    assert entry.fields[0] == b"s", "the first field tells the schema"
    versions = Versions((OLD, NEW))
    again = raised(entry, versions)
    assert again.fields[:2] == [b"s", NEW.fingerprint.encode()]
    assert again.fields[-4:] == [b"x", b"4,5", b"w", b"ingest-1 3"]
    for one in (entry, again):
        (batch,) = decode_entries(STREAM, stored([one]), versions=versions)
        assert epochs([batch]) == [[4, 5], [4, 5]]
        assert batch.column("n").to_pylist() == [1, 1]
    plain = raised(encode_typed_rows(OLD, [row]), versions)
    assert b"x" not in plain.fields[::2]


@pytest.mark.parametrize(
    "text", [b"", b"4,", b"-1", b" 4", b"1.5", b"9223372036854775808", b"9" * 40, b"x", b"1," * 9 + b"1"]
)
@pytest.mark.parametrize("rows", [1, 3])
def test_an_epoch_that_nobody_wrote_is_damage(text: bytes, rows: int) -> None:
    entry = encode_rows(some_rows(rows))
    entries = stored([entry._replace(fields=[*entry.fields, b"x", text])])
    with pytest.raises(DamagedEntry, match="its epoch is"):
        decode_entries(STREAM, entries)
    assert read_few(STREAM, entries, 0, rows) is None


def test_the_column_of_many_rows() -> None:
    column = epoch_column([(1, 2), None, (3,)], [2, 1, 2])
    column.validate(full=True)
    assert column.type == EPOCH
    assert column.to_pylist() == [[1, 2], [1, 2], None, [3], [3]]
    assert epoch_column([None, None], [2, 3]).null_count == 5
    assert epoch_column([], []).to_pylist() == []
