"""How the messages of a batch are divided over tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange

USUAL_PARTITIONS = 8
LEAST_ROWS = 50_000
LEAST_BYTES = 128 * 1024 * 1024
"""Fewer messages, or bytes as stored, are not worth a task of their own, unless ``minPartitions`` says so.
So many bytes Spark gives a task of its own readers (``spark.sql.files.maxPartitionBytes``). It spends
0.16 s of processor time on a Python task that reads nothing, the time of 300,000 small messages."""

SMALL_ROWS = 1_000_000
"""But so many messages are, however small they are."""

MOST_ROWS = 5_000_000


def worth_a_task(mean_bytes: float) -> int:
    """How many messages of that stored size (0: not known) are worth a task of their own. Pure."""
    if not mean_bytes:
        return LEAST_ROWS
    return max(LEAST_ROWS, min(SMALL_ROWS, int(LEAST_BYTES / mean_bytes)))


def divide(
    ranges: Mapping[StreamId, OffsetRange],
    least: int | None = None,
    most_rows: int | None = None,
    worth: int = LEAST_ROWS,
) -> list[list[tuple[str, int, int]]]:
    """Ranges by partition, in the order of streams and offsets; each message once. A pure function.

    Args:
        least: about so many partitions, or more; None for 8, or fewer if there is little to read.
        most_rows: at most so many messages in one; None for 5 million.
        worth: fewer messages get no partition of their own, where `least` is None.
    """
    total = sum(map(len, ranges.values()))
    size = max(-(-total // (least or USUAL_PARTITIONS)), 1 if least else worth)
    size = min(size, most_rows or MOST_ROWS)
    parts: list[list[tuple[str, int, int]]] = []
    room = 0
    for stream, (start, end) in ranges.items():
        while start < end:
            if not room:
                parts.append([])
                room = size
            taken = min(room, end - start)
            parts[-1].append((str(stream), start, start + taken))
            start += taken  # noqa: PLW2901
            room -= taken
    return parts
