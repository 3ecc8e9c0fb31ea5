"""Reading an archive again as a whole, and naming what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlease.protocol.errors import ArchiveUnavailable, Lost, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.files.file_reading import OpenFile
from streamlease.streams.archive.files.index import ArchivedFile, gaps
from streamlease.streams.archive.files.places import summed, told
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.archive.recording import recorded
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space


class Wrong(NamedTuple):
    """Something that is not as it should be."""

    stream: str
    first: int
    next: int
    path: str | None
    """The file; None: none has these offsets."""
    why: str


class Verified(NamedTuple):
    """What was looked at, and what is wrong."""

    files: int
    messages: int
    bytes: int
    wrong: list[Wrong]


def verify(redis: BlockingRedis, space: Space, settings: ArchiveSettings) -> Verified:
    """Read all files again, and compare what the table, Redis and the files say.

    Raises:
        ArchiveUnavailable, StoreUnavailable, StoreRefused, StreamleaseError: it cannot be looked at.
    """
    known = recorded(redis, space.streams())  # before the table: what is committed meanwhile is only there
    there = SpaceTable.open(redis, space, settings).files()
    files = messages = size = 0
    wrong: list[Wrong] = []
    for stream, one in known.items():
        in_table = there.get(str(stream), {})
        for file in one.files:
            files, messages, size = files + 1, messages + file.next - file.first, size + file.size
            why = _wrong_with(file, str(stream))
            if why is not None:
                wrong.append(Wrong(str(stream), file.first, file.next, file.path, why))
            elif file.path not in in_table and not _is_replaced(redis, space, stream, file):
                wrong.append(Wrong(str(stream), file.first, file.next, file.path, "is no part of the table"))
        wrong += _missing(stream, one.files, one.exists, one.archived)
        if one.archived < one.state.memory.first:
            first = one.state.memory.first
            wrong.append(Wrong(str(stream), one.archived, first, None, "neither in memory nor in a file"))
    return Verified(files, messages, size, wrong)


def _is_replaced(redis: BlockingRedis, space: Space, stream: StreamId, file: ArchivedFile) -> bool:
    """Whether Redis does not name it any more."""
    now = recorded(redis, [stream]).get(stream)
    return now is None or all(one.path != file.path for one in now.files)


def _missing(stream: StreamId, files: list[ArchivedFile], exists: int, archived: int) -> Iterator[Wrong]:
    lacking = gaps(files)
    if files and files[0].first > exists:
        lacking.insert(0, (exists, files[0].first))
    if (files[-1].next if files else exists) < archived:
        lacking.append((files[-1].next if files else exists, archived))
    for first, next in lacking:
        yield Wrong(
            str(stream), first, next, None, "in no file: Redis had lost them, or the index lost a file"
        )


def _wrong_with(file: ArchivedFile, stream: str) -> str | None:
    """What is wrong with a file; None: nothing."""
    try:
        with told("read", file.path):
            size, sum = summed(file.path)
        if size != file.size:
            return f"has {size} bytes, and {file.size} were written"
        if sum != file.sum:
            return "was altered: its sum is another one than when it was written"
        OpenFile(file, stream).check_offsets()
    except FileNotFoundError:
        return "is missing"
    except Lost as error:
        return error.why
    except ArchiveUnavailable:
        raise
    except StreamleaseError as error:
        return str(error)
    return None
