"""Which task reads which part of a cut: a pure function.

A slot's part is one task's work, unless ``minPartitions`` or ``maxRecordsPerPartition`` ask for more tasks.
Then parts are divided, by streams first and then within streams; the order within a stream is kept in the
order of the partitions, as in Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlease.borrower.reading import Span
from streamlease.spark.core.checkpoint import SlotRange, SlotRanges


def by_slot(ranges: Iterable[SlotRange]) -> dict[int, list[Span]]:
    """What each slot reads, in the order of the slots."""
    found: dict[int, list[Span]] = {}
    for stream, start, end, lease_epoch, slot in zip(*SlotRanges.of(ranges).columns, strict=True):
        found.setdefault(slot, []).append(Span(stream, start, end, lease_epoch))
    return dict(sorted(found.items()))


def pieces(
    slots: Mapping[int, list[Span]], least: int | None = None, most_rows: int | None = None
) -> list[tuple[int, tuple[Span, ...]]]:
    """Slot and spans of each partition; together they are all spans, each message once.

    Args:
        least: at least so many partitions, if there are as many messages.
        most_rows: at most so many messages in one.
    """
    rows = sum(_rows(spans) for spans in slots.values())
    wanted = len(slots)
    if most_rows is not None:
        wanted = max(wanted, -(-rows // most_rows))
    if least is not None:
        wanted = max(wanted, min(least, rows))
    if wanted == len(slots) and most_rows is None:
        return [(slot, tuple(spans)) for slot, spans in slots.items()]
    counts = _counts({slot: _rows(spans) for slot, spans in slots.items()}, wanted, most_rows)
    return [(slot, piece) for slot, spans in slots.items() for piece in _divided(spans, counts[slot])]


def _rows(spans: Iterable[Span]) -> int:
    return sum(span.end - span.start for span in spans)


def _counts(rows: Mapping[int, int], wanted: int, most_rows: int | None) -> dict[int, int]:
    """How many partitions each slot's part is divided into."""
    counts = {slot: 1 if most_rows is None else -(-count // most_rows) for slot, count in rows.items()}
    while sum(counts.values()) < wanted:
        slot = max(rows, key=lambda slot: (rows[slot] / counts[slot], -slot))
        counts[slot] += 1
    return counts


def _divided(spans: list[Span], count: int) -> list[tuple[Span, ...]]:
    total, cut, found = _rows(spans), 0, []
    rest = list(spans)
    for number in range(1, count + 1):
        room = total * number // count - cut
        cut += room
        piece: list[Span] = []
        while room and rest:
            span = rest.pop(0)
            taken = min(room, span.end - span.start)
            if span.start + taken < span.end:
                whole = span.cut or (span.start, span.end)
                rest.insert(0, span._replace(start=span.start + taken, cut=whole))
                span = span._replace(end=span.start + taken, cut=whole)
            piece.append(span)
            room -= taken
        if piece:
            found.append(tuple(piece))
    return found
