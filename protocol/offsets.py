"""Offsets, ranges of offsets, and the ids under which entries stand in a Redis stream.

A message's offset is its position in its stream: 0, 1, 2, ... without holes. An entry holds one message or
a whole record batch, and its id in Redis is ``<last offset>-<number of messages>``. So the id alone tells
which offsets an entry holds, ids rise with offsets, the entry that contains offset `n` is the first one of
``XRANGE n-0 +`` even when `n` lies inside a batch, and ``XTRIM MINID n-0`` removes just the entries that lie
wholly below `n` (`docs/decisions/0001-entry-ids.md`).
"""

from __future__ import annotations

from functools import lru_cache
from operator import index
from typing import NamedTuple, SupportsIndex

from streamlease.protocol.errors import InvalidOption


class OffsetRange(NamedTuple):
    """The offsets ``start <= offset < end`` of one stream."""

    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def offset_of(what: str, given: SupportsIndex) -> int:
    """The offset that somebody gave for `what`: an int, or one of numpy's.

    Raises:
        InvalidOption: it is no whole number.
    """
    try:
        offset = None if isinstance(given, bool) else index(given)
    except TypeError:
        offset = None
    if offset is None:
        raise InvalidOption(f"{what} is {ascii(given)[:80]}: give a whole number")
    return offset


def entry_id(first: int, count: int) -> str:
    """The Redis id of the entry that holds `count` messages from offset `first` on."""
    return f"{first + count - 1}-{count}"


@lru_cache(maxsize=4096)  # streams with little have the same few ids
def parse_entry_id(id: bytes | str) -> OffsetRange:
    """The offsets that the entry with this Redis id holds."""
    last, _, count = (id if isinstance(id, bytes) else id.encode("ascii")).partition(b"-")
    end = int(last) + 1
    return OffsetRange(end - int(count), end)


def range_start(offset: int) -> str:
    """The `start` argument of XRANGE that begins with the entry containing `offset`."""
    return f"{offset}-0"
