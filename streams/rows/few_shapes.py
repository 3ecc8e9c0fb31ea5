"""How ``few`` writes record batches of some columns: so what it wrote is taken apart in one call. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from streamlease.streams.entries.expanding import AS_IT_IS
from streamlease.streams.entries.few import MOST_BYTES, metadata_of
from streamlease.streams.entries.layout import CODECS, Codec

MOST_EXPANDED = 8 * MOST_BYTES

LENGTH = struct.Struct("<q")
"""What stands before a buffer that may be compressed: how long it is when expanded."""

_ORDER = "ikpdD"


class FewShape(NamedTuple):
    """How `few` writes record batches of some columns: what stands before the columns, and what is in it.

    What is always the same, and the numbers in between, are taken apart in one call.
    """

    letters: str
    codec: Codec
    size: int
    """Where the columns begin."""
    metadata: struct.Struct
    same: Callable[[tuple[Any, ...]], Any]
    """What is always the same of what was taken apart."""
    expected: Any
    """What that is."""
    length: int
    nodes: slice
    buffers: slice
    body_length: int
    """Where the numbers stand in what was taken apart."""

    def taken_apart(self, stored: bytes, rows: int) -> tuple[Sequence[int], Sequence[int]] | None:
        """How many values are missing in each column, and the extents of the buffers.

        None if `few` writes no such thing: other metadata, or buffers that do not stand one behind the other.
        """
        if len(stored) < self.size:
            return None
        parts = self.metadata.unpack_from(stored)
        body = len(stored) - self.size
        if (
            self.same(parts) != self.expected
            or parts[self.length] != rows
            or parts[self.body_length] != body
            or parts[self.nodes][::2].count(rows) != len(self.letters)
        ):
            return None
        extents = parts[self.buffers]
        at = 0
        for begin, length in zip(extents[::2], extents[1::2], strict=True):
            if begin != at or length < 0:
                return None
            at += (length + 7) & -8
        return (parts[self.nodes][1::2], extents) if at == body else None

    def gain(self, stored: bytes, extents: Sequence[int]) -> int:
        """How many bytes more than `stored` has its buffers have when they are expanded.

        Raises:
            ValueError: one of them has a length that cannot be.
        """
        if self.codec == "none":
            return 0
        whole = 0
        for begin, length in zip(extents[::2], extents[1::2], strict=True):
            if length:
                (expanded,) = LENGTH.unpack_from(stored, self.size + begin)
                whole += length - 8 if expanded == AS_IT_IS else possible(expanded)
        return max(0, whole - len(stored))


def possible(expanded: int) -> int:
    """The length of an expanded buffer.

    Raises:
        ValueError: `few` writes none as long.
    """
    if not 0 <= expanded <= MOST_EXPANDED:
        raise ValueError("a buffer is too large")
    return expanded


@lru_cache(maxsize=256)
def few_shapes_of(columns: bytes, length: bytes) -> tuple[FewShape, ...]:
    """How `few` writes columns with these letters; nothing if it never does.

    Args:
        length: what an entry says of that of its metadata, which tells those that are compressed from others.
    """
    letters = columns.decode("ascii")
    if "p" not in letters or letters != "".join(one for one in _ORDER if one in letters) or "dD" in letters:
        return ()
    shapes = (_shape(letters, codec) for codec in CODECS)
    return tuple(one for one in shapes if one.size == 8 + int.from_bytes(length, "little"))


@cache
def _shape(letters: str, codec: Codec) -> FewShape:
    metadata = metadata_of(letters, codec)
    buffers = sum(3 if letter in "kp" else 2 for letter in letters)
    places = {"nodes": metadata.nodes, "buffers": metadata.buffers}
    counts = {"nodes": 2 * len(letters), "buffers": 2 * buffers}
    places |= {"length": metadata.length, "body_length": metadata.body_length}
    format, at, number = "<", 0, 0
    same: list[int] = []
    where: dict[str, slice] = {}
    for name in sorted(places, key=places.__getitem__):
        count = counts.get(name, 1)
        format += f"{places[name] - at}s{count}q"
        same.append(number)
        where[name] = slice(number + 1, number + 1 + count)
        at, number = places[name] + 8 * count, number + 1 + count
    whole = struct.Struct(f"{format}{len(metadata.message) - at}s")
    chosen = itemgetter(*same, number)
    return FewShape(
        letters,
        codec,
        len(metadata.message),
        whole,
        chosen,
        chosen(whole.unpack(metadata.message)),
        where["length"].start,
        where["nodes"],
        where["buffers"],
        where["body_length"].start,
    )
