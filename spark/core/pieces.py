"""Which task reads which part of a cut, where Spark is asked for more tasks than slots: a pure function.

``minPartitions`` and ``maxRecordsPerPartition`` ask for that. What slots hold is divided by streams, and then
within streams; the order within a stream is kept in the order of the partitions, as in Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlease.borrower.reading import Piece, Pieces
from streamlease.protocol.cuts import CutRange, Ranges


def divided(
    slots: Mapping[int, Ranges], least: int | None = None, most_rows: int | None = None
) -> list[tuple[int, Pieces]]:
    """Slot and pieces of each partition; together they are all of them, each message once.

    Args:
        least: at least so many partitions, if there are as many messages.
        most_rows: at most so many messages in one.
    """
    rows = sum(ranges.messages for ranges in slots.values())
    wanted = len(slots)
    if most_rows is not None:
        wanted = max(wanted, -(-rows // most_rows))
    if least is not None:
        wanted = max(wanted, min(least, rows))
    if wanted == len(slots) and most_rows is None:
        return [(slot, Pieces(ranges, ranges)) for slot, ranges in slots.items()]
    counts = _counts({slot: ranges.messages for slot, ranges in slots.items()}, wanted, most_rows)
    return [(slot, some) for slot, ranges in slots.items() for some in _divided(ranges, counts[slot])]


def _counts(rows: Mapping[int, int], wanted: int, most_rows: int | None) -> dict[int, int]:
    """How many partitions each slot's part is divided into."""
    counts = {slot: 1 if most_rows is None else -(-count // most_rows) for slot, count in rows.items()}
    while sum(counts.values()) < wanted:
        slot = max(rows, key=lambda slot: (rows[slot] / counts[slot], -slot))
        counts[slot] += 1
    return counts


def _divided(ranges: Ranges, count: int) -> list[Pieces]:
    total, cut, found = ranges.messages, 0, []
    rest = [Piece(part, part) for part in ranges]
    for number in range(1, count + 1):
        room = total * number // count - cut
        cut += room
        taken: list[Piece] = []
        while room and rest:
            part, whole = rest.pop(0)
            size = min(room, part.end - part.start)
            if part.start + size < part.end:
                rest.insert(0, Piece(_between(part, part.start + size, part.end), whole))
                part = _between(part, part.start, part.start + size)
            taken.append(Piece(part, whole))
            room -= size
        if taken:
            found.append(Pieces.of(taken))
    return found


def _between(part: CutRange, start: int, end: int) -> CutRange:
    return part._replace(start=start, end=end)
