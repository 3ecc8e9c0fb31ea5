"""An entry of few messages, made without Arrow, whose arrays and writer would cost more than the rest. Pure.

The record batch is what Arrow would write for the same layout, so readers see no difference. Arrow itself
writes the metadata, once for each layout; of that only the numbers change, which stand at fixed places::

    length of the batch | nodes: length, nulls | buffers: offset, length | length of the body

Each column has a validity bitmap (left out without nulls), offsets if it is binary, and data. In a compressed
batch each buffer begins with its expanded length, or with -1 if it stands as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from streamlease.streams.entries.expanding import (
    AS_IT_IS,
    BODY_LENGTH,
    BUFFERS,
    HEADER,
    LENGTH,
    NODES,
    field_at,
    follow,
)
from streamlease.streams.entries.layout import (
    INT32_MAX,
    SMALL_BYTES,
    Codec,
    Encoded,
    Fields,
    layout_of,
    write_options,
)

MOST_ROWS = 64
"""So many messages are few: with more, Arrow is faster."""

MOST_BYTES = 8192
"""Bytes of payloads and keys."""

_WORTH_COMPRESSING = 128
"""A smaller buffer stands as it is."""

INTEGERS = {"i": "h", "d": "i", "D": "q"}
"""How a column of whole numbers is packed, by its letter."""

_SAMPLE = 128
_MOST_DISTINCT = 80
"""A buffer whose first bytes have more different values than that is as good as random, and stands as it is:
to try takes longer than all the rest of an entry. Text has half as many."""

_NOT_COMPRESSED = struct.pack("<q", AS_IT_IS)


class Metadata(NamedTuple):
    """What stands before the body, and where its numbers are."""

    message: bytes
    length: int
    nodes: int
    buffers: int
    body_length: int

    def filled(self, rows: int, nodes: Sequence[int], extents: Sequence[int], body: int) -> bytearray:
        """The same with these numbers.

        Args:
            nodes: of each column, how long it is, and how many values are missing.
            extents: of each buffer, where it begins and how long it is.
            body: how many bytes stand behind the metadata.
        """
        message = bytearray(self.message)
        struct.pack_into("<q", message, self.length, rows)
        struct.pack_into(f"<{len(nodes)}q", message, self.nodes, *nodes)
        struct.pack_into(f"<{len(extents)}q", message, self.buffers, *extents)
        struct.pack_into("<q", message, self.body_length, body)
        return message


def is_few(payloads: Sequence[bytes], keys: Sequence[bytes | None]) -> bool:
    """Whether :func:`encode_few` is for these messages."""
    return (
        len(payloads) <= MOST_ROWS
        and sum(map(len, payloads)) + sum(len(key) for key in keys if key) <= MOST_BYTES
    )


def encode_few(
    topics: Sequence[str],
    payloads: Sequence[bytes],
    keys: Sequence[bytes | None],
    times: Sequence[int | None],
    codec: Codec,
) -> Encoded:
    """One entry of a few messages without headers, at least one, and checked already."""
    names = dict.fromkeys(topics)
    fields: Fields = [b"t", "\0".join(names).encode()]
    letters, columns = "", []
    if len(names) > 1:
        letters = "i"
        places = {name: place for place, name in enumerate(names)}
        columns.append(_integers("i", [places[topic] for topic in topics]))
    if any(key is not None for key in keys):
        letters += "k"
        columns.append(_binary(keys))
    letters += "p"
    columns.append(_binary(payloads))
    given = [time for time in times if time is not None]
    if given:
        least = min(given)
        letter = "d" if max(given) - least <= INT32_MAX else "D"
        letters += letter
        columns.append(_integers(letter, [None if time is None else time - least for time in times]))
        fields += [b"e", b"%d" % least]
    fields += [b"c", letters.encode(), b"b", _record_batch(letters, len(topics), columns, codec)]
    return Encoded(len(topics), fields)


_Column = tuple[int, list[bytes]]
"""How many nulls it has, and its buffers."""


def _validity(values: Sequence[object]) -> tuple[int, bytes]:
    nulls = values.count(None)
    if not nulls:
        return 0, b""
    bits = sum(1 << place for place, value in enumerate(values) if value is not None)
    return nulls, bits.to_bytes((len(values) + 7) // 8, "little")


def _integers(letter: str, values: Sequence[int | None]) -> _Column:
    nulls, validity = _validity(values)
    data = struct.pack(f"<{len(values)}{INTEGERS[letter]}", *(value or 0 for value in values))
    return nulls, [validity, data]


def _binary(values: Sequence[bytes | None]) -> _Column:
    nulls, validity = _validity(values)
    contents = [value or b"" for value in values] if nulls else values
    offsets = struct.pack(f"<{len(values) + 1}i", *accumulate(map(len, contents), initial=0))  # type: ignore[arg-type]
    return nulls, [validity, offsets, b"".join(contents)]  # type: ignore[arg-type]


def _record_batch(letters: str, rows: int, columns: Sequence[_Column], codec: Codec) -> bytes:
    buffers = [buffer for _, some in columns for buffer in some]
    if sum(map(len, buffers)) <= SMALL_BYTES:
        codec = "none"
    metadata = metadata_of(letters, codec)
    if codec != "none":
        buffers = [_compressed(buffer, codec) for buffer in buffers]
    extents: list[int] = []
    body: list[bytes] = []
    end = 0
    for buffer in buffers:
        size = len(buffer)
        extents += (end, size)
        padding = -size % 8
        body += (buffer, bytes(padding)) if padding else (buffer,)
        end += size + padding
    nodes = [number for nulls, _ in columns for number in (rows, nulls)]
    return b"".join((metadata.filled(rows, nodes, extents, end), *body))


def _compressed(buffer: bytes, codec: Codec) -> bytes:
    if not buffer:
        return b""
    if len(buffer) >= _WORTH_COMPRESSING and len({*buffer[:_SAMPLE]}) <= _MOST_DISTINCT:
        smaller: bytes = codec_of(codec).compress(buffer, asbytes=True)
        if len(smaller) < len(buffer):
            return struct.pack("<q", len(buffer)) + smaller
    return _NOT_COMPRESSED + buffer


@cache
def codec_of(codec: Codec) -> pa.Codec:
    """What compresses and expands."""
    return pa.Codec(codec)


def expanded_frame(frame: bytes, size: int, codec: Codec) -> bytes:
    """What a frame holds, which is `size` bytes.

    Raises:
        ValueError, and all of ``decoding.DAMAGE``: it is damaged, or holds more or fewer.
    """
    plain: bytes = codec_of(codec).decompress(frame, size, asbytes=True)
    if codec == "lz4":
        # Arrow takes a frame of fewer bytes, which zstd's say: the rest would be whatever was in memory.
        with pa.CompressedInputStream(pa.py_buffer(frame), codec) as expanding:
            if len(expanding.read(size + 1)) != size:
                raise ValueError("less is in it than there should be")
    return plain


@cache
def metadata_of(letters: str, codec: Codec) -> Metadata:
    """The metadata that Arrow writes, and where in it, by the rules of flatbuffers, its numbers stand."""
    layout = layout_of(letters, None)
    arrays = [pa.nulls(1, field.type) for field in layout.schema]  # no values: see `arrays`
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, layout.schema, options=write_options(codec)) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=layout.schema))
    whole = sink.getvalue().to_pybytes()[len(layout.header) :]
    (size,) = struct.unpack_from("<I", whole, 4)
    message = whole[: 8 + size]
    root = follow(message, 8)
    batch = follow(message, field_at(message, root, HEADER))
    # A vector begins with its own length, of 4 bytes.
    nodes, buffers = (follow(message, field_at(message, batch, place)) + 4 for place in (NODES, BUFFERS))
    length, body_length = field_at(message, batch, LENGTH), field_at(message, root, BODY_LENGTH)
    return Metadata(message, length, nodes, buffers, body_length)
