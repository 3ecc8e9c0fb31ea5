"""What is known of each file of an archive without opening it. Pure.

A file holds the messages ``first <= offset < next`` of one stream, in their order. What stands here of it
stands in Redis too, in the order of the offsets (``streams/log/archived.py``), written in the act that lets
Redis trim.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol

from streamlease.protocol.errors import StreamleaseError


class ArchivedFile(NamedTuple):
    """A file of the archive of a stream. Times are microseconds, those at which Redis took the messages."""

    path: str
    first: int
    next: int
    size: int
    """Bytes of the file."""
    sum: str
    """SHA-256 of its bytes."""
    since: int
    until: int
    """When its first and its last message were appended."""

    def line(self) -> str:
        """As it stands in Redis."""
        return json.dumps(self._asdict(), separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=4096)
def parse_file(line: bytes) -> ArchivedFile:
    """What stands in Redis of a file.

    Raises:
        StreamleaseError: it is damaged.
    """
    try:
        known = json.loads(line)
        file = ArchivedFile(**{name: known[name] for name in ArchivedFile._fields})
        numbers = (file.first, file.next, file.size, file.since, file.until)
        if not (
            all(type(one) is int for one in numbers)
            and isinstance(file.path, str)
            and isinstance(file.sum, str)
        ):
            raise ValueError
        if not 0 <= file.first < file.next:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StreamleaseError(
            f"what is kept about a file of an archive is damaged, {ascii(line)[:80]}: "
            f"let it be written anew: streamlease archive run SPACE"
        ) from None
    return file


def in_order(files: Iterable[ArchivedFile]) -> list[ArchivedFile]:
    """By their offsets."""
    return sorted(files, key=lambda file: (file.first, file.next))


class Overlap(StreamleaseError):
    """Two files of an archive hold the same offsets of a stream."""


def check_apart(stream: str, files: Iterable[ArchivedFile]) -> list[ArchivedFile]:
    """`files` in order.

    Raises:
        Overlap: two of them hold the same offset.
    """
    ordered = in_order(files)
    for before, after in pairwise(ordered):
        if after.first < before.next:
            raise Overlap(
                f"the files {before.path} and {after.path} both hold offset {after.first} of stream "
                f"{stream}: somebody else wrote into the table; roll it back to a snapshot of Streamlease's"
            )
    return ordered


class HasOffsets(Protocol):
    """Offsets ``first <= offset < next``."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...


def covers(files: Iterable[HasOffsets], first: int, next: int) -> bool:
    """Whether `files` together hold all of ``first <= offset < next``."""
    for file in sorted(files, key=lambda file: file.first):
        if file.first <= first < file.next:
            first = file.next
    return first >= next


def gaps(files: Iterable[ArchivedFile]) -> list[tuple[int, int]]:
    """The offsets ``(first, next)`` between files that are in none: Redis had lost them before."""
    ordered = in_order(files)
    return [(before.next, after.first) for before, after in pairwise(ordered) if after.first > before.next]
