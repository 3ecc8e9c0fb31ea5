"""Sums by column find what is missing, doubled or altered; and do not care for the order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from bench.scale_sums import COLUMNS, IN_SPARK, ROWS, Source, Sums

MOMENT = pa.timestamp("us", "UTC")


def as_read(topic: str, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """What was published, as it stands in one stream from an offset on."""
    rows = batch.num_rows
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.repeat(topic, rows).dictionary_encode(),
            "key": pa.nulls(rows, pa.binary()),
            "payload": batch.column("payload"),
            "headers": pa.nulls(rows, pa.string()),
            "offset": pa.array(range(first, first + rows), pa.int64()),
            "timestamp": batch.column("timestamp").cast(MOMENT),
            "epoch": pa.nulls(rows, pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def published() -> tuple[dict[str, int], list[pa.RecordBatch]]:
    source = Source()
    found = [as_read(*source.batch(first), first) for first in range(0, 3 * ROWS, ROWS)]
    source.sums.offsets({"bench.0.0": 3 * ROWS})
    return dict(source.sums.of), found


def summed(batches: list[pa.RecordBatch]) -> dict[str, int]:
    sums = Sums()
    for batch in batches:
        sums.add(batch)
    return {name: sums.of[name] for name in COLUMNS if sums.of[name]}


def test_what_was_published_is_what_is_read_in_any_order_and_in_any_pieces(
    published: tuple[dict[str, int], list[pa.RecordBatch]],
) -> None:
    expected, batches = published
    assert len(IN_SPARK) == len(COLUMNS)
    pieces = [one.slice(begin, 777) for one in reversed(batches) for begin in range(0, ROWS, 777)]
    assert summed(pieces) == expected
    assert expected["count"] == 3 * ROWS


def test_one_missing_doubled_swapped_or_altered_is_found(
    published: tuple[dict[str, int], list[pa.RecordBatch]],
) -> None:
    expected, (first, *others) = published
    less = [first.slice(1), *others]
    swapped = [first.slice(1), first.slice(1, 1), *others]
    # 1 + 4 = 2 + 3: the plain sum of numbers is the same.
    balanced = [pa.concat_batches([first.slice(place, 1) for place in (0, 1, 1, 4, 4)]), first.slice(5)]
    other = pa.array([b"another payload", *first["payload"][1:].to_pylist()], pa.binary())
    altered = first.set_column(2, "payload", other)
    for wrong in (less, [*less, first.slice(0, 2)], swapped, [*balanced, *others], [altered, *others]):
        assert summed(wrong) != expected
    assert {name for name, value in summed([altered, *others]).items() if value != expected[name]} == {
        "payload"
    }
