"""Record batches by stream. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import MessageTooLarge
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.expanding import MOST_BYTES

MAX_PIECE_ROWS = 65_536

LARGER = 4
"""A piece is cut in two if it is so many times as large as wanted."""


class Run(NamedTuple):
    """Neighbouring rows of a batch that belong to one stream: ``begin <= row < end``."""

    stream: StreamId
    begin: int
    end: int


def by_stream(
    batch: pa.RecordBatch, place: Callable[[str, bytes | None], StreamId], by_key: bool
) -> tuple[pa.RecordBatch, list[Run]]:
    """The rows of `batch` (normalized) with those of each stream side by side, their order kept.

    Args:
        place: gives the stream of a topic and a key; must know all topics of the batch.
        by_key: whether the key matters to `place`.
    """
    if not batch.num_rows:
        return batch, []
    topics = pc.dictionary_encode(batch.column("topic"))
    names: list[str] = topics.dictionary.to_pylist()
    numbers: dict[StreamId, int] = {}
    if by_key and "key" in batch.schema.names:
        rows = zip(topics.indices.to_pylist(), batch.column("key").to_pylist(), strict=True)
        shards = pa.array(
            [numbers.setdefault(place(names[topic], key), len(numbers)) for topic, key in rows], pa.int32()
        )
    else:
        of_name = [numbers.setdefault(place(name, None), len(numbers)) for name in names]
        shards = pc.take(pa.array(of_name, pa.int32()), topics.indices)
    streams = list(numbers)
    if len(streams) == 1:
        return batch, [Run(streams[0], 0, batch.num_rows)]
    order = pc.sort_indices(shards)
    lengths = pc.run_end_encode(pc.take(shards, order))
    runs = []
    begin = 0
    for number, end in zip(lengths.values.to_pylist(), lengths.run_ends.to_pylist(), strict=True):
        runs.append(Run(streams[number], begin, end))
        begin = end
    return batch.take(order), runs


def split(
    batch: pa.RecordBatch, place: Callable[[str, bytes | None], StreamId], by_key: bool, max_bytes: int
) -> list[tuple[StreamId, pa.RecordBatch]]:
    """The rows of `batch` by stream, as :func:`by_stream`, in pieces of about `max_bytes`.

    Raises:
        MessageTooLarge: a row is larger than what is read again.
    """
    rows, runs = by_stream(batch, place, by_key)
    return [
        (stream, piece)
        for stream, begin, end in runs
        for piece in pieces_of(rows.slice(begin, end - begin), max_bytes)
    ]


def pieces_of(batch: pa.RecordBatch, max_bytes: int) -> list[pa.RecordBatch]:
    """`batch`, which has rows, in pieces of about `max_bytes`.

    Raises:
        MessageTooLarge: a row is larger than what is read again.
    """
    rows = max(1, min(MAX_PIECE_ROWS, max_bytes * batch.num_rows // max(1, batch.nbytes)))
    pieces = (batch.slice(begin, rows) for begin in range(0, batch.num_rows, rows))
    return [part for piece in pieces for part in _halves(piece, LARGER * max_bytes)]


def _halves(piece: pa.RecordBatch, max_bytes: int) -> list[pa.RecordBatch]:
    """`piece`, halved as long as it is too large: a few of its rows may be far above the average."""
    rows = piece.num_rows
    if rows > 1 and piece.nbytes > max_bytes:
        return _halves(piece.slice(0, rows // 2), max_bytes) + _halves(piece.slice(rows // 2), max_bytes)
    if piece.nbytes > MOST_BYTES:
        raise MessageTooLarge(
            f"a message with its key and headers has {piece.nbytes} bytes, and at most {MOST_BYTES} are read "
            f"again: store it elsewhere and send where it is"
        )
    return [piece]
