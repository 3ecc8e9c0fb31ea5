"""What is done to an archive besides writing: larger files, retired ones, old snapshots, files that nobody
names.

Each step stands on the table as it was read, is committed in one snapshot, and recorded then, as in
``archiver``. Files that are not part of the table any more lie there for a while: a reader that found their
names a moment ago, or an engine at an older snapshot, still reads them. What nothing names is swept away
when it is old enough.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from streamlease.protocol.ids import StreamId, random_token
from streamlease.streams.archive.archiver import Archived, Archiver, InTable
from streamlease.streams.archive.files.file_columns import read_columns
from streamlease.streams.archive.files.file_reading import read_file
from streamlease.streams.archive.files.file_writing import FileWriter
from streamlease.streams.archive.files.index import ArchivedFile, in_order
from streamlease.streams.archive.files.places import listed, remove
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.archive.recording import FileChange, record
from streamlease.streams.archive.stream_pieces import FILE_BYTES

SMALL_BYTES = 32 * 1024 * 1024
"""A smaller file is worth being joined with its neighbours."""

LEAST_FILES = 2
GRACE_SECONDS = 86_400.0
"""How long files lie there that nothing names: some archiver may be about to commit them."""


class Merged(NamedTuple):
    """What joining files came to."""

    files: int
    """How many were replaced."""
    into: int
    snapshots: int = 0
    swept: int = 0


def runs(
    files: Sequence[ArchivedFile], small: int = SMALL_BYTES, most: int = FILE_BYTES
) -> Iterator[list[ArchivedFile]]:
    """Neighbours that are worth being one file. Pure."""
    run: list[ArchivedFile] = []
    size = 0
    for file in in_order(files):
        fits = bool(run) and run[-1].next == file.first and size + file.size <= most
        if run and (not fits or file.size >= small):
            if len(run) >= LEAST_FILES:
                yield run
            run, size = [], 0
        if file.size < small:
            run.append(file)
            size += file.size
    if len(run) >= LEAST_FILES:
        yield run


def merge(archiver: Archiver, *, seconds: float | None = None) -> Merged:
    """Join small neighbours.

    Raises:
        ArchiveUnavailable, Fenced, Lost, StreamleaseError: what was committed stands.
    """
    until = None if seconds is None else time.monotonic() + seconds
    table, standing = archiver.look(Archived(archiver.space.name))
    files = into = 0
    if table.has_more_columns(archiver.space):
        return Merged(0, 0)  # files may have them, and would lose them
    for stream, one in standing.items():
        for run in runs(one.known.files):
            if archiver.late(until):
                return Merged(files, into)
            with archiver.resting():
                new = _joined(archiver, table, stream, run)
            with archiver.resting():
                table.commit({stream: [new]}, [one.there[file.path] for file in run], {}, archiver.term)
                archived, exists = one.known.archived, one.known.exists
                change = FileChange(stream, archived, archived, exists, [new], run)
                record(archiver.redis, archiver.term, [change])
            files, into = files + len(run), into + 1
    return Merged(files, into)


def _joined(
    archiver: Archiver, table: SpaceTable, stream: StreamId, run: Sequence[ArchivedFile]
) -> ArchivedFile:
    first, schema = run[0].first, archiver.space.newest_schema
    address = f"{table.uri}/data/{stream}/{first:020d}-{random_token()}.parquet"
    writer = FileWriter(address, str(stream), table.columns(archiver.space), first)
    try:
        for file in run:
            columns = read_columns(archiver.space.collection)
            with closing(read_file(file, str(stream), file.first, file.next, schema, columns)) as batches:
                for batch in batches:
                    writer.add(batch)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def retire(archiver: Archiver, limits: Mapping[StreamId, int]) -> dict[StreamId, int]:
    """Take out the files that lie wholly below an offset; what exists then, of the streams that changed.

    Redis is told first that they do not exist any more, so nobody looks for what is not there.

    Raises:
        ArchiveUnavailable, Fenced, StreamleaseError: safe to repeat.
    """
    table, standing = archiver.look(Archived(archiver.space.name))
    changes: list[FileChange] = []
    for stream, one in standing.items():
        gone = [file for file in one.known.files if file.next <= limits.get(stream, 0)]
        if gone:
            left = [file.first for file in one.known.files if file not in gone]
            exists = min(left, default=one.known.archived)
            retired = max(file.until for file in gone)
            archived = one.known.archived
            changes.append(FileChange(stream, archived, archived, exists, (), gone, retired))
    if changes:
        record(archiver.redis, archiver.term, changes)
    floors = {change.stream: change.exists for change in changes}
    spent = [
        file
        for stream, one in standing.items()
        for file in one.there.values()
        if file.next <= max(floors.get(stream, 0), one.known.exists)
    ]
    # Of a generation that was dropped before the table had heard of it.
    oldest = min(one.number for one in archiver.space.generations)
    for name, files in table.files().items():
        if StreamId.parse(name).generation < oldest:
            spent += files.values()
    if spent:
        table.commit({}, spent, {one: (floors[one], standing[one].end) for one in floors}, archiver.term)
    return floors


def sweep(
    archiver: Archiver, standing: Mapping[StreamId, InTable], table: SpaceTable, now: float, grace: float
) -> int:
    """Remove files that neither the table, at any of its snapshots, nor Redis names, if they are old."""
    named = table.named_paths() | {file.path for one in standing.values() for file in one.known.files}
    swept = 0
    for folder in ("data", "metadata"):
        for path, written in listed(f"{table.uri}/{folder}").items():
            if path not in named and written and now - written > grace:
                with archiver.resting():
                    swept += remove(path)
    return swept


def tidy(
    archiver: Archiver, now: float, *, grace: float = GRACE_SECONDS, keep_seconds: float = 3600.0
) -> tuple[int, int]:
    """Let old snapshots go, and what only they named; how many snapshots, and how many files.

    Raises:
        ArchiveUnavailable, StreamleaseError: safe to repeat.
    """
    table, standing = archiver.look(Archived(archiver.space.name))
    with archiver.resting():
        expired = table.expire(now - keep_seconds)
    return expired, sweep(archiver, standing, table, now, grace)
