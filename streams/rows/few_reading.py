"""Entries of a few messages, read without Arrow, whose calls take longer than all the rest. Pure.

The counterpart of ``few``: it takes apart what that module writes, and single messages. A record batch is
read only if its metadata is, byte by byte, what `few` writes for the same numbers, and only if all that it
says is inside the entry. Whatever else there is (headers, a schema, an entry that is larger or damaged) is
not read here: ``decoding`` reads it, or says what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange, parse_entry_id
from streamlease.streams.entries.decoding import DAMAGE, Entry, Single, decode_singles, single_of
from streamlease.streams.entries.delivered import Message, Messages
from streamlease.streams.entries.epoch_fields import EPOCH_FIELD, WRITER_FIELD, epoch_of
from streamlease.streams.entries.expanding import AS_IT_IS
from streamlease.streams.entries.few import INTEGERS, MOST_BYTES, MOST_ROWS, Metadata, codec_of, metadata_of
from streamlease.streams.entries.layout import CODECS, Codec
from streamlease.streams.entries.message_rows import topic_selected
from streamlease.streams.rows.shared_rows import Rows

MOST_MESSAGES = 16
"""Entries of more messages than that, on the average, are read faster by Arrow."""

_MOST_EXPANDED = 8 * MOST_BYTES
_MOST_TOPICS = 65_536
"""Bytes of the topics of an entry."""

_FIELDS = frozenset({b"a", b"t", b"p", b"k", b"e", b"c", b"b", EPOCH_FIELD, WRITER_FIELD})
"""Others mean that there is more to an entry; see ``layout``."""

_ORDER = "ikpdD"
_LEAST, _MOST = -(2**63), 2**63
_LENGTH = struct.Struct("<q")
_SIZE = struct.Struct("<I")


class FewMessages:
    """Messages of one stream, in order; they become columns when somebody asks for these."""

    __slots__ = ("_batch", "_messages", "_stream")

    def __init__(self, stream: StreamId, messages: list[Message]) -> None:
        self._stream = stream
        self._messages = messages
        self._batch: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def batch(self) -> pa.RecordBatch:
        """The messages as a record batch of ``MESSAGE_SCHEMA``."""
        if self._batch is None:
            singles = [
                Single(
                    one.topic,
                    one.key,
                    one.payload,
                    None,
                    one.offset,
                    one.timestamp_us,
                    one.append_timestamp_us,
                    one.epoch,
                )
                for one in self._messages
            ]
            self._batch = decode_singles(None, [self._stream], [singles])
        return self._batch

    @property
    def messages(self) -> Messages:
        """The messages."""
        return Messages(len(self._messages), lambda: self._messages)

    def plain(self) -> FewMessages:
        """The same, with texts in the column topic."""
        return self

    def offset(self, place: int) -> int:
        """That of a message."""
        return self._messages[place].offset

    def slice(self, first: int, last: int) -> FewMessages:
        """Those from `first` to before `last`."""
        return FewMessages(self._stream, self._messages[first:last])

    def filtered(self, filter: str) -> FewMessages:
        """Those whose topic is matched by `filter`."""
        chosen = [one for one in self._messages if topic_selected((filter,), one.topic)]
        return self if len(chosen) == len(self._messages) else FewMessages(self._stream, chosen)

    @classmethod
    def joined(cls, parts: Sequence[FewMessages]) -> FewMessages:
        """Those of `parts`, of one stream, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(parts[0]._stream, [message for part in parts for message in part._messages])


StreamRows = Rows | FewMessages
"""What was read of one stream."""


def read_few(stream: StreamId, entries: Sequence[Entry], start: int, end: int) -> FewMessages | None:
    """The messages ``start <= offset < end``, all of which `entries` have; None if they are not for here.

    Args:
        entries: of a space without a schema.
    """
    if not entries or end - start > MOST_MESSAGES * len(entries):
        return None
    name = str(stream)
    messages: list[Message] = []
    position = start
    try:
        for id, flat in entries:
            offsets = parse_entry_id(id)
            if offsets.start != position:
                return None  # it begins before, or something is missing
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if not fields.keys() <= _FIELDS:
                return None
            if b"b" in fields:
                found = _of_batch(name, offsets, fields)
                if found is None:
                    return None
                messages += found
            else:
                one = single_of(offsets, fields)
                if not (_LEAST <= one.timestamp < _MOST and _LEAST <= one.appended < _MOST):
                    return None
                messages.append(
                    Message(
                        one.topic,
                        one.key,
                        one.payload,
                        name,
                        one.offset,
                        one.timestamp,
                        one.appended,
                        epoch=one.epoch,
                    )
                )
            position = offsets.end
    except (struct.error, *DAMAGE):
        return None
    if position < end:
        return None
    return FewMessages(stream, messages[: end - start])


class _Shape(NamedTuple):
    """What stands before the columns of an entry, and how it is taken apart."""

    codec: Codec
    metadata: Metadata
    nodes: struct.Struct
    buffers: struct.Struct


@lru_cache(maxsize=64)
def _shapes(letters: str) -> tuple[_Shape, ...]:
    """How `few` writes columns with these letters; nothing if it never does."""
    if "p" not in letters or letters != "".join(one for one in _ORDER if one in letters) or "dD" in letters:
        return ()
    buffers = sum(3 if letter in "kp" else 2 for letter in letters)
    nodes, extents = struct.Struct(f"<{2 * len(letters)}q"), struct.Struct(f"<{2 * buffers}q")
    return tuple(_Shape(codec, metadata_of(letters, codec), nodes, extents) for codec in CODECS)


def _of_batch(stream: str, offsets: OffsetRange, fields: dict[bytes, bytes]) -> list[Message] | None:
    """The messages of an entry that holds a record batch; None if `few` did not write it.

    Raises:
        struct.error, and all of ``DAMAGE``: the same.
    """
    rows, stored, names = len(offsets), fields[b"b"], fields[b"t"]
    if not 0 < rows <= MOST_ROWS or len(names) > _MOST_TOPICS or len(stored) > _MOST_EXPANDED:
        return None
    letters = fields[b"c"].decode("ascii")
    size = 8 + int(_SIZE.unpack_from(stored, 4)[0])
    for shape in _shapes(letters):
        metadata = shape.metadata
        if size != len(metadata.message):
            continue
        nodes = shape.nodes.unpack_from(stored, metadata.nodes)
        extents = shape.buffers.unpack_from(stored, metadata.buffers)
        if metadata.filled(rows, nodes, extents, len(stored) - size) == stored[:size]:
            break
    else:
        return None
    if any(count != rows for count in nodes[::2]):
        return None
    buffers: list[bytes] = []
    at = size
    for begin, length in zip(extents[::2], extents[1::2], strict=True):
        if size + begin != at or length < 0:
            return None
        buffers.append(_expanded(stored[at : at + length], length, shape.codec))
        at += length + -length % 8
    if at != len(stored):
        return None
    return _messages(stream, offsets, letters, nodes[1::2], buffers, fields)


def _expanded(stored: bytes, length: int, codec: Codec) -> bytes:
    """A buffer as it was before it was compressed.

    Raises:
        ValueError, and all of ``DAMAGE``: it is not whole, or too large.
    """
    if len(stored) != length:
        raise ValueError("a buffer is cut off")
    if codec == "none" or not stored:
        return stored
    (expanded,) = _LENGTH.unpack_from(stored)
    if expanded == AS_IT_IS:
        return stored[8:]
    if not 0 <= expanded <= _MOST_EXPANDED:
        raise ValueError("a buffer is too large")
    plain: bytes = codec_of(codec).decompress(stored[8:], expanded, asbytes=True)
    return plain


def _messages(
    stream: str,
    offsets: OffsetRange,
    letters: str,
    nulls: Sequence[int],
    buffers: Sequence[bytes],
    fields: dict[bytes, bytes],
) -> list[Message] | None:
    """The messages of which these are the columns; None if these are not whole.

    Raises:
        struct.error, and all of ``DAMAGE``: the same.
    """
    rows = len(offsets)
    appended = int(fields[b"a"])
    names = fields[b"t"].decode().split("\0")
    columns: dict[str, Sequence[Any]] = {"k": [None] * rows, "d": [appended] * rows}
    topics = [names[0]] * rows
    left = iter(buffers)
    for letter, missing in zip(letters, nulls, strict=True):
        valid = _valid(next(left), rows, missing)
        if letter in "kp":
            values: Sequence[Any] = _binary(next(left), next(left), rows)
        else:
            values = struct.unpack_from(f"<{rows}{INTEGERS[letter]}", next(left))
        if letter == "i":
            if min(values) < 0:
                return None
            topics = [names[place] for place in values]
        elif letter in "dD":
            least = int(fields[b"e"])
            columns["d"] = [
                least + value if there else appended for value, there in zip(values, valid, strict=True)
            ]
        elif missing:
            columns[letter] = [value if there else None for value, there in zip(values, valid, strict=True)]
        else:
            columns[letter] = values
        if missing and letter in "ip":
            return None
    times = columns["d"]
    if not (_LEAST <= appended < _MOST and min(times) >= _LEAST and max(times) < _MOST):
        return None
    epoch = epoch_of(fields)
    return [
        Message(topic, key, payload, stream, offset, time, appended, (), epoch)
        for topic, key, payload, offset, time in zip(
            topics, columns["k"], columns["p"], range(*offsets), times, strict=True
        )
    ]


def _valid(bitmap: bytes, rows: int, missing: int) -> Sequence[bool]:
    """Which values of a column are there.

    Raises:
        ValueError: it is not said.
    """
    if not missing:
        if bitmap:
            raise ValueError("no value is missing, and some may be")
        return [True] * rows
    bits = int.from_bytes(bitmap, "little")
    valid = [bool(bits >> place & 1) for place in range(rows)]
    if len(bitmap) * 8 < rows or valid.count(False) != missing:
        raise ValueError("other values are missing")
    return valid


def _binary(ends: bytes, contents: bytes, rows: int) -> list[bytes]:
    """The values of a column of bytes.

    Raises:
        ValueError, struct.error: their ends are not inside `contents`, or not in order.
    """
    places = struct.unpack_from(f"<{rows + 1}i", ends)
    if places[0] or places[-1] > len(contents) or [*places] != sorted(places):
        raise ValueError("the values are not in order")
    return [contents[begin:end] for begin, end in pairwise(places)]
