"""What a file is made of: codecs, statistics and encodings, as other engines find them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamlease.protocol.errors import Lost
from streamlease.streams.archive.files.file_columns import is_worth_zstd, table_columns
from streamlease.streams.archive.files.file_reading import read_file
from streamlease.streams.archive.files.file_writing import LEVEL, FileWriter
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.entries.columnar import TOPIC_INDEXED
from streamlease.streams.entries.schemas import Schema

STREAM = "flights.0.1"
MOMENT = 1_700_000_000_000_000
ALL_READ = {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
"""The encodings of Parquet that every engine reads, also those that read column by column."""


def batch(first: int, payloads: list[bytes | None], topics: list[str], **typed: Any) -> pa.RecordBatch:
    rows = len(payloads)
    moments = pa.array([MOMENT + first + row for row in range(rows)]).cast(pa.timestamp("us", "UTC"))
    names = pa.array(topics).dictionary_encode()
    columns = {
        "topic": pa.DictionaryArray.from_arrays(names.indices, names.dictionary).cast(TOPIC_INDEXED),
        "payload": pa.array(payloads, pa.binary()),
        "offset": pa.array(range(first, first + rows), pa.int64()),
        "timestamp": moments,
        "append_timestamp": moments,
        **typed,
    }
    return pa.RecordBatch.from_pydict(columns)


def written(path: Path, batches: list[pa.RecordBatch], schema: Schema | None = None) -> ArchivedFile:
    writer = FileWriter(str(path), STREAM, table_columns(schema, False), 0)
    for one in batches:
        writer.add(one)
    return writer.finish()


def chunks(path: Path) -> Iterator[dict[str, Any]]:
    """The columns of each row group, by their paths."""
    footer = pq.read_metadata(path)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        yield {one.path_in_schema: one for one in columns}


@pytest.mark.parametrize(
    ("payload", "codec"),
    [
        (lambda row: os.urandom(100), "UNCOMPRESSED"),
        (lambda row: b'{"flight": %d, "from": "JFK", "to": "LAX"}' % row, "ZSTD"),
        (lambda row: os.urandom(8), "ZSTD"),  # the lengths between them get smaller
        (lambda row: None, "ZSTD"),
    ],
    ids=["noise", "text", "short noise", "nothing"],
)
def test_only_payloads_that_get_smaller_are_compressed(tmp_path: Path, payload: Any, codec: str) -> None:
    path = tmp_path / "a.parquet"
    payloads = [payload(row) for row in range(3000)]
    halves = [
        batch(first, payloads[first : first + 1500], ["flights/a"] * 1500) for first in range(0, 3000, 1500)
    ]
    file = written(path, halves)
    (group,) = chunks(path)
    assert group.pop("payload").compression == codec
    assert {one.compression for one in group.values()} == {"ZSTD"}
    (found,) = read_file(file, STREAM, 0, 3000)
    assert found["payload"].to_pylist() == payloads


def test_a_sample_of_large_payloads_is_small() -> None:
    noise = [os.urandom(20_000) for _ in range(30)]
    payloads = pa.chunked_array([pa.array([bytes(20_000)] * 3 + noise, pa.binary())])
    assert is_worth_zstd(payloads, LEVEL)
    assert not is_worth_zstd(payloads.slice(3), LEVEL)


def test_every_column_has_zstd_and_an_encoding_that_all_engines_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    stop = pa.struct([("city", pa.string()), ("gates", pa.list_(pa.int16()))])
    typed = pa.schema(
        [("stops", pa.list_(stop)), ("price", pa.decimal128(10, 2)), ("late", pa.bool_()), ("no", pa.int32())]
    )
    values = {
        "stops": pa.array([[{"city": f"c{row}", "gates": [row, 2]}] for row in range(200)], typed.types[0]),
        "price": pa.array([None] * 200, typed.types[1]),
        "late": pa.array([True, None] * 100),
        "no": pa.array(range(200), pa.int32()),
    }
    whole = batch(0, [None] * 200, ["flights/a", "flights/b"] * 100, **values)
    file = written(path, [whole], Schema.of(typed))
    (group,) = chunks(path)
    assert len(group) == 10 + 5
    for name, column in group.items():
        assert column.compression == "ZSTD", name
        assert {*column.encodings} <= ALL_READ, name
    (found,) = read_file(file, STREAM, 0, 200, Schema.of(typed))
    assert found.select(typed.names).to_pylist() == whole.select(typed.names).to_pylist()


def test_topics_of_batches_with_lists_of_their_own_are_one_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    topics = ["flights/z", "flights/b"], ["flights/c", "flights/b"], ["flights/k", "flights/k"]
    parts = [batch(2 * place, [b"x", b"y"], two) for place, two in enumerate(topics)]
    parts.append(batch(6, [b"x"] * 32_765, ["flights/q"] * 32_765))
    file = written(path, parts)
    first, second = chunks(path)
    low, high = (first["topic"].statistics, second["topic"].statistics)
    assert (low.min, low.max) == ("flights/b", "flights/z")
    assert (high.min, high.max) == ("flights/q", "flights/q")
    for group in (first, second):
        assert (group["stream"].statistics.min, group["stream"].statistics.max) == (STREAM, STREAM)
        assert "RLE_DICTIONARY" in group["topic"].encodings
    told = pq.read_schema(path)
    assert (told.field("topic").type, told.field("stream").type) == (pa.string(), pa.string())
    found = pa.Table.from_batches(read_file(file, STREAM, 0, file.next))
    assert found["topic"].to_pylist()[:7] == [*topics[0], *topics[1], *topics[2], "flights/q"]
    assert {*found["stream"].to_pylist()} == {STREAM}


def other(path: Path, offsets: range, *, statistics: bool = True) -> ArchivedFile:
    """A file of 100 messages with those offsets, which is said to have those from 0."""
    file = written(path, [batch(0, [b"x"] * 100, ["t"] * 100)])
    table = pq.read_table(path)
    place = table.schema.get_field_index("offset")
    table = table.set_column(place, table.schema.field(place), pa.array(offsets, pa.int64()))
    pq.write_table(table, path, write_statistics=statistics, write_page_checksum=True)
    return file._replace(size=path.stat().st_size, sum=hashlib.sha256(path.read_bytes()).hexdigest())


def payloads(file: ArchivedFile, *columns: str) -> int:
    chosen = frozenset({"payload", *columns})
    return sum(one.num_rows for one in read_file(file, STREAM, 0, 100, None, chosen))


def test_a_file_with_other_offsets_is_lost_whatever_is_read_of_it(tmp_path: Path) -> None:
    for number, statistics in enumerate((True, False)):
        file = other(tmp_path / f"{number}.parquet", range(1, 101), statistics=statistics)
        for columns in ((), ("offset",)):
            with pytest.raises(Lost, match="has other offsets than 0 to 99 in row group 0") as caught:
                payloads(file, *columns)
            assert caught.value.file == file.path


def test_a_file_without_offsets_is_lost(tmp_path: Path) -> None:
    file = other(tmp_path / "a.parquet", range(100))
    pq.write_table(pq.read_table(file.path).drop_columns(["offset"]), file.path, write_page_checksum=True)
    file = file._replace(size=Path(file.path).stat().st_size)
    for columns in ((), ("offset",)):
        with pytest.raises(Lost, match="has other offsets than 0 to 99 in row group 0"):
            payloads(file, *columns)


def test_offsets_are_read_where_they_are_wanted_or_nothing_else_vouches_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[str]] = []
    plain = pq.ParquetFile.read_row_group

    def seen(self: pq.ParquetFile, place: int, columns: list[str], **options: Any) -> pa.Table:
        read.append(columns)
        return plain(self, place, columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", seen)
    usual = written(tmp_path / "usual.parquet", [batch(0, [b"x"] * 100, ["t"] * 100)])
    bare = other(tmp_path / "bare.parquet", range(100), statistics=False)
    for file, columns, wanted in ((usual, (), False), (usual, ("offset",), True), (bare, (), True)):
        read.clear()
        assert payloads(file, *columns) == 100
        assert ["offset" in one for one in read] == [wanted]
