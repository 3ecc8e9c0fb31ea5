"""The Iceberg table of a space, through pyiceberg.

Every commit stands on the snapshot whose files the caller has seen, and fails if somebody committed
meanwhile: pyiceberg's own repetition, which would put an append on top of whatever came in between, is
switched off in the table. So a table never has the files of two archivers that archived the same messages,
whatever their terms.

The summary of a snapshot says who made it (``streamlease.term``) and what the streams have since
(``streamlease.floors``: stream -> first and next offset, of those that it changed).
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import ArchiveUnavailable, SpaceConflict, StreamleaseError, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.catalogs import NAMESPACE, catalog_of, table_name
from streamlease.streams.archive.files.file_columns import table_columns, with_ids
from streamlease.streams.archive.files.index import ArchivedFile, check_apart
from streamlease.streams.archive.files.places import is_local, keep, summed, told, write_small
from streamlease.streams.archive.own_place import check_place
from streamlease.streams.archive.recording import ArchiveMoved
from streamlease.streams.archive.snapshot_proof import prove_snapshot
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

TERM = "streamlease.term"
FLOORS = "streamlease.floors"

MOST_KNOWN = 100_000
"""About how many files are kept in mind from one look to the next, of all tables together."""

PROPERTIES = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.format.default": "parquet",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.metrics.column.stream": "full",
    **{
        f"write.metadata.metrics.column.{name}": "none"
        for name in ("key", "payload", "headers.element.key", "headers.element.value", "epoch.element")
    },
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "history.expire.max-snapshot-age-ms": "3600000",
}


class TableFile(NamedTuple):
    """A file of the table, as its manifests have it; see `ArchivedFile`."""

    path: str
    stream: str
    first: int
    next: int
    size: int
    since: int
    until: int

    def data(self) -> DataFile:
        """What pyiceberg wants to know of a file that is taken out."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        made = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=self.next - self.first,
            file_size_in_bytes=self.size,
        )
        made.spec_id = 0
        return made

    def read_again(self) -> ArchivedFile:
        """The same with the sum of its bytes.

        Raises:
            ArchiveUnavailable: it cannot be read, or is not as the table has it.
        """
        try:
            with told("read", self.path):
                size, sum = summed(self.path)
        except FileNotFoundError:
            raise ArchiveUnavailable(f"the file {self.path} is part of the table, and is missing") from None
        if size != self.size:
            raise ArchiveUnavailable(f"the file {self.path} has {size} bytes, and {self.size} in the table")
        return ArchivedFile(self.path, self.first, self.next, size, sum, self.since, self.until)


class Manifests:
    """What manifests say of files: each has a name of its own, and never changes."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, list[TableFile]] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def files(self, path: str, read: Callable[[], list[TableFile]]) -> list[TableFile]:
        """The files that the manifest at `path` has."""
        with self._lock:
            known = self._known.get(path)
            if known is not None:
                self._known.move_to_end(path)
                return known
        found = read()
        with self._lock:
            self._count += len(found) - len(self._known.pop(path, ()))
            self._known[path] = found
            while self._count > MOST_KNOWN and len(self._known) > 1:
                self._count -= len(self._known.popitem(last=False)[1])
        return found


@contextmanager
def table_told(uri: str) -> Generator[None]:
    """What pyiceberg raises, as one line.

    Raises:
        ArchiveMoved, ArchiveUnavailable: as it says.
        Unsupported: pyiceberg is not installed.
    """
    try:
        yield
    except StreamleaseError:
        raise
    except ImportError as error:
        raise Unsupported(
            f"archives need pyiceberg ({error}): install it: pip install 'streamlease[archive]'"
        ) from None
    except Exception as error:  # what its catalogs and stores raise has no common root
        why = " ".join(str(error).split())[:300] or type(error).__name__
        if type(error).__name__ == "CommitFailedException":
            raise ArchiveMoved(f"the table at {uri} was changed meanwhile ({why})") from None
        raise ArchiveUnavailable(
            f"the table at {uri} cannot be read or written: {type(error).__name__}: {why}"
        ) from None


class SpaceTable:
    """The table of one space, as it is at one snapshot.

    Its catalog is closed after each use, and opens again: it may be a database, or a server.
    """

    def __init__(self, table: Table, uri: str, manifests: Manifests) -> None:
        self.iceberg = table
        self.uri = uri
        self._manifests = manifests

    @classmethod
    def open(
        cls,
        redis: BlockingRedis,
        space: Space,
        settings: ArchiveSettings,
        manifests: Manifests | None = None,
    ) -> SpaceTable:
        """The table with all columns that the space has; made if it is not there.

        Args:
            manifests: what the caller has seen of tables before.

        Raises:
            SpaceConflict: the place, or the table, is another space's.
            ArchiveUnavailable, Unsupported, UnknownSpace, StoreUnavailable, StoreRefused, Indefinite.
        """
        check_place(redis, space, settings)
        with table_told(settings.uri), closing(catalog_of(redis, space.name, settings)) as catalog:
            return cls(_opened(catalog, space, settings), settings.uri, manifests or Manifests())

    @property
    def name(self) -> str:
        """In its catalog."""
        return ".".join(self.iceberg.name())

    def columns(self, space: Space) -> pa.Schema:
        """Those of new files of the space, with the ids of the table."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        theirs = schema_to_pyarrow(self.iceberg.schema())
        own = table_columns(space.newest_schema, space.collection)
        return pa.schema([with_ids(field, theirs.field(field.name)) for field in own])

    def has_more_columns(self, space: Space) -> bool:
        """Whether it has columns that the space, as the caller knows it, does not have."""
        known = table_columns(space.newest_schema, space.collection).names
        return any(field.name not in known for field in self.iceberg.schema().fields)

    def files(self) -> dict[str, dict[str, TableFile]]:
        """The files of each stream, by their paths.

        Raises:
            ArchiveUnavailable: it cannot be read.
            StreamleaseError: somebody else wrote into it.
        """
        with table_told(self.uri):
            found: dict[str, dict[str, TableFile]] = {}
            snapshot = self.iceberg.current_snapshot()
            for manifest in snapshot.manifests(self.iceberg.io) if snapshot is not None else ():
                for file in self._manifests.files(manifest.manifest_path, partial(self._files_of, manifest)):
                    found.setdefault(file.stream, {})[file.path] = file
        for stream, files in found.items():
            check_apart(stream, [_plain(one) for one in files.values()])
        return found

    def commit(
        self,
        new: Mapping[StreamId, Sequence[ArchivedFile]],
        gone: Iterable[TableFile],
        floors: Mapping[StreamId, tuple[int, int]],
        term: int,
    ) -> None:
        """Add files and take others out, in one snapshot.

        What says so is read again before the table points there.

        Raises:
            ArchiveMoved: somebody committed meanwhile; nothing was done.
            ArchiveUnavailable: it was done, or not.
        """
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        with table_told(self.uri), closing(self.iceberg.catalog):
            table, gone = self.iceberg, [*gone]
            summary = {
                TERM: str(term),
                FLOORS: json.dumps({str(one): floor for one, floor in floors.items()}, separators=(",", ":")),
            }
            change = table.transaction()
            update = change.update_snapshot(snapshot_properties=summary)
            with update.overwrite() if gone else update.merge_append() as snapshot:
                for files in new.values():
                    for file in files:
                        data = parquet_file_to_data_file(table.io, table.metadata, file.path)
                        if data.record_count != file.next - file.first:
                            raise ArchiveUnavailable(f"the file {file.path} has {data.record_count} messages")
                        snapshot.append_data_file(data)
                for one in gone:
                    snapshot.delete_data_file(one.data())
            prove_snapshot(
                change.table_metadata, table.io, [one.path for part in new.values() for one in part]
            )
            self.iceberg = change.commit_transaction()
            self._keep()
            self._hint()

    def named_paths(self) -> set[str]:
        """All files that some snapshot of the table names, and those of its own.

        Raises:
            ArchiveUnavailable: it cannot be read.
        """
        with table_told(self.uri):
            table, seen = self.iceberg, set()
            named = {f"{self.uri}/metadata/version-hint.text"}
            named |= {table.metadata_location, *(one.metadata_file for one in table.metadata.metadata_log)}
            for snapshot in table.metadata.snapshots:
                named.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    if manifest.manifest_path not in seen:
                        seen.add(manifest.manifest_path)
                        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                            named.add(entry.data_file.file_path)
            return {path.removeprefix("file://") for path in named | seen}

    def expire(self, before: float) -> int:
        """Let go of snapshots that were not the newest one since then, in seconds since 1970; how many.

        Raises:
            ArchiveMoved, ArchiveUnavailable.
        """
        with table_told(self.uri), closing(self.iceberg.catalog):
            table = self.iceberg
            known = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
            wanted = {one.snapshot_id for one in table.metadata.refs.values()}
            ended = [one.snapshot_id for one, next in pairwise(known) if next.timestamp_ms < before * 1000]
            old = [one for one in ended if one not in wanted]
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()
                self.iceberg = table.refresh()
            return len(known) - len(self.iceberg.metadata.snapshots)

    def _keep(self) -> None:
        """See to it that what was committed outlasts a crash of the machine."""
        snapshot = self.iceberg.current_snapshot()
        if not is_local(self.uri) or snapshot is None:
            return
        for path in (self.iceberg.metadata_location, snapshot.manifest_list):
            keep(path.removeprefix("file://"))
        for manifest in snapshot.manifests(self.iceberg.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                keep(manifest.manifest_path.removeprefix("file://"))

    def _hint(self) -> None:
        """Say which metadata file is the newest, for engines that have no catalog."""
        location = self.iceberg.metadata_location
        name = location.rpartition("/")[2].removesuffix(".metadata.json")
        try:
            write_small(f"{self.uri}/metadata/version-hint.text", name.encode())
        except StreamleaseError as error:  # what it would say is true of an older snapshot
            log.warning("%s", error)

    def _files_of(self, manifest: ManifestFile) -> list[TableFile]:
        entries = manifest.fetch_manifest_entry(self.iceberg.io, discard_deleted=True)
        return [self._file(entry.data_file) for entry in entries]

    def _file(self, data: DataFile) -> TableFile:
        from pyiceberg.conversions import from_bytes

        schema = self.iceberg.schema()

        def bounds(name: str) -> tuple[Any, Any]:
            field = schema.find_field(name)
            low, high = (
                (data.lower_bounds or {}).get(field.field_id),
                (data.upper_bounds or {}).get(field.field_id),
            )
            if low is None or high is None:
                raise _foreign(self.uri, data.file_path)
            type: Any = field.field_type
            return from_bytes(type, low), from_bytes(type, high)

        stream, other = bounds("stream")
        first, last = bounds("offset")
        since, until = bounds("append_timestamp")
        if stream != other or last - first + 1 != data.record_count:
            raise _foreign(self.uri, data.file_path)
        return TableFile(data.file_path, stream, first, last + 1, data.file_size_in_bytes, since, until)


def _plain(file: TableFile) -> ArchivedFile:
    return ArchivedFile(file.path, file.first, file.next, file.size, "", file.since, file.until)


def _foreign(uri: str, path: str) -> StreamleaseError:
    return StreamleaseError(
        f"the table at {uri} has the file {path}, which Streamlease did not write: only it may write "
        f"into an archive; roll the table back to a snapshot whose summary has {TERM}"
    )


def _opened(catalog: Catalog, space: Space, settings: ArchiveSettings) -> Table:
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    wanted = table_columns(space.newest_schema, space.collection)
    identifier = (NAMESPACE, space.name)
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(NAMESPACE)
        properties = {**PROPERTIES, "streamlease.space": space.name, "streamlease.born": str(space.born)}
        fresh = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(wanted))
        order = SortOrder(
            *(
                SortField(source_id=fresh.find_field(name).field_id, transform=IdentityTransform())
                for name in ("stream", "offset")
            )
        )
        table = catalog.create_table_if_not_exists(
            identifier, fresh, location=settings.uri, sort_order=order, properties=properties
        )
    if table.location().removeprefix("file://") != settings.uri:
        raise SpaceConflict(
            f"the catalog {settings.catalog or settings.uri} has a table {table_name(space.name)} already, "
            f"at {table.location()}: choose another catalog, or another name for the space"
        )
    if table.properties.get("commit.retry.num-retries") != "0":
        with table.transaction() as change:
            change.set_properties({"commit.retry.num-retries": "0"})
    if any(field.name not in table.schema().column_names for field in wanted):
        with table.update_schema() as evolution:
            evolution.union_by_name(wanted)
    return table
