"""A catalog of one table, for a bucket: where its metadata lies stands in Redis.

A bucket has no act that only one of two writers can do, so somebody else must say which metadata file of the
table is the newest. Redis does: one script compares and sets (``lua/point.lua``). If a failover of Redis
loses that, the table is an older one, and the archiver puts back what Redis still knows (``archiver``).

pyiceberg 0.12 calls these methods; the others are those of its `NoopCatalog`.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from streamlease.streams.archive.snapshot_proof import not_as_written
from streamlease.streams.log.keys import archive_table
from streamlease.streams.redis.connection import BlockingRedis, ask, run_blocking
from streamlease.streams.redis.damaged import parsing
from streamlease.streams.redis.scripts import load_script

_POINT = load_script("streamlease.streams.archive", "point")


class RedisCatalog(NoopCatalog, MetastoreCatalog):
    """The table of the archive of one space."""

    def __init__(self, redis: BlockingRedis, space: str, **properties: str) -> None:
        super().__init__("streamlease", **properties)
        self._redis = redis
        self._key = archive_table(space)

    def _pointer(self) -> str:
        (found,) = run_blocking(ask(self._redis, [("HGET", self._key, "metadata")]))
        with parsing("which file is the newest of the table of an archive", self._key):
            return "" if found is None else str(found.decode())

    def _point(self, before: str, after: str) -> bool:
        reply = run_blocking(_POINT.run(self._redis, [self._key], [before, after]))
        return bool(reply[0] == b"pointed")

    def _write(self, metadata: Any, io: Any, path: str) -> None:
        """Write metadata, and read it again before anything points there.

        Raises:
            ArchiveUnavailable: the store has something else.
        """
        self._write_metadata(metadata, io, path)
        try:
            there = FromInputFile.table_metadata(io.new_input(path))
        except (ValueError, EOFError) as error:
            raise not_as_written(path) from error
        if there != metadata:
            raise not_as_written(path)

    def _table_at(self, identifier: Any, location: str) -> Table:
        io = load_file_io(properties=self.properties, location=location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        io = load_file_io({**self.properties, **metadata.properties}, location)
        return Table(self.identifier_to_tuple(identifier), metadata, location, io, self)

    def load_table(self, identifier: Any) -> Table:
        """As of pyiceberg."""
        location = self._pointer()
        if not location:
            raise NoSuchTableError(f"Table does not exist: {identifier}")
        return self._table_at(identifier, location)

    def create_namespace_if_not_exists(self, namespace: Any, properties: Any = None) -> None:
        """As of pyiceberg; there is only one."""

    def create_table_if_not_exists(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = None,
    ) -> Table:
        """As of pyiceberg."""
        try:
            return self.load_table(identifier)
        except NoSuchTableError:
            pass
        assert location is not None
        properties = properties or {}
        place = load_location_provider(table_location=location, table_properties=properties)
        path = place.new_table_metadata_file_location()
        metadata = new_table_metadata(
            location=location,
            schema=schema,
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties=properties,
        )
        self._write(metadata, load_file_io(self.properties, path), path)
        if not self._point("", path):
            raise TableAlreadyExistsError(f"Table {identifier} was created meanwhile")
        return self._table_at(identifier, path)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """As of pyiceberg: on what the table is now, if that meets the requirements."""
        current = self.load_table(table.name())
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        if staged.metadata == current.metadata:
            return _answer(current)
        path = staged.metadata_location
        self._write(staged.metadata, staged.io, path)
        if not self._point(current.metadata_location, path):
            raise CommitFailedException(f"Table {table.name()} was changed by another process")
        return _answer(staged)

    def supports_server_side_planning(self) -> bool:
        """As of pyiceberg."""
        return False


def _answer(table: Any) -> CommitTableResponse:
    return CommitTableResponse(**{"metadata": table.metadata, "metadata-location": table.metadata_location})
