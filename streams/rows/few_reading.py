"""Entries of a few messages, read without Arrow, whose calls take longer than all the rest. Pure.

The counterpart of ``few``: it takes apart what that module writes, and single messages. A record batch is
read only if its metadata is, byte by byte, what `few` writes for the same numbers, and only if all that it
says is inside the entry. Whatever else there is (headers, a schema, an entry that is larger or damaged) is
not read here: ``decoding`` reads it, or says what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Any, NamedTuple, TypeAlias

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange, parse_entry_id
from streamlease.streams.entries.decoding import DAMAGE, single_of
from streamlease.streams.entries.epoch_fields import EPOCH_FIELD, WRITER_FIELD, epoch_of
from streamlease.streams.entries.expanding import AS_IT_IS
from streamlease.streams.entries.few import INTEGERS, MOST_ROWS, expanded_frame
from streamlease.streams.entries.layout import Codec
from streamlease.streams.rows.few_messages import FewMessages
from streamlease.streams.rows.few_shapes import (
    LENGTH,
    MOST_EXPANDED,
    FewShape,
    few_shapes_of,
    possible,
)
from streamlease.streams.rows.plain_entries import (
    LEAST,
    MOST,
    MOST_TOPICS,
    PLAIN_FIELDS,
    EntryColumns,
    PlainEntry,
    expanded,
    plain_entry,
)

MOST_MESSAGES = 32
"""Entries of more messages than that, on the average, are read faster by Arrow."""

_FIELDS = frozenset({b"a", b"t", b"p", b"k", b"e", b"c", b"b", EPOCH_FIELD, WRITER_FIELD})
"""Others mean that there is more to an entry; see ``layout``."""

_NO_FIELDS: dict[bytes, bytes] = {}
_ALL_THERE = repeat(True)


class FewEntry(NamedTuple):
    """An entry that may be for here: its fields, and how its record batch is taken apart, if it has one."""

    fields: dict[bytes, bytes]
    offsets: OffsetRange
    size: int
    """In bytes, as expanded."""
    shape: FewShape | None = None
    nulls: Sequence[int] = ()
    """Of each column, how many values are missing."""
    extents: Sequence[int] = ()
    """Of each buffer, where it begins and how long it is."""
    plain: PlainEntry | None = None
    """What it is if it is plain: then the rest is left out."""


def are_few(entries: Sequence[Any]) -> bool:
    """Whether entries that follow each other, pairs of an id and fields, have few messages on the average."""
    if not entries:
        return True
    rows = parse_entry_id(entries[-1][0]).end - parse_entry_id(entries[0][0]).start
    return rows <= MOST_MESSAGES * len(entries)


def few_entry(flat: Sequence[bytes], offsets: OffsetRange) -> FewEntry | None:
    """The entry with these fields, none of whose values was looked at; None if it is not for here."""
    plain = plain_entry(flat, offsets.end - offsets.start) if flat[::2] == PLAIN_FIELDS else None
    if plain is not None:
        return FewEntry(_NO_FIELDS, offsets, plain.size, plain=plain)
    try:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if not fields.keys() <= _FIELDS:
            return None
        stored = fields.get(b"b")
        if stored is None:
            return FewEntry(fields, offsets, sum(map(len, flat)))
        rows = offsets.end - offsets.start
        if not 0 < rows <= MOST_ROWS or len(fields[b"t"]) > MOST_TOPICS or len(stored) > MOST_EXPANDED:
            return None
        for shape in few_shapes_of(fields[b"c"], stored[4:8]):
            found = shape.taken_apart(stored, rows)
            if found is not None:
                nulls, extents = found
                size = sum(map(len, flat)) + shape.gain(stored, extents)
                return FewEntry(fields, offsets, size, shape, nulls, extents)
    except (struct.error, *DAMAGE):
        return None  # ``decoding`` says what is wrong
    return None


def read_few(
    stream: StreamId, entries: Sequence[FewEntry | None], start: int, end: int
) -> FewMessages | None:
    """The messages ``start <= offset < end``, all of which `entries` have; None if they are not for here.

    Args:
        entries: of a space without a schema; see `few_entry`.
    """
    if not entries or end - start > MOST_MESSAGES * len(entries):
        return None
    parts: list[EntryColumns] = []
    position = start
    try:
        found = [entry.plain for entry in entries if entry is not None and entry.plain is not None]
        plain = iter(expanded(found) if found else ())
        for entry in entries:
            if entry is None or entry.offsets.start != position:
                return None  # it is not for here, begins before, or something is missing
            if entry.plain is not None:
                some: EntryColumns | None = next(plain)
            else:
                some = _of_single(entry) if entry.shape is None else _of_batch(entry, entry.shape)
            if some is None:
                return None
            parts.append(some)
            position = entry.offsets.end
    except (struct.error, *DAMAGE):
        return None
    if position < end:
        return None
    whole = FewMessages(stream, *_columns(parts, range(start, position)))
    return whole if position == end else whole.slice(0, end - start)


def _columns(parts: Sequence[EntryColumns], offsets: range) -> tuple[Sequence[Any], ...]:
    """What entries have that follow each other, as the columns of one `FewMessages`."""
    if len(parts) == 1:
        ((topics, keys, payloads, times, appended, epoch),) = parts
        rows = len(payloads)
        return topics, keys, payloads, offsets, times, (appended,) * rows, (epoch,) * rows
    topics, keys, payloads, times = list[str](), list[bytes | None](), list[bytes](), list[int]()
    appended_at, epochs = list[int](), list[Epoch | None]()
    for some_topics, some_keys, some_payloads, some_times, appended, epoch in parts:
        rows = len(some_payloads)
        topics += some_topics
        keys += some_keys
        payloads += some_payloads
        times += some_times
        appended_at += (appended,) * rows
        epochs += (epoch,) * rows
    return topics, keys, payloads, offsets, times, appended_at, epochs


def _of_single(entry: FewEntry) -> EntryColumns | None:
    """The message of an entry without a record batch; None if a time of it is impossible.

    Raises:
        struct.error, and all of ``DAMAGE``: the same.
    """
    one = single_of(entry.offsets, entry.fields)
    if not (LEAST <= one.timestamp < MOST and LEAST <= one.appended < MOST):
        return None
    return EntryColumns((one.topic,), (one.key,), (one.payload,), (one.timestamp,), one.appended, one.epoch)


@lru_cache(maxsize=512)
def _numbers(rows: int, code: str) -> struct.Struct:
    return struct.Struct(f"<{rows}{code}")


_Buffer: TypeAlias = tuple[bytes, int, int]
"""What a buffer of a column is in, where it begins there, and how long it is."""


def _expanded(stored: bytes, begin: int, length: int, codec: Codec) -> _Buffer:
    """A buffer as it was before it was compressed.

    Raises:
        ValueError, and all of ``DAMAGE``: it is not whole, or too large.
    """
    if not length:
        return b"", 0, 0
    (size,) = LENGTH.unpack_from(stored, begin)
    if size == AS_IT_IS:
        return stored, begin + 8, length - 8
    plain = expanded_frame(stored[begin + 8 : begin + length], possible(size), codec)
    return plain, 0, len(plain)


def _of_batch(entry: FewEntry, shape: FewShape) -> EntryColumns | None:
    """The messages of an entry that holds a record batch; None if its columns are not whole.

    Raises:
        struct.error, and all of ``DAMAGE``: the same.
    """
    fields, rows, extents = entry.fields, entry.offsets.end - entry.offsets.start, entry.extents
    appended = least = most = int(fields[b"a"])
    names = fields[b"t"].decode().split("\0")
    topics: Sequence[str] | None = None
    keys: Sequence[bytes | None] | None = None
    payloads: Sequence[bytes] = ()
    times: Sequence[int] | None = None
    stored, size, codec = fields[b"b"], shape.size, shape.codec
    if codec == "none":
        buffers = [(stored, size + extents[at], extents[at + 1]) for at in range(0, len(extents), 2)]
    else:
        buffers = [
            _expanded(stored, size + extents[at], extents[at + 1], codec) for at in range(0, len(extents), 2)
        ]
    at = 0
    for letter, missing in zip(shape.letters, entry.nulls, strict=True):
        valid = _valid(buffers[at], rows, missing)
        if letter == "i":
            places = _numbers_in(buffers[at + 1], rows, INTEGERS["i"])
            if missing or min(places) < 0:
                return None
            topics = [names[place] for place in places]
        elif letter == "p":
            payloads = _binary(buffers[at + 1], buffers[at + 2], rows)
            if missing:
                return None
        elif letter == "k":
            values = _binary(buffers[at + 1], buffers[at + 2], rows)
            keys = [*map(_if_there, values, valid)] if missing else values
        else:
            base, later = int(fields[b"e"]), _numbers_in(buffers[at + 1], rows, INTEGERS[letter])
            each = zip(later, valid, strict=False)
            times = [base + value if there else appended for value, there in each]
            least, most = min(least, *times), max(most, *times)
        at += 3 if letter in "kp" else 2
    if least < LEAST or most >= MOST:
        return None
    return EntryColumns(
        [names[0]] * rows if topics is None else topics,
        (None,) * rows if keys is None else keys,
        payloads,
        (appended,) * rows if times is None else times,
        appended,
        epoch_of(fields),
    )


def _if_there(value: bytes, there: bool) -> bytes | None:
    return value if there else None


def _valid(bitmap: _Buffer, rows: int, missing: int) -> Iterable[bool]:
    """Which values of a column are there.

    Raises:
        ValueError: it is not said.
    """
    whole, begin, length = bitmap
    if not missing:
        if length:
            raise ValueError("no value is missing, and some may be")
        return _ALL_THERE
    bits = int.from_bytes(whole[begin : begin + length], "little")
    valid = [bool(bits >> place & 1) for place in range(rows)]
    if length * 8 < rows or valid.count(False) != missing:
        raise ValueError("other values are missing")
    return valid


def _numbers_in(buffer: _Buffer, count: int, code: str) -> tuple[int, ...]:
    """The first numbers of a column of numbers.

    Raises:
        ValueError: it has not so many.
    """
    whole, begin, length = buffer
    numbers = _numbers(count, code)
    if numbers.size > length:
        raise ValueError("a column is too short")
    return numbers.unpack_from(whole, begin)


def _binary(ends: _Buffer, contents: _Buffer, rows: int) -> list[bytes]:
    """The values of a column of bytes.

    Raises:
        ValueError, struct.error: their ends are not inside `contents`, or not in order.
    """
    places = _numbers_in(ends, rows + 1, "i")
    whole, begin, length = contents
    if places[0] or places[-1] > length or [*places] != sorted(places):
        raise ValueError("the values are not in order")
    if begin:
        places = tuple([begin + place for place in places])
    return [whole[first:last] for first, last in pairwise(places)]
