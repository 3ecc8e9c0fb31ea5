"""Record batches by stream. Pure."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from streamlease.protocol.ids import StreamId

MAX_PIECE_ROWS = 65_536


def split(
    batch: pa.RecordBatch, place: Callable[[str, bytes | None], StreamId], by_key: bool, max_bytes: int
) -> list[tuple[StreamId, pa.RecordBatch]]:
    """The rows of `batch` (normalized) by stream, their order kept, in pieces of about `max_bytes`.

    Args:
        place: gives the stream of a topic and a key; must know all topics of the batch.
        by_key: whether the key matters to `place`.
    """
    if not batch.num_rows:
        return []
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
        return [(streams[0], piece) for piece in _pieces(batch, max_bytes)]
    order = pc.sort_indices(shards)
    runs = pc.run_end_encode(pc.take(shards, order))
    sorted_rows = batch.take(order)
    result = []
    begin = 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        whole = sorted_rows.slice(begin, end - begin)
        result += [(streams[number], piece) for piece in _pieces(whole, max_bytes)]
        begin = end
    return result


def _pieces(batch: pa.RecordBatch, max_bytes: int) -> list[pa.RecordBatch]:
    rows = max(1, min(MAX_PIECE_ROWS, max_bytes * batch.num_rows // max(1, batch.nbytes)))
    return [batch.slice(begin, rows) for begin in range(0, batch.num_rows, rows)]
