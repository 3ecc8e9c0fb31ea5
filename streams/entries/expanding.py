"""How large an entry becomes when its columns are expanded, known before anything is expanded. Pure.

A few kilobytes of zstd may claim to hold gigabytes, and an entry without columns may claim a trillion rows.
Arrow's record batches tell both up front: the metadata is a flatbuffer with the place of each buffer, and a
compressed buffer begins with its expanded length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

MOST_BYTES = 256 * 1024 * 1024
"""The most that the columns of one entry may expand to: sixteen times what a publisher gathers."""

MOST_MESSAGES = 2**20
"""How many messages one entry may hold: eight times what a publisher gathers."""

MOST_TOPIC_BYTES = 1024 * 1024 * 1024
"""What the topics of its messages may take if each stands for itself: as many messages as a part holds by
default, with the longest topic there is, take a quarter."""

_RECORD_BATCH = 3
_HEADER_TYPE, HEADER, BODY_LENGTH = 1, 2, 3
LENGTH, NODES, BUFFERS, _COMPRESSION = 0, 1, 2, 3
"""Places of fields in the tables Message and RecordBatch."""

AS_IT_IS = -1
"""Stands for the length of a buffer that did not get smaller by compression."""


class Unreadable(ValueError):
    """It is no record batch."""


def expanded_entry_bytes(fields: Sequence[bytes]) -> int:
    """What the entry with these flat fields takes in a reader's memory: as it is stored, or expanded.

    An entry that cannot be read counts as it is stored: whoever decodes it finds out.
    """
    size = sum(map(len, fields))
    if b"b" not in fields:
        return size
    for place in range(0, len(fields) - 1, 2):
        if fields[place] == b"b":
            body = fields[place + 1]
            try:
                return size + max(0, expanded_bytes(body) - len(body))
            except Unreadable:
                return size
    return size


def expanded_bytes(message: bytes) -> int:
    """How many bytes the buffers of an encapsulated record batch have once they are expanded.

    Raises:
        Unreadable: it is none, or is cut off.
    """
    try:
        (length,) = struct.unpack_from("<I", message, 4)
        body = 8 + length
        root = follow(message, 8)
        if message[field_at(message, root, _HEADER_TYPE)] != _RECORD_BATCH:
            raise Unreadable("it is no record batch")
        batch = follow(message, field_at(message, root, HEADER))
        buffers = follow(message, field_at(message, batch, BUFFERS))
        compressed = field_at(message, batch, _COMPRESSION, needed=False)
        (count,) = struct.unpack_from("<I", message, buffers)
        begin, end = buffers + 4, buffers + 4 + 16 * count
        if end > len(message):
            raise Unreadable("it is cut off")
        whole = 0
        for place, size in struct.iter_unpack("<qq", message[begin:end]):
            expanded = size
            if size and compressed:
                (expanded,) = struct.unpack_from("<q", message, body + place)
                if expanded == AS_IT_IS:
                    expanded = size - 8
            if expanded < 0:
                raise Unreadable("a buffer has a negative length")
            whole += expanded
    except (struct.error, IndexError) as error:
        raise Unreadable(f"it is no record batch: {error}") from None
    return whole


def follow(message: bytes, at: int) -> int:
    """Where the offset that stands at `at` leads to."""
    (offset,) = struct.unpack_from("<I", message, at)
    return at + int(offset)


def field_at(message: bytes, table: int, number: int, *, needed: bool = True) -> int:
    """Where the field of a table stands; 0 if it has none and need not."""
    (back,) = struct.unpack_from("<i", message, table)
    fields = table - back
    if fields < 0:
        raise Unreadable("it is no record batch")
    (size,) = struct.unpack_from("<H", message, fields)
    place = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", message, fields + place) if place < size else (0,)
    if offset:
        return table + int(offset)
    if needed:
        raise Unreadable("it is no record batch: a field is missing")
    return 0
