"""What many streams have, a few messages each, decoded as if it were of one stream. Pure.

A call of Arrow takes some microseconds, however few rows it is for, and the entries of one stream take
thirty. So streams whose entries are few, small and of one form share one record batch. Whatever is wrong with
a stream's entries, or out of the ordinary, is not decided here: it is decoded alone, which says what it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import parse_entry_id
from streamlease.streams.entries.columnar import BatchEntry, EntryRun, View, decode_runs
from streamlease.streams.entries.decoding import DAMAGE, Entry, Single, decode_singles, single_of
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.shared_rows import Rows

FEW_ROWS = 256
FEW_BYTES = 64 * 1024
"""Most messages, and bytes as expanded, of a stream that is decoded with others: more are worth the calls."""

MOST_ROWS = 4096
MOST_BYTES = 1024 * 1024
"""The same of all that share a record batch, for it lives as long as any of them."""


class StreamStep(NamedTuple):
    """The entries of one stream that are wanted: all of ``start <= offset < end``."""

    stream: StreamId
    entries: Sequence[Entry]
    start: int
    end: int
    versions: Versions | None
    size: int
    """In bytes, as expanded."""


class _Open(NamedTuple):
    """A part whose entries were taken apart."""

    place: int
    part: StreamStep
    found: EntryRun | list[Single]

    @property
    def form(self) -> Hashable:
        """Parts of the same form can be decoded together."""
        alike = self.found.neighbours[0].form if isinstance(self.found, EntryRun) else None
        return alike, id(self.part.versions)


def decode_together(
    parts: Sequence[StreamStep], wanted: Schema | None, columns: frozenset[str] | None
) -> dict[int, Rows]:
    """The messages of those of `parts` that can be decoded with others, by their places.

    Args:
        wanted, columns: as of ``decoding.decode_entries``.
    """
    groups: dict[Hashable, list[_Open]] = {}
    for place, part in enumerate(parts):
        if 0 < part.end - part.start <= FEW_ROWS and part.size <= FEW_BYTES:
            found = _opened(part, typed=part.versions is not None or wanted is not None)
            if found is not None:
                one = _Open(place, part, found)
                groups.setdefault(one.form, []).append(one)
    decoded: dict[int, Rows] = {}
    for group in groups.values():
        for some in _bounded(group):
            decoded |= _decoded(some, wanted, columns) if len(some) > 1 else {}
    return decoded


def _opened(part: StreamStep, *, typed: bool) -> EntryRun | list[Single] | None:
    """The entries of a part; None if anything is out of the ordinary."""
    singles: list[Single] = []
    batches: list[BatchEntry] = []
    position = part.start
    try:
        for id, flat in part.entries:
            offsets = parse_entry_id(id)
            if offsets.start != position or len(flat) % 2:
                return None
            position = offsets.end
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if b"b" not in fields:
                singles.append(single_of(offsets, fields))
            else:
                batches.append(BatchEntry.of(id, offsets, fields))
    except DAMAGE:
        return None
    if position != part.end:
        return None
    if not batches:
        return None if typed else singles
    alike = len({one.form for one in batches}) == 1 and (b"s" in batches[0].fields or not typed)
    return EntryRun(part.stream, batches) if alike and not singles else None


def _bounded(group: Sequence[_Open]) -> list[list[_Open]]:
    """`group` in pieces, each of which may share a record batch."""
    pieces: list[list[_Open]] = []
    rows = size = 0
    for one in group:
        more = one.part.end - one.part.start
        if not pieces or rows + more > MOST_ROWS or size + one.part.size > MOST_BYTES:
            pieces.append([])
            rows = size = 0
        pieces[-1].append(one)
        rows += more
        size += one.part.size
    return pieces


def _decoded(some: Sequence[_Open], wanted: Schema | None, columns: frozenset[str] | None) -> dict[int, Rows]:
    """The messages of parts of one form; nothing if one of them is damaged."""
    try:
        batch = _joined(some, wanted, columns)
    except (SchemaMismatch, *DAMAGE):
        return {}
    lengths = [one.part.end - one.part.start for one in some]
    return dict(zip((one.place for one in some), Rows.parts(batch, lengths), strict=True))


def _joined(some: Sequence[_Open], wanted: Schema | None, columns: frozenset[str] | None) -> pa.RecordBatch:
    """The messages of parts of one form.

    Raises:
        SchemaMismatch, and all of `DAMAGE`: they cannot be decoded together.
    """
    runs = [one.found for one in some if isinstance(one.found, EntryRun)]
    if not runs:
        singles = [one.found for one in some if not isinstance(one.found, EntryRun)]
        return decode_singles(columns, [one.part.stream for one in some], singles)
    part = some[0].part
    target = wanted if wanted is not None or part.versions is None else part.versions.newest
    return decode_runs(View(part.stream, part.versions, target, columns), runs)
