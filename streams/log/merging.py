"""Neighbouring entries into one: the same messages under the same offsets, with all that they say. Pure.

Which entries are merged: those that follow each other, have one schema or none, and are small, for a large
one is read at full speed already (``entries.columnar``). A large one is left as it is, and so is one that is
damaged: its readers are told so where it stands. Whoever replaces entries by a merged one throws the former
away, so the merged one is decoded here, and compared with them, before anybody gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange, entry_id, parse_entry_id
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.append_times import stored_times
from streamlease.streams.entries.columnar import ENOUGH_BYTES, ENOUGH_ROWS
from streamlease.streams.entries.decoding import DamagedEntry, Entry, decode_entries
from streamlease.streams.entries.encoding import encode_normalized
from streamlease.streams.entries.expanding import expanded_entry_bytes
from streamlease.streams.entries.layout import Codec, Fields
from streamlease.streams.entries.schemas import Versions

_TIME_DIGITS = 19


class NotMerged(Exception):
    """A merged entry would not say the same as those that it is made of."""


class LogRun(NamedTuple):
    """Entries that one may replace: they follow each other, and have one schema or none."""

    entries: Sequence[Entry]

    @property
    def offsets(self) -> OffsetRange:
        """Those of all messages."""
        return OffsetRange(parse_entry_id(self.entries[0][0]).start, parse_entry_id(self.entries[-1][0]).end)


class RunSoFar:
    """The first entries of a log as they come, until they are a run that is worth an entry of its own.

    Args:
        before: entries that were appended at this moment (microseconds) or later are left where they are.
    """

    def __init__(self, before: int) -> None:
        self._before = before
        self._entries: list[Entry] = []
        self._rows = self._size = 0
        self._kind = b""
        self._end = 0
        self.run: LogRun | None = None
        """The run, as soon as it is whole: no later entry belongs to it."""
        self.over = False
        """Whether no further entry is wanted."""
        self.unreadable = b""
        """The id of the entry behind them, if it does not say which messages the entry holds."""

    @property
    def wanted_end(self) -> int:
        """Where the log must end, about, before these entries are a run; 0 if there are none."""
        if not self._rows:
            return 0
        missing = (ENOUGH_BYTES - self._size) * self._rows // max(1, self._size)
        return self._end + max(0, min(ENOUGH_ROWS - self._rows, missing))

    def add(self, id: bytes, fields: Sequence[bytes]) -> None:
        """The next entry of the log."""
        offsets = _offsets_of(id)
        if offsets is None:
            self.unreadable = id  # so nothing behind it is merged either
            self._finish()
            return
        at, kind = appended_at(fields), _field(fields, b"s")
        if at is not None and at >= self._before:
            self.over = True  # those before it may get more neighbours
            return
        size = expanded_entry_bytes(fields)
        alone = at is None or len(offsets) >= ENOUGH_ROWS or size >= ENOUGH_BYTES
        if self._entries and (alone or offsets.start != self._end or kind != self._kind):
            self._finish()
            return
        self._entries.append((id, fields))
        self._rows, self._size = self._rows + len(offsets), self._size + size
        self._kind, self._end = kind, offsets.end
        if alone or self._rows >= ENOUGH_ROWS or self._size >= ENOUGH_BYTES:
            self._finish()

    def _finish(self) -> None:
        self.over = True
        if self._entries:
            self.run = LogRun(self._entries)


def _offsets_of(id: bytes) -> OffsetRange | None:
    try:
        offsets = parse_entry_id(id)
    except ValueError:
        return None
    return offsets if 0 <= offsets.start < offsets.end else None


def appended_at(fields: Sequence[bytes]) -> int | None:
    """The append time of an entry; None if it has none that can be read."""
    text = _field(fields, b"a")
    return int(text) if text.isdigit() and len(text) <= _TIME_DIGITS else None


def _field(fields: Sequence[bytes], name: bytes) -> bytes:
    return dict(zip(fields[::2], fields[1::2], strict=False)).get(name, b"")


def merged(
    stream: StreamId, run: LogRun, versions: Versions | None, codec: Codec = "zstd"
) -> tuple[LogRun, Fields]:
    """The entry for a run, or for its beginning if an entry in it is damaged, and what it replaces.

    A run of one entry is replaced by itself.

    Args:
        versions: all versions of the schema that the stream's space has; None if it has none.

    Raises:
        NotMerged: it would not say the same.
    """
    while len(run.entries) > 1:
        try:
            return run, _joined(stream, run, versions, codec)
        except DamagedEntry as damaged:
            before = [one for one in run.entries if parse_entry_id(one[0]).end <= damaged.start]
            run = LogRun(before or run.entries[:1])
        except SchemaMismatch:
            run = LogRun(run.entries[:1])  # of a schema that nobody knows any more; it stays as it is
    ((_, fields),) = run.entries
    return run, [*fields]


def _joined(stream: StreamId, run: LogRun, versions: Versions | None, codec: Codec) -> Fields:
    fingerprint = _field(run.entries[0][1], b"s")
    version = versions.find(fingerprint) if versions is not None else None
    whole = _decoded(stream, run.entries, versions, fingerprint)
    appended = whole.column("append_timestamp").cast(pa.int64())
    moments = whole.column("timestamp").cast(pa.int64())
    columns = dict(zip(whole.schema.names, whole.columns, strict=True))
    given = {name: columns[name] for name in ("topic", "payload", "key", "headers")}
    if version is not None:
        del given["payload"]
        given.update((one.name, columns[one.name]) for one in version.columns)
    # A message without a time of its own has that of its append.
    same = pc.equal(moments, appended)
    given["timestamp"] = pc.if_else(same, pa.nulls(len(moments), pa.int64()), moments)
    encoded = encode_normalized(pa.RecordBatch.from_pydict(given), codec, version)
    offsets = run.offsets
    last, each = stored_times(appended)
    fields = [*last, *encoded.fields, *each]
    id = entry_id(offsets.start, len(offsets)).encode()
    again = _decoded(stream, [(id, fields)], versions, fingerprint)
    if not _same(whole, again):
        raise NotMerged(
            f"offsets {offsets.start} to {offsets.end - 1} of stream {stream} are not the same in one entry"
        )
    return fields


def _decoded(
    stream: StreamId, entries: Sequence[Entry], versions: Versions | None, fingerprint: bytes
) -> pa.RecordBatch:
    wanted = versions.find(fingerprint) if versions is not None else None
    return pa.concat_batches(decode_entries(stream, entries, versions=versions, wanted=wanted))


def _same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether two batches have the same values; a number that is none is the same as itself."""
    return one.schema == other.schema and all(
        mine.equals(theirs) or repr(mine.to_pylist()) == repr(theirs.to_pylist())
        for mine, theirs in zip(one.columns, other.columns, strict=True)
    )
