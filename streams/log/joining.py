"""Batches as they are handed out: small neighbours joined, large ones cut. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

BATCH_ROWS = 65_536
"""Most rows of one batch that a reader hands out."""

BATCH_BYTES = 32 * 1024 * 1024
"""Most bytes of one batch of several rows. Arrow cannot join columns of texts above 2 GiB."""


def gather(
    batches: list[pa.RecordBatch],
    *,
    last: bool,
    enough: int = BATCH_ROWS,
    enough_bytes: int = BATCH_BYTES,
    all_bytes: int | None = None,
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Join small neighbours into batches of at most ``BATCH_ROWS`` rows and ``BATCH_BYTES``; cut large ones.

    Args:
        enough, enough_bytes: so many rows, or bytes, are a batch of their own, and are not copied.
        all_bytes: the bytes of all together, if they are known.

    Returns:
        what is ready to be handed out, and what waits for more; nothing waits if `last`.
    """
    fits = all_bytes is not None and all_bytes <= BATCH_BYTES
    if last and fits and len(batches) == 1 and 0 < batches[0].num_rows <= BATCH_ROWS:
        return batches, []  # the rest would come to this, but look at every buffer
    ready: list[pa.RecordBatch] = []
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        for batch, bytes in _pieces(whole):
            fits = rows + batch.num_rows <= BATCH_ROWS and size + bytes <= BATCH_BYTES
            alone = rows >= enough or batch.num_rows >= enough or max(size, bytes) >= enough_bytes
            if group and (alone or not fits or batch.schema != group[0].schema):
                ready.append(_joined(group))
                group, rows, size = [], 0, 0
            group.append(batch)
            rows += batch.num_rows
            size += bytes
    if group and (last or rows >= enough or size >= enough_bytes):
        ready.append(_joined(group))
        group = []
    return ready, group


def in_pieces(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` in batches of at most `most` rows, those of one batch about equally large."""
    for whole in batches:
        rows = whole.num_rows
        pieces = -(-rows // most)
        for piece in range(pieces):
            begin, end = piece * rows // pieces, (piece + 1) * rows // pieces
            yield whole if pieces == 1 else whole.slice(begin, end - begin)


def _pieces(whole: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """`whole` in pieces that may be handed out, each of one row at least, with their sizes."""
    rows, size = whole.num_rows, _size(whole)
    if rows <= 1 or (rows <= BATCH_ROWS and size <= BATCH_BYTES):
        if rows:
            yield whole, size
        return
    step = max(1, min(BATCH_ROWS, rows * BATCH_BYTES // max(1, size), rows - 1))
    for begin in range(0, rows, step):
        yield from _pieces(whole.slice(begin, step))


def _size(batch: pa.RecordBatch) -> int:
    """Bytes of `batch` with its dictionaries expanded, as Spark has it."""
    size: int = batch.nbytes
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            names = column.dictionary
            size += batch.num_rows * names.nbytes // max(1, len(names))
    return size


def _joined(group: list[pa.RecordBatch]) -> pa.RecordBatch:
    return group[0] if len(group) == 1 else pa.concat_batches(group)
