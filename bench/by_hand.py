"""A Python source of Redis streams as one would write it by hand: redis-py, one message per entry, tuples.

Apart from this module, it imports nothing but PySpark and redis-py: what its processes import is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import redis
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

PREFIX = "hand:"
SCHEMA = "topic string, payload binary, stream string, id string"


def fill(url: str, streams: int, messages: int, size: int) -> None:
    """Put `messages` into `streams` plain streams."""
    with redis.Redis.from_url(url) as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(messages):
            pipeline.xadd(f"{PREFIX}{number % streams}", {"t": f"bench/{number}", "p": bytes(size)})
        pipeline.execute()


class _Part(InputPartition):
    def __init__(self, stream: str, last: str) -> None:
        self.stream = stream
        self.last = last


class _Streams:
    def __init__(self, options: dict[str, str]) -> None:
        self.url, self.streams = options["redis"], int(options["streams"])

    def ends(self) -> dict[str, str]:
        with redis.Redis.from_url(self.url) as client:
            names = [f"{PREFIX}{number}" for number in range(self.streams)]
            return {name: client.xinfo_stream(name)["last-generated-id"].decode() for name in names}

    def parts(self, ends: dict[str, str]) -> Sequence[InputPartition]:
        return [_Part(stream, last) for stream, last in ends.items()]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, bytes, str, str]]:
        assert isinstance(partition, _Part)
        with redis.Redis.from_url(self.url) as client:
            for id, fields in client.xrange(partition.stream, "-", partition.last):
                yield fields[b"t"].decode(), fields[b"p"], partition.stream, id.decode()


class _StreamReader(_Streams, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, str]:
        return {}

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]
        return self.ends()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        return self.parts(end) if start != end else []

    def commit(self, end: dict[str, str]) -> None: ...


class _BatchReader(_Streams, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self.parts(self.ends())


class ByHand(DataSource):
    """``format("by_hand")``."""

    @classmethod
    def name(cls) -> str:
        return "by_hand"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return _StreamReader(dict(self.options))

    def reader(self, schema: object) -> DataSourceReader:
        return _BatchReader(dict(self.options))
