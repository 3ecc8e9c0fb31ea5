"""What many streams have, a few messages each, decoded as if it were of one stream. Pure.

A call of Arrow takes some microseconds, however few rows it is for, and the entries of one stream take
thirty. So streams whose entries are few and small share one record batch: all their entries of one form are
decoded at once, and if there are several forms, the rows are put in order then. Whatever is wrong with a
stream's entries, or out of the ordinary, is not decided here: it is decoded alone, which says what it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import parse_entry_id
from streamlease.streams.entries.arrays import integers
from streamlease.streams.entries.columnar import BatchEntry, EntryRun, View, decode_runs
from streamlease.streams.entries.decoding import DAMAGE, Entry, Single, decode_singles, single_of
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.rows.shared_rows import Rows

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


class _Singles(NamedTuple):
    """Messages of one stream that are entries of their own, and follow each other."""

    stream: StreamId
    messages: list[Single]

    @property
    def rows(self) -> int:
        return len(self.messages)

    @property
    def form(self) -> Hashable:
        return None


class _Batches(NamedTuple):
    """Entries of one stream and one form that follow each other."""

    stream: StreamId
    neighbours: list[BatchEntry]

    @property
    def rows(self) -> int:
        return self.neighbours[-1].offsets.end - self.neighbours[0].offsets.start

    @property
    def form(self) -> Hashable:
        return self.neighbours[0].form


_Piece = _Singles | _Batches


class _Open(NamedTuple):
    """A stream whose entries were taken apart."""

    place: int
    step: StreamStep
    pieces: list[_Piece]


class Shared(NamedTuple):
    """The messages of several streams, one stream behind the other."""

    batch: pa.RecordBatch
    lengths: dict[int, int]
    """How many there are of each stream, by its place."""


def decode_together(
    steps: Sequence[StreamStep], wanted: Schema | None, columns: frozenset[str] | None
) -> dict[int, Rows]:
    """The messages of those of `steps` that can be decoded with others, by their places.

    Args:
        wanted, columns: as of ``decoding.decode_entries``.
    """
    decoded: dict[int, Rows] = {}
    for batch, lengths in decode_shared(steps, wanted, columns):
        decoded |= zip(lengths, Rows.parts(batch, [*lengths.values()]), strict=True)
    return decoded


def decode_shared(
    steps: Sequence[StreamStep], wanted: Schema | None, columns: frozenset[str] | None
) -> Iterator[Shared]:
    """The same, as the record batches that they share."""
    groups: dict[int, list[_Open]] = {}
    for place, step in enumerate(steps):
        if 0 < step.end - step.start <= FEW_ROWS and step.size <= FEW_BYTES:
            pieces = _opened(step, typed=step.versions is not None or wanted is not None)
            if pieces:
                groups.setdefault(id(step.versions), []).append(_Open(place, step, pieces))
    for group in groups.values():
        for some in _bounded(group):
            batch = _decoded(some, wanted, columns) if len(some) > 1 else None
            if batch is not None:
                yield Shared(batch, {one.place: one.step.end - one.step.start for one in some})


def _opened(step: StreamStep, *, typed: bool) -> list[_Piece]:
    """The entries of a stream; nothing if anything is out of the ordinary."""
    pieces: list[_Piece] = []
    position = step.start
    try:
        for id, flat in step.entries:
            offsets = parse_entry_id(id)
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if offsets.start != position or (typed and (b"s" not in fields or b"b" not in fields)):
                return []
            position = offsets.end
            last = pieces[-1] if pieces else None
            if b"b" not in fields:
                if not isinstance(last, _Singles):
                    last = _Singles(step.stream, [])
                    pieces.append(last)
                last.messages.append(single_of(offsets, fields))
            else:
                one = BatchEntry.of(id, offsets, fields)
                if not isinstance(last, _Batches) or last.form != one.form:
                    last = _Batches(step.stream, [])
                    pieces.append(last)
                last.neighbours.append(one)
    except DAMAGE:
        return []
    return pieces if position == step.end else []


def _bounded(group: Sequence[_Open]) -> list[list[_Open]]:
    """`group` in parts, each of which may share a record batch."""
    parts: list[list[_Open]] = []
    rows = size = 0
    for one in group:
        more = one.step.end - one.step.start
        if not parts or rows + more > MOST_ROWS or size + one.step.size > MOST_BYTES:
            parts.append([])
            rows = size = 0
        parts[-1].append(one)
        rows += more
        size += one.step.size
    return parts


def _decoded(
    some: Sequence[_Open], wanted: Schema | None, columns: frozenset[str] | None
) -> pa.RecordBatch | None:
    """The messages of some streams; nothing if one of them is damaged."""
    versions = some[0].step.versions
    target = wanted if wanted is not None or versions is None else versions.newest
    view = View(some[0].step.stream, versions, target, columns)
    try:
        return _joined(view, [piece for one in some for piece in one.pieces])
    except (SchemaMismatch, *DAMAGE):
        return None


def _joined(view: View, pieces: Sequence[_Piece]) -> pa.RecordBatch:
    """The messages of `pieces`, one behind the other.

    Raises:
        SchemaMismatch, and all of `DAMAGE`: they cannot be decoded together.
    """
    by_form: dict[Hashable, list[int]] = {}
    for number, piece in enumerate(pieces):
        by_form.setdefault(piece.form, []).append(number)
    batches = [_of_one_form(view, [pieces[number] for number in numbers]) for numbers in by_form.values()]
    if len(batches) == 1:
        return batches[0]
    begin, begins = 0, [0] * len(pieces)
    for number in chain.from_iterable(by_form.values()):
        begins[number] = begin
        begin += pieces[number].rows
    order = chain.from_iterable(
        range(first, first + piece.rows) for first, piece in zip(begins, pieces, strict=True)
    )
    return pa.concat_batches(batches).take(integers([*order], pa.int64()))


def _of_one_form(view: View, pieces: Sequence[_Piece]) -> pa.RecordBatch:
    runs = [EntryRun(piece.stream, piece.neighbours) for piece in pieces if isinstance(piece, _Batches)]
    if runs:
        return decode_runs(view, runs)
    singles = [piece for piece in pieces if isinstance(piece, _Singles)]
    return decode_singles(
        view.columns, [piece.stream for piece in singles], [piece.messages for piece in singles]
    )
