"""Entries as they nearly always are: some payloads, perhaps of several topics, and nothing else. Pure.

What ``few`` writes of so many messages is the same, byte by byte, but for how long its contents are, where
payloads end, and which topic is whose. So one call of `struct` takes all of it apart. Whatever differs in
anything is not read here: ``few_reading`` reads it, or ``decoding``, or says what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from streamlease.protocol.epochs.order import Epoch
from streamlease.streams.entries.decoding import DAMAGE
from streamlease.streams.entries.expanding import AS_IT_IS
from streamlease.streams.entries.few import INTEGERS, MOST_ROWS, codec_of, expanded_frame, metadata_of
from streamlease.streams.entries.layout import CODECS, Codec
from streamlease.streams.rows.few_shapes import LENGTH, possible

MOST_TOPICS = 65_536
"""Bytes of the topics of an entry."""

PLAIN_FIELDS = [b"a", b"t", b"c", b"b"]
"""The fields of a plain entry, in the order in which they are stored."""

LEAST, MOST = -(2**63), 2**63
"""Times are at least `LEAST`, and below `MOST`."""

PACKED = -1
"""Where the payloads of a `PlainEntry` begin that are still compressed."""

_ZSTD = b"\x28\xb5\x2f\xfd"
_LETTERS = {b"p": "p", b"ip": "ip"}


class EntryColumns(NamedTuple):
    """The messages of one entry, as columns."""

    topics: Sequence[str]
    keys: Sequence[bytes | None]
    payloads: Sequence[bytes]
    times: Sequence[int]
    appended: int
    epoch: Epoch | None


class PlainEntry(NamedTuple):
    """An entry that is for here."""

    topics: list[str]
    ends: Sequence[int]
    """Where its payloads end."""
    appended: int
    contents: bytes
    begin: int
    """What the payloads are in, and where they begin there; or a frame of zstd with them, and `PACKED`."""
    length: int
    """How long they are."""
    size: int
    """Of the entry, in bytes, as expanded."""


class _Form(NamedTuple):
    """How a record batch of so many payloads is written, with one of the codecs."""

    codec: Codec
    numbers: struct.Struct
    """All but the payloads: what stands before the columns in three parts, and between these the lengths of
    contents and columns; the places of the topics; where the payloads end."""
    same: Callable[[tuple[Any, ...]], Any]
    """What is always the same of this."""
    expected: Any
    """What that is."""
    length: int
    body: int
    places: slice
    """Where lengths and places stand in it."""
    size: int
    """Where the columns begin."""
    contents: int
    """Where the contents begin, behind that."""
    fixed: int
    """How many bytes the places and ends have."""


@lru_cache(maxsize=1024)
def _forms(letters: str, rows: int, metadata: bytes) -> tuple[_Form, ...]:
    """How record batches are written whose metadata have this length, as it stands there."""
    forms = (_form(letters, rows, codec) for codec in CODECS)
    return tuple(form for form in forms if form.size == 8 + int.from_bytes(metadata, "little"))


def _form(letters: str, rows: int, codec: Codec) -> _Form:
    metadata, mark = metadata_of(letters, codec), "" if codec == "none" else "q"
    columns = [f"<{mark}{rows}{INTEGERS['i']}"] if letters == "ip" else []
    columns.append(f"<{mark}{rows + 1}i")
    sizes = [*map(struct.calcsize, columns)]
    padded = [(size + 7) & -8 for size in sizes]
    *begins, contents = accumulate(padded, initial=0)
    extents = [number for extent in zip(begins, sizes, strict=True) for number in (extent[0], 0, *extent)]
    message = bytes(metadata.filled(rows, [rows, 0] * len(letters), [*extents, contents, 0], 0))
    length_at, body_at = metadata.buffers + 8 * (len(extents) + 1), metadata.body_length
    first, second = sorted((length_at, body_at))
    head = f"<{first}sq{second - first - 8}sq{len(message) - second - 8}s"
    marks = ([5, 6 + rows] if letters == "ip" else [5]) if mark else []
    parts = struct.unpack(head, message)
    numbers = [f"{one[1:]}{more - size}x" for one, size, more in zip(columns, sizes, padded, strict=True)]
    return _Form(
        codec,
        struct.Struct(head + "".join(numbers)),
        itemgetter(0, 2, 4, *marks),
        (*parts[::2], *(AS_IT_IS for _ in marks)),
        1 if length_at == first else 3,
        1 if body_at == first else 3,
        slice(5 + len(mark), 5 + len(mark) + rows),
        len(message),
        contents,
        sum(sizes) - 8 * len(marks),
    )


def plain_entry(flat: Sequence[bytes], rows: int) -> PlainEntry | None:
    """The entry with these values of `PLAIN_FIELDS`; None if it is not for here."""
    _, appended_at, _, topics, _, columns, _, stored = flat
    letters = _LETTERS.get(columns)
    if letters is None or not 0 < rows <= MOST_ROWS or len(topics) > MOST_TOPICS:
        return None
    try:
        for form in _forms(letters, rows, stored[4:8]):
            numbers = form.numbers.unpack_from(stored)
            if form.same(numbers) != form.expected:
                continue
            contents, begin, length = _contents(stored, form, numbers[form.length], numbers[form.body])
            ends, names, appended = numbers[-rows - 1 :], topics.decode().split("\0"), int(appended_at)
            if ends[0] or ends[-1] > length or [*ends] != sorted(ends):
                return None
            places = numbers[form.places] if letters == "ip" else (0,) * rows
            if min(places) < 0 or not LEAST <= appended < MOST:
                return None
            named = [names[place] for place in places]
            size = sum(map(len, flat)) + max(0, form.fixed + length - len(stored))
            return PlainEntry(named, ends, appended, contents, begin, length, size)
    except (struct.error, *DAMAGE):
        return None  # whoever decodes it otherwise says what is wrong
    return None


def _contents(stored: bytes, form: _Form, length: int, body: int) -> tuple[bytes, int, int]:
    """What the payloads are in, where they begin there, and how long they are; see `PlainEntry`.

    Raises:
        ValueError, and all of ``DAMAGE``: they are not whole, or too large.
    """
    begin = form.size + form.contents
    if length < 0 or len(stored) - form.size != body or form.contents + ((length + 7) & -8) != body:
        raise ValueError("something is missing, or more is there")
    if form.codec == "none" or not length:
        return stored, begin, length
    (size,) = LENGTH.unpack_from(stored, begin)
    if size == AS_IT_IS:
        return stored, begin + 8, length - 8
    packed = stored[begin + 8 : begin + length]
    if form.codec == "zstd":
        if not packed.startswith(_frame_head(possible(size))):
            raise ValueError("it is no frame of so many bytes")
        return packed, PACKED, size
    plain = expanded_frame(packed, possible(size), form.codec)
    return plain, 0, len(plain)


@lru_cache(maxsize=1024)
def _frame_head(length: int) -> bytes:
    """How a frame of zstd begins that holds so many bytes, and says so (RFC 8878, section 3.1.1)."""
    if length < 256:
        return _ZSTD + b"\x20" + length.to_bytes(1, "little")
    if length < 256 + 65_536:
        return _ZSTD + b"\x60" + (length - 256).to_bytes(2, "little")
    return _ZSTD + b"\xa0" + length.to_bytes(4, "little")


def expanded(entries: Sequence[PlainEntry]) -> list[EntryColumns]:
    """The messages of each of the entries, in order. What is compressed is expanded in one call.

    Raises:
        ValueError, and all of ``DAMAGE``: something is damaged.
    """
    packed = [entry for entry in entries if entry.begin == PACKED]
    frames, length = b"".join([entry.contents for entry in packed]), sum(entry.length for entry in packed)
    # Several frames in a row are what zstd takes; each is checked to hold what it says.
    whole: bytes = codec_of("zstd").decompress(frames, length, asbytes=True) if packed else b""
    found: list[EntryColumns] = []
    at = 0
    for entry in entries:
        contents, begin = entry.contents, entry.begin
        if begin == PACKED:
            contents, begin = whole, at
            at += entry.length
        rows, appended = len(entry.topics), entry.appended
        ends = [begin + end for end in entry.ends] if begin else entry.ends
        payloads = [contents[first:last] for first, last in pairwise(ends)]
        times = (appended,) * rows
        found.append(EntryColumns(entry.topics, (None,) * rows, payloads, times, appended, None))
    return found
