"""What Streamlease is compared with in Spark: Python sources such as one would write by hand.

`entries` reads one message per entry by XRANGE and yields tuples, with the same columns. `memory` yields
record batches that are in the worker's memory already: the ceiling of Spark's Python path. `little` offers a
few rows of memory in every micro-batch: the floor of a micro-batch's latency.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import redis
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bench.messages import PAYLOAD_BYTES, STREAMS, stream_of
from streamlease.spark.options import SourceOptions
from streamlease.spark.schema import message_fields, select, stream_columns

CHUNK = 10_000


def _options(options: dict[str, str]) -> SourceOptions:
    given = {"redis": "redis://127.0.0.1:1", "subscribe": "$shared/bench/#"}
    return SourceOptions.parse(
        given | {k: v for k, v in options.items() if k in ("columns", "includeheaders")}
    )


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offers `rows` rows once."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = dict(options)
        self.rows = int(options["rows"])

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"at": self.rows}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None: ...

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def commit(self, end: dict[str, Any]) -> None: ...


_made: dict[tuple[str, int], pa.RecordBatch] = {}


def _batch(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """The batch that the source of Streamlease hands on, from memory."""
    key = (str(schema), rows)
    if key not in _made:
        moment = pa.scalar(1_700_000_000_000_000, pa.int64())
        columns = {
            "topic": pa.repeat("bench/x", rows),
            "key": pa.array([b"key-%d" % (row % 1000) for row in range(rows)], pa.binary()),
            "payload": pa.array([os.urandom(PAYLOAD_BYTES) for _ in range(rows)], pa.binary()),
            "stream": pa.repeat("bench.0.0", rows),
            "offset": pa.arange(0, rows),
            "timestamp": pa.repeat(moment, rows),
            "append_timestamp": pa.repeat(moment, rows),
        }
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
            for field in schema
        ]
        _made[key] = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return _made[key]


class _MemoryReader(_Reader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = stream_columns(_options(self.options)).arrow
        size = int(self.options["batch"])
        first, last = partition.value
        for at in range(first, last, size):
            yield _batch(schema, min(size, last - at))


class Memory(DataSource):
    """``format("memory_source")``."""

    reader: type[_Reader] = _MemoryReader

    @classmethod
    def name(cls) -> str:
        return "memory_source"

    def schema(self) -> StructType:
        options = _options(dict(self.options))
        return select(message_fields(headers=options.include_headers), options.columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self.reader(dict(self.options))


class _LittleReader(_MemoryReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"at": start["at"] + self.rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = int(self.options["tasks"])
        size = (end["at"] - start["at"]) // tasks
        return [InputPartition((n * size, (n + 1) * size)) for n in range(tasks)]


class Little(Memory):
    """``format("little_source")``."""

    reader = _LittleReader

    @classmethod
    def name(cls) -> str:
        return "little_source"


class _EntriesReader(_Reader):
    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        client = redis.Redis.from_url(self.options["redis"])
        narrow = self.options.get("columns") == "payload"
        some = "columns" in self.options
        for key in (stream_of(number) for number in range(STREAMS)):
            last, number = "-", 0
            while entries := client.xrange(key, last, "+", count=CHUNK):
                for id, fields in entries:
                    if narrow:
                        yield (fields[b"p"],)
                        continue
                    moment = datetime.fromtimestamp(int(fields[b"ts"]) / 1_000_000, UTC)
                    if some:
                        yield (fields[b"p"], number, moment)
                    else:
                        appended = datetime.fromtimestamp(int(id.partition(b"-")[0]) / 1000, UTC)
                        topic = fields[b"t"].decode()
                        yield (topic, fields[b"k"], fields[b"p"], None, key, number, moment, appended, None)
                    number += 1
                last = f"({entries[-1][0].decode()}"


class Entries(DataSource):
    """``format("entries_source")``."""

    @classmethod
    def name(cls) -> str:
        return "entries_source"

    def schema(self) -> StructType:
        """The columns of the others: all of them, the payload, or payload, offset and timestamp."""
        return select(message_fields(), [*filter(None, self.options.get("columns", "").split(","))])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _EntriesReader(dict(self.options))
