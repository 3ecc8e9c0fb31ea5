"""What of a stream lies in the files of an archive, and reading it.

::

    files    |-------|------|-----------|
    memory                     |-----------------|
             ^                 ^        ^        ^
             exists      in memory  ``archived`` next

The files stand in a sorted set beside the stream, in the order of their offsets, and the meta says what is
below its field ``archived``, and so in a file. Only the archiver writes these (``streams/archive``), when a
file is there, proven and part of the table; Redis is trimmed up to there and no further.

A file may be replaced while it is read, by a larger one with the same messages, or be retired. So whoever
finds that one is not there looks here again: it is `Lost` if it is still named.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import HistoryTruncated, Lost
from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.files.file_reading import read_file
from streamlease.streams.archive.files.index import ArchivedFile, parse_file
from streamlease.streams.entries.schemas import Versions, load_versions
from streamlease.streams.log.joining import gather
from streamlease.streams.log.keys import stream_files, stream_meta
from streamlease.streams.log.state import MissingOffsets, Wanted, damaged_stream, no_stream
from streamlease.streams.redis.connection import BlockingRedis, Command, ask, run_blocking

FILES_AT_ONCE = 16
"""Files of a stream that are asked for at once."""


class Files(NamedTuple):
    """What Redis says of the files of a stream from some offset on."""

    exists: int | None
    """The lowest offset that is in a file; None if the stream has no archive."""
    archived: int
    """What is below it is in files, or was retired."""
    floor: int
    """The lowest offset that is in memory."""
    retired_at: int
    """When the newest message was appended that was retired from the archive; microseconds, or 0."""
    versions: Versions | None
    """Those of the schema of the stream."""
    some: list[ArchivedFile]
    """In order; the first ones only."""

    def check(self, stream: StreamId, start: int, end: int) -> None:
        """Whether the files have `start`, below `end`.

        Raises:
            HistoryTruncated: it was retired, or is in no archive.
            MissingOffsets: it is in none of the files, and was never there.
        """
        if self.exists is None or start < self.exists:
            raise HistoryTruncated(str(stream), start, self.floor if self.exists is None else self.exists)
        if not self.some:
            raise MissingOffsets(str(stream), start, end)
        if self.some[0].first > start:
            raise MissingOffsets(str(stream), start, min(self.some[0].first, end))

    def names(self, lost: Lost) -> bool:
        """Whether the file that is lost is still one of them, and so should be there."""
        return any(file.path == lost.file for file in self.some)

    def read(self, wanted: Wanted, /) -> Generator[pa.RecordBatch]:
        """What of `wanted` is in them, as far as they go; a row group at a time.

        Raises:
            HistoryTruncated, MissingOffsets, Lost, ArchiveUnavailable, SchemaMismatch.
        """
        stream, position, end, schema, columns = wanted
        self.check(stream, position, end)
        if schema is None and self.versions is not None:
            schema = self.versions.newest
        for file in self.some:
            if file.first > position or position >= end:
                return  # there is a hole, or no more is wanted
            for batch in read_file(file, str(stream), position, end, schema, columns):
                for piece in gather([batch], last=True)[0]:
                    position += piece.num_rows
                    yield piece


def files_commands(stream: StreamId, start: int, count: int = FILES_AT_ONCE) -> list[Command]:
    """Ask for the files that hold `start` and what comes next; see `parse_files`."""
    return [
        ("HMGET", stream_meta(stream), "next", "exists", "archived", "floor", "retired_at", "schemas"),
        ("ZRANGEBYSCORE", stream_files(stream), f"({start}", "+inf", "LIMIT", 0, count),
    ]


def parse_files(stream: StreamId, replies: list[Any]) -> Files:
    """What the replies to `files_commands` say.

    Raises:
        UnknownSpace: there is no such stream.
        StreamleaseError: what stands there is damaged.
    """
    (next, exists, archived, floor, retired_at, schemas), lines = replies
    if next is None:
        raise no_stream(stream)
    try:
        lowest = None if exists is None else int(exists)
        floors = lowest, int(archived or 0), int(floor or 0), int(retired_at or 0)
        versions = None if schemas is None else load_versions(schemas)
    except (ValueError, TypeError, RecursionError):
        raise damaged_stream(stream) from None
    return Files(*floors, versions, [parse_file(line) for line in lines])


class ArchiveSegment(NamedTuple):
    """What is in the files of an archive, for a program that waits for it."""

    redis: BlockingRedis

    def read(self, wanted: Wanted, /) -> Generator[pa.RecordBatch]:
        """See ``segments.Segment``."""
        position = wanted.start
        lost: Lost | None = None
        while position < wanted.end:
            left = wanted._replace(start=position)
            files = self._look(left)
            if lost is not None and files.names(lost):
                raise lost
            try:
                for batch in files.read(left):
                    position += batch.num_rows
                    yield batch
            except Lost as error:
                lost = error

    def _look(self, wanted: Wanted) -> Files:
        commands = files_commands(wanted.stream, wanted.start)
        return parse_files(wanted.stream, run_blocking(ask(self.redis, commands)))
