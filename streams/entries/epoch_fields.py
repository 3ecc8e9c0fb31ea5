"""Entries of epochs: the fields that say which, and the column that readers get. Pure.

In a space with epochs an entry has one or two fields more, at its end. ``x`` is the epoch of all its
messages, integers joined by commas. ``w``, in a staged log only, is who staged it: name and incarnation of
the publisher; decoding passes it over.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.epochs.order import HIGHEST_EPOCH, MOST_DIMENSIONS, Epoch
from streamlease.streams.entries.arrays import bits
from streamlease.streams.entries.layout import Encoded
from streamlease.streams.entries.message_rows import EPOCH

EPOCH_FIELD = b"x"
WRITER_FIELD = b"w"


def epoch_text(epoch: Epoch) -> str:
    """An epoch as it stands in Redis: ``4``, or ``4,5``."""
    return ",".join(map(str, epoch))


def with_epoch(entry: Encoded, epoch: Epoch, writer: str = "") -> Encoded:
    """`entry` as one of `epoch`, staged by `writer`.

    The fields come last: the first one of an entry tells whether it has a schema.
    """
    fields = [*entry.fields, EPOCH_FIELD, epoch_text(epoch).encode()]
    if writer:
        fields += [WRITER_FIELD, writer.encode()]
    return Encoded(entry.rows, fields)


class Stamp(NamedTuple):
    """The epoch of messages on their way in, and who stages them."""

    epoch: Epoch
    writer: str

    def on(self, entry: Encoded) -> Encoded:
        """`entry` with both."""
        return with_epoch(entry, self.epoch, self.writer)


def same_epoch(entry: Encoded, before: Encoded) -> Encoded:
    """`entry`, which was made anew of `before`, with that one's epoch and writer."""
    names = before.fields[::2]
    if EPOCH_FIELD not in names:
        return entry
    kept = before.fields[2 * names.index(EPOCH_FIELD) :]
    return Encoded(entry.rows, [*entry.fields, *kept])


def epoch_of(fields: Mapping[bytes, bytes]) -> Epoch | None:
    """The epoch of an entry with these fields; None if it has none.

    Raises:
        ValueError: it is damaged.
    """
    text = fields.get(EPOCH_FIELD)
    return None if text is None else _parsed(text)


@lru_cache(maxsize=1024)
def _parsed(text: bytes) -> Epoch:
    parts = text.split(b",")
    if len(parts) <= MOST_DIMENSIONS and all(part.isdigit() and len(part) < 20 for part in parts):
        epoch = tuple(map(int, parts))
        if max(epoch) <= HIGHEST_EPOCH:
            return epoch
    raise ValueError(f"its epoch is {text[:80]!r}")


def epoch_column(epochs: Sequence[Epoch | None], lengths: Iterable[int]) -> pa.Array:
    """The column ``epoch``, with each of `epochs` as often as `lengths` says."""
    counts = [*lengths]
    rows = sum(counts)
    missing = sum(count for one, count in zip(epochs, counts, strict=True) if one is None)
    if missing == rows:
        return pa.nulls(rows, EPOCH)
    numbers, ends, valid, end = array("q"), array("i", (0,)), bytearray(), 0
    for one, count in zip(epochs, counts, strict=True):
        if one is None:
            ends.extend([end] * count)
        else:
            numbers.extend(array("q", one) * count)
            ends.extend(range(end + len(one), end + len(one) * count + 1, len(one)))
            end += len(one) * count
        valid += bytes((one is not None,)) * count
    there = bits(map(bool, valid)) if missing else None
    values = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)], 0)
    return pa.Array.from_buffers(EPOCH, rows, [there, pa.py_buffer(ends)], missing, children=[values])
