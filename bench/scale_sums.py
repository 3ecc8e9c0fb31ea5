"""Sums over columns that show whether messages are there once, each: the same of any order, added up.

A message has its number as its event time, a payload out of a few large blocks of noise, and a topic. What
was published is summed up by who publishes, and again by each who reads. Of offsets and numbers the sum of
the squares' rests is taken too: one twice for another one missing would change it.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BASE = 1_700_000_000_000_000
"""The event time of message 0, in microseconds; each is a microsecond later than the one before."""

REST = 1_000_003
BYTES = 100
ROWS = 10_000
BLOCKS = 32
"""So many different batches of payloads there are."""

TOPICS = tuple(f"bench/{number}" for number in range(7))

COLUMNS = (
    "count",
    "topic",
    "payload",
    "number",
    "squares of numbers",
    "offset",
    "squares of offsets",
    "others",
)


@dataclass
class Sums:
    """Of messages, by column; `others` counts what is there and should be null."""

    of: Counter[str] = field(default_factory=Counter)

    def numbers(self, name: str, squares: str, values: np.ndarray) -> None:
        """Add whole numbers."""
        self.of[name] += int(values.sum())
        self.of[squares] += int((values * values % REST).sum())

    def offsets(self, ends: dict[str, int]) -> None:
        """Add all offsets of streams."""
        for end in ends.values():
            for begin in range(0, end, 1_000_000):
                self.numbers("offset", "squares of offsets", np.arange(begin, min(end, begin + 1_000_000)))

    def add(self, batch: pa.RecordBatch) -> None:
        """Add all columns of messages that were read."""
        self.of["count"] += batch.num_rows
        for one in pc.value_counts(batch.column("topic")).to_pylist():
            self.of["topic"] += one["counts"] * crc32(one["values"].encode())
        payloads = batch.column("payload")
        ends = np.frombuffer(payloads.buffers()[1], np.int32)[payloads.offset :][: len(payloads) + 1].tolist()
        data = memoryview(payloads.buffers()[2])
        self.of["payload"] += sum(crc32(data[ends[row] : ends[row + 1]]) for row in range(len(payloads)))
        moments = batch.column("timestamp").cast(pa.int64()).to_numpy()
        self.numbers("number", "squares of numbers", moments - BASE)
        self.numbers("offset", "squares of offsets", batch.column("offset").to_numpy())
        for name in ("key", "headers", "epoch"):
            self.of["others"] += batch.num_rows - batch.column(name).null_count


class Source:
    """What is published: batch after batch."""

    def __init__(self) -> None:
        ends = pa.array(range(0, BYTES * (ROWS + 1), BYTES), pa.int32()).buffers()[1]
        noise = [os.urandom(BYTES * ROWS) for _ in range(BLOCKS)]
        self._blocks = [
            pa.Array.from_buffers(pa.binary(), ROWS, [None, ends, pa.py_buffer(one)]) for one in noise
        ]
        self._sums = [sum(crc32(one[at : at + BYTES]) for at in range(0, len(one), BYTES)) for one in noise]
        self.sums = Sums()

    def batch(self, first: int) -> tuple[str, pa.RecordBatch]:
        """The messages from `first` on, and their topic; they are added to the sums."""
        number = first // ROWS
        topic = TOPICS[number % len(TOPICS)]
        numbers = np.arange(first, first + ROWS)
        self.sums.of["count"] += ROWS
        self.sums.of["topic"] += ROWS * crc32(topic.encode())
        self.sums.of["payload"] += self._sums[number % BLOCKS]
        self.sums.numbers("number", "squares of numbers", numbers)
        moments = pa.array(numbers + BASE, pa.int64())
        columns = [self._blocks[number % BLOCKS], moments]
        return topic, pa.RecordBatch.from_arrays(columns, names=["payload", "timestamp"])


IN_SPARK = (
    "count(*)",
    "sum(crc32(cast(topic as binary)))",
    "sum(crc32(payload))",
    f"sum(unix_micros(timestamp) - {BASE})",
    f"sum((unix_micros(timestamp) - {BASE}) * (unix_micros(timestamp) - {BASE}) % {REST})",
    "sum(offset)",
    f"sum(offset * offset % {REST})",
    "count(key) + count(headers) + count(epoch)",
)
"""The same of a frame, in the order of `COLUMNS`."""
