"""A task whose Redis goes away in the middle of its read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest

from streamlease.protocol.errors import StoreUnavailable
from streamlease.spark.reading import task
from tests.servers import RedisServer
from tests.spark.refusals import one_line
from tests.spark.test_query import held_all
from tests.spark.world import Query, World, wait_for


@pytest.fixture
def server(make_redis_server: Callable[..., RedisServer]) -> RedisServer:
    return make_redis_server(persistent=True, settings={"appendonly": "yes", "appendfsync": "always"})


@pytest.fixture
def own_world(server: RedisServer) -> Iterator[World]:
    """A world on a server of its own, which runs again at the end."""
    world = World(server.url)
    yield world
    if not server.is_running:
        server.start()
    world.close()


def begun(world: World, query: Query) -> tuple[set[str], Iterator[pa.RecordBatch]]:
    """The read of a micro-batch's only task, behind its first streams, and these; others are to come."""
    held_all(query, world)
    world.publish(5)
    wait_for(lambda: query.reader.reportLatestOffset()["lag"] == world.total)
    query.run_until("logged")
    (partition,) = query.reader.partitions(
        query.reader.initialOffset(), json.loads(query.checkpoint.offsets[0])
    )
    batches = query.reader.read(partition)
    first = next(batches)
    streams = set(first.column("stream").to_pylist())
    assert first.column("offset").to_pylist() == [*range(5)] * len(streams)
    assert 1 <= len(streams) <= 2
    return streams, batches


def sleeping(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """What a task does instead of a pause before it asks Redis again."""
    clock = SimpleNamespace(monotonic=time.monotonic, monotonic_ns=time.monotonic_ns, sleep=sleep)
    monkeypatch.setattr(task, "time", clock)


def test_it_waits_and_goes_on_where_it_was(
    server: RedisServer, own_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = own_world.query(slots=1, embeddedLeader=True)
    first, rest = begun(own_world, query)
    server.stop()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if not server.is_running:
            server.start()

    sleeping(monkeypatch, sleep)
    rows = [(row["stream"], row["offset"]) for batch in rest for row in batch.to_pylist()]
    assert waits
    assert sorted(rows) == [(s, o) for s in own_world.streams if s not in first for o in range(5)]
    query.run(lambda: len(query.checkpoint.rows) == own_world.total, 60.0)
    own_world.check(query.checkpoint)


@pytest.mark.slow
def test_it_waits_no_longer_than_it_may(
    server: RedisServer, own_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = own_world.query(slots=1, embeddedLeader=True, **{"redis.timeout": "1s"})
    _, rest = begun(own_world, query)
    server.stop()
    sleeping(monkeypatch, time.sleep)
    with pytest.raises(StoreUnavailable, match="does not answer") as refused:
        list(rest)
    one_line(refused.value)
