"""Reading the messages of a file: whole row groups, each checked on its way.

Pages are compared with their sums. The footer says that the offsets of a row group are those that it should
have; where offsets are read, each of them is looked at.

A file that is not there, has another size, other bytes, or offsets that are not those it should have: `Lost`,
with its name. A store that does not answer is `ArchiveUnavailable`; so is one that has not even the mark of
the archive. What pyarrow raises does not tell the one from the other, so where it cannot read, the file is
read again as a whole, and compared with what was written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Generator
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamlease.protocol.errors import ArchiveUnavailable, Lost
from streamlease.streams.archive.files.file_columns import from_store, wanted_columns
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.archive.files.places import (
    OWNER_FILE,
    FileSum,
    is_local,
    open_to_read,
    size_of,
    summed,
    told,
)
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.arrays import integer, integers
from streamlease.streams.entries.schemas import Schema

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MOST_OPEN = 32
"""Files that are kept open, with what their footers say."""


class OpenFile:
    """One file, opened.

    Raises:
        Lost: it is not there, or not what was written.
        ArchiveUnavailable: the store does not answer.
    """

    def __init__(self, file: ArchivedFile, stream: str) -> None:
        import pyarrow.parquet as pq

        self.file = file
        self._stream = stream
        self._lock = Lock()
        try:
            with told("read", file.path):
                source: Any = open_to_read(file.path)
                if source.size() != file.size:
                    raise self._lost(f"has {source.size()} bytes, and {file.size} were written")
                self._parquet = pq.ParquetFile(
                    source,
                    read_dictionary=["topic"],
                    page_checksum_verification=True,
                    pre_buffer=not is_local(file.path),  # else a request for each column
                )
        except FileNotFoundError:
            raise self._missing() from None
        except (pa.ArrowException, ArchiveUnavailable) as error:
            raise self._judged(error) from None
        footer = self._parquet.metadata
        sizes = [footer.row_group(place).num_rows for place in range(footer.num_row_groups)]
        self._ends = [file.first + rows for rows in accumulate(sizes)]
        if not self._ends or self._ends[-1] != file.next:
            raise self._lost(f"has {sum(sizes)} messages, and {file.next - file.first} were written")
        self._names: list[str] = self._parquet.schema_arrow.names
        self._vouched = [
            _vouches(footer.row_group(place), next - footer.row_group(place).num_rows, next)
            for place, next in enumerate(self._ends)
        ]

    def groups(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """The row groups with ``start <= offset < end``: number, first offset, next."""
        place = bisect_right(self._ends, start)
        found: list[tuple[int, int, int]] = []
        while place < len(self._ends):
            first = self._ends[place - 1] if place else self.file.first
            if first >= end:
                break
            found.append((place, first, self._ends[place]))
            place += 1
        return found

    def read(
        self, group: tuple[int, int, int], schema: Schema | None, columns: frozenset[str] | None
    ) -> pa.RecordBatch:
        """All messages of a row group.

        Raises:
            Lost, ArchiveUnavailable, SchemaMismatch.
        """
        target = wanted_columns(columns, schema)
        return from_store(self._read(group, target.names), target, self._stream, self.file.path)

    def check_offsets(self) -> None:
        """Look at all offsets.

        Raises:
            Lost, ArchiveUnavailable.
        """
        for group in self.groups(self.file.first, self.file.next):
            self._read(group, ["offset"])

    def _read(self, group: tuple[int, int, int], names: list[str]) -> pa.Table:
        place, first, next = group
        wanted = {*names} - {"stream"}
        if not wanted or not self._vouched[place]:
            wanted.add("offset")
        chosen: list[str] | None = [name for name in self._names if name in wanted]
        if any("." in name for name in self._names):
            chosen = None  # a dot would be taken for a path
        try:
            with self._lock, told("read", self.file.path):
                table = self._parquet.read_row_group(place, columns=chosen, use_threads=False)
        except FileNotFoundError:
            raise self._missing() from None
        except (pa.ArrowException, ValueError, ArchiveUnavailable) as error:
            raise self._judged(error) from None
        has_offsets = "offset" in table.column_names
        known = has_offsets or self._vouched[place]
        if table.num_rows != next - first or not known or (has_offsets and not _go_on(table, first)):
            raise self._lost(f"has other offsets than {first} to {next - 1} in row group {place}")
        return table

    def _judged(self, error: Exception) -> ArchiveUnavailable | Lost:
        """Whether a file that could not be read is lost, or was only not read."""
        path, why = self.file.path, " ".join(str(error).split())[:200]
        try:
            with told("read", path):
                there = summed(path)
        except FileNotFoundError:
            return self._missing()
        except ArchiveUnavailable as outage:
            return outage
        if there != FileSum(self.file.size, self.file.sum):
            return self._lost(f"was altered ({why})")
        return ArchiveUnavailable(
            f"{path} could not be read ({why}), though the store has it as it was written"
        )

    def _missing(self) -> ArchiveUnavailable | Lost:
        """Whether the file is missing, or all of the archive."""
        place = self.file.path.rsplit("/", 3)[0]
        try:
            with told("read", place):
                if size_of(f"{place}/{OWNER_FILE}") is not None:
                    return self._lost("is missing")
        except ArchiveUnavailable as outage:
            return outage
        return ArchiveUnavailable(
            f"{self.file.path} is missing, and so is {place}/{OWNER_FILE}: the archive is not there: is the "
            f"right folder mounted?"
        )

    def _lost(self, why: str) -> Lost:
        return Lost(self.file.path, self._stream, self.file.first, self.file.next, why)


@lru_cache(maxsize=8)
def _count(rows: int) -> pa.Array:
    return integers(range(rows), pa.int64())


def _vouches(group: pq.RowGroupMetaData, first: int, next: int) -> bool:
    """Whether the footer says that a row group has the offsets `first` to `next` - 1, and no others."""
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == "offset":
            known = column.statistics
            return (
                known is not None
                and known.has_min_max
                and known.has_null_count
                and (known.min, known.max, known.null_count) == (first, next - 1, 0)
            )
    return False


def _go_on(table: pa.Table, first: int) -> bool:
    """Whether its offsets are `first`, `first` + 1, and so on."""
    offsets = table.column("offset")
    if offsets.null_count:
        return False
    for chunk in offsets.chunks:
        rows = len(chunk)
        if rows and not pc.subtract(chunk, integer(first, pa.int64())).equals(
            _count(-(-rows // 4096) * 4096)[:rows]
        ):
            return False
        first += rows
    return True


class _Opened:
    """The files that were read last, still open."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, str], OpenFile] = OrderedDict()
        self._lock = Lock()

    def get(self, file: ArchivedFile, stream: str) -> OpenFile:
        with self._lock:
            found = self._files.get((file.path, file.sum))
            if found is not None:
                self._files.move_to_end((file.path, file.sum))
                return found
        opened = OpenFile(file, stream)
        with self._lock:
            self._files[file.path, file.sum] = opened
            while len(self._files) > MOST_OPEN:
                self._files.popitem(last=False)
        return opened

    def forget(self, file: ArchivedFile) -> None:
        with self._lock, suppress(KeyError):
            del self._files[file.path, file.sum]


_OPENED = _Opened()


def read_file(
    file: ArchivedFile,
    stream: str,
    start: int,
    end: int,
    schema: Schema | None = None,
    columns: frozenset[str] | None = None,
) -> Generator[pa.RecordBatch]:
    """The messages of a file with ``start <= offset < end``, a row group at a time.

    Raises:
        Lost, ArchiveUnavailable, SchemaMismatch: what was handed out before stands.
    """
    try:
        opened = _OPENED.get(file, stream)
        for group in opened.groups(start, end):
            batch = opened.read(group, schema, columns)
            _, first, next = group
            low, high = max(start, first), min(end, next)
            yield batch if (low, high) == (first, next) else batch.slice(low - first, high - low)
    except (Lost, ArchiveUnavailable):
        _OPENED.forget(file)
        raise


def first_behind(file: ArchivedFile, stream: str, moment: int) -> int:
    """The offset of the first message of a file that was appended after a moment, in microseconds.

    Raises:
        Lost, ArchiveUnavailable.
    """
    position = file.first
    for batch in read_file(file, stream, file.first, file.next, None, frozenset({"append_timestamp"})):
        times = batch.column(batch.schema.get_field_index("append_timestamp")).cast(pa.int64())
        behind: int = pc.sum(pc.less_equal(times, integer(moment, pa.int64()))).as_py()
        position += behind
        if behind < batch.num_rows:
            break
    return position
