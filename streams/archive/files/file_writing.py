"""Writing a file of an archive, and proving that the store has it.

A file is Parquet with zstd, in row groups of at most 32,768 messages and about 4 MiB, sorted by offset, with
statistics of each group and a checksum of each page. Payloads that zstd does not make smaller by a tenth, as
the first of them show, stand there as they are. The encodings are those that all engines read. It goes to
the store while it is written: a group, and what the store's client holds back, is all that stands in memory.

What was written is read again as a whole before anybody relies on it, and must have the same bytes, and the
offsets of its messages one behind the other.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import ArchiveUnavailable
from streamlease.streams.archive.files.file_columns import handed_columns, is_worth_zstd, leaves, to_store
from streamlease.streams.archive.files.file_reading import OpenFile
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.archive.files.places import FileSum, NewFile, summed, told

GROUP_ROWS = 32_768
GROUP_BYTES = 4 * 1024 * 1024
"""Most messages of a row group, and about how many bytes, expanded: a reader takes a group at once."""

LEVEL = 1

_WITHOUT_STATISTICS = {"payload", "key", "headers", "epoch"}
"""Columns by whose values nobody prunes."""


class FileWriter:
    """One file of one stream, while it is written.

    Args:
        address: where it is to lie; nothing may be there.
        schema: its columns, with the field ids of the table.
    """

    def __init__(self, address: str, stream: str, schema: pa.Schema, first: int) -> None:
        self.address = address
        self.bytes = 0
        """Of what was added, expanded."""
        self.first = self.next = first
        self._stream = stream
        self._schema = schema
        self._handed = handed_columns(schema)
        self._since = self._until = 0
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._size = 0
        with told("written", address):
            self._file = NewFile(address)
        self._parquet: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        """The messages that come next.

        Raises:
            ArchiveUnavailable: the store does not take them.
        """
        times = batch.column(batch.schema.get_field_index("append_timestamp"))
        if self.next == self.first:
            self._since = times[0].value
        self._until = times[-1].value
        self.next += batch.num_rows
        self.bytes += batch.nbytes
        for part in _pieces(batch):
            if self._waiting and (
                self._rows + part.num_rows > GROUP_ROWS or self._size + part.nbytes > GROUP_BYTES
            ):
                self._write_group()
            self._waiting.append(to_store(part, self._stream, self._handed))
            self._rows += part.num_rows
            self._size += part.nbytes

    def finish(self) -> ArchivedFile:
        """Close it, and read it again.

        Raises:
            ArchiveUnavailable: the store did not take it, or has something else.
        """
        self._write_group()
        with told("written", self.address):
            self._parquet.close()
            written = self._file.finish()
        file = ArchivedFile(
            self.address, self.first, self.next, written.size, written.sum, self._since, self._until
        )
        prove(file, self._stream, written)
        return file

    def abandon(self) -> None:
        """Leave nothing of it behind, as far as the store lets that be done."""
        with suppress(OSError, pa.ArrowException, ValueError):  # it would write when it is collected
            if self._parquet is not None:
                self._parquet.close()
        self._file.abandon()

    def _write_group(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._rows = self._size = 0
        table = pa.Table.from_batches(waiting).unify_dictionaries()
        with told("written", self.address):
            if self._parquet is None:
                self._parquet = self._begun(table.column("payload"))
            self._parquet.write_table(table, row_group_size=GROUP_ROWS)

    def _begun(self, payloads: pa.ChunkedArray) -> Any:
        import pyarrow.parquet as pq

        names = self._schema.names
        texts = [one.name for one in self._schema if pa.types.is_string(one.type)]
        codecs = dict.fromkeys(leaves(self._schema), "zstd")
        if not is_worth_zstd(payloads, LEVEL):
            codecs["payload"] = "none"
        return pq.ParquetWriter(
            self._file,
            self._handed,
            compression=codecs,
            compression_level={path: LEVEL for path, codec in codecs.items() if codec == "zstd"},
            write_statistics=[name for name in names if name not in _WITHOUT_STATISTICS],
            use_dictionary=[*texts, "key", "headers.list.element.key"],
            store_schema=False,
            write_page_checksum=True,
            write_batch_size=1024,
        )


def _pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    rows = batch.num_rows
    step = max(1, min(GROUP_ROWS, rows * GROUP_BYTES // max(1, batch.nbytes)))
    return [batch] if rows <= step else [batch.slice(begin, step) for begin in range(0, rows, step)]


def prove(file: ArchivedFile, stream: str, written: FileSum) -> None:
    """Read a file again as a whole.

    Raises:
        ArchiveUnavailable: it is not what was written.
    """
    try:
        with told("read", file.path):
            if summed(file.path) != written:
                raise ArchiveUnavailable(
                    f"the store has lost part of the file {file.path}, of {written.size} bytes: "
                    f"it is written anew"
                )
            OpenFile(file, stream).check_offsets()
    except FileNotFoundError:
        raise ArchiveUnavailable(
            f"the store does not have the file {file.path}, which it took: it is written anew"
        ) from None
