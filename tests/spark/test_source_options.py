"""What each option of the stream source does to a query, against a real Redis and a real leader."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamlease.agent import blocking
from streamlease.agent.client import Client
from streamlease.protocol.errors import HistoryTruncated, InvalidOption, StoreUnavailable, UnknownGroup
from streamlease.protocol.ids import StreamId
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.starting import declare
from streamlease.spark.schema import readable, stream_columns
from streamlease.spark.source import StreamReader
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import AsyncLog
from tests.servers import RedisServer
from tests.spark.refusals import one_line
from tests.spark.test_query import held_all
from tests.spark.world import Checkpoint, Query, World, wait_for


def positions(query: Query) -> list[tuple[str, int]]:
    return sorted(row[:2] for row in query.checkpoint.rows)


def truncate(world: World, stream: str, floor: int) -> None:
    """Take away what lies below `floor`, as retention does that is forced."""
    with redis.Redis.from_url(world.url) as client:
        client.xtrim(stream_log(StreamId.parse(stream)), minid=f"{floor}-0", approximate=False)
        client.hset(stream_meta(StreamId.parse(stream)), "floor", floor)


# ---------------------------------------------------------------- where a group begins


@pytest.mark.slow
def test_a_group_begins_at_the_offsets_given_and_keeps_its_progress_without_the_checkpoint(
    world: World,
) -> None:
    world.publish(9)
    given = '{"s.0.0": 7, "s.0.1": -1, "s.0.2": -2}'
    first = world.query(startingOffsets=given, sessionTimeoutMs=2000, embeddedLeader=True)
    expected = [("s.0.0", 7), ("s.0.0", 8)]
    expected += [(stream, offset) for stream in ("s.0.2", "s.0.3") for offset in range(9)]
    first.run(lambda: len(first.checkpoint.rows) >= len(expected))
    assert positions(first) == expected
    wait_for(lambda: not first.trigger() and set(world.committed.values()) == {9})
    first.kill()
    world.publish(2)
    # Another checkpoint, other slots, and starting offsets that count no more.
    second = world.query(Checkpoint(), startingOffsets="earliest", slots=3, embeddedLeader=True)
    second.run(lambda: len(second.checkpoint.rows) >= 8, 30.0)
    assert positions(second) == [(stream, offset) for stream in world.streams for offset in (9, 10)]


def test_a_group_begins_at_the_end_unless_it_is_told_otherwise(world: World) -> None:
    world.publish(3)
    query = world.query(startingOffsets="latest", embeddedLeader=True)
    held_all(query, world)
    world.publish(2)
    query.run(lambda: len(query.checkpoint.rows) >= 8)
    assert positions(query) == [(stream, offset) for stream in world.streams for offset in (3, 4)]


def test_a_group_begins_at_a_moment(world: World) -> None:
    world.publish(3)
    with redis.Redis.from_url(world.url) as client:
        seconds, microseconds = client.time()
        moment = seconds * 1000 + microseconds // 1000 + 2
        wait_for(lambda: client.time()[0] * 1_000_000 + client.time()[1] > (moment + 2) * 1000)
    world.publish(2)
    query = world.query(startingTimestamp=moment, embeddedLeader=True)
    query.run(lambda: len(query.checkpoint.rows) >= 8)
    assert positions(query) == [(stream, offset) for stream in world.streams for offset in (3, 4)]


@pytest.mark.parametrize(
    ("given", "named"),
    [('{"s.0.9": 1}', "'s.0.9'.*nearest is 's.0."), ('{"s.0.1": 4}', "offset 4 for stream s.0.1.*at most 3")],
)
def test_offsets_that_there_are_not_are_refused(world: World, given: str, named: str) -> None:
    world.publish(3)
    query = world.query(startingOffsets=given)
    with pytest.raises(InvalidOption, match=named) as refused:
        query.trigger()
    one_line(refused.value)


async def test_a_queue_is_declared_explicitly_and_begins_where_that_says(embedded_redis_url: str) -> None:
    named = {"redis": embedded_redis_url, "subscribe": "$queue/g/q/#", "startingOffsets": "earliest"}
    options = SourceOptions.parse(named)
    async with Client(embedded_redis_url, embedded=False) as client:
        await client.create_space("q", ["q/#"], streams=1)
        async with client.publisher() as publisher:
            await publisher.send("q/a", b"before")
        with pytest.raises(UnknownGroup, match="does not exist: declare it first") as refused:
            await declare(client.groups, AsyncLog(client.redis), options)
        one_line(refused.value)
        await client.groups.declare(options.subscription, "latest")
        await declare(client.groups, AsyncLog(client.redis), options)
        assert (await client.groups.get(options.subscription)).positions == {"q.0.0": 1}


# ---------------------------------------------------------------- limits


def test_a_limit_of_bytes_is_kept_roughly_and_starves_no_stream(world: World) -> None:
    world.publish({"s.0.0": 600, "s.0.1": 3, "s.0.2": 3, "s.0.3": 3})
    world.lead()
    query = world.query(maxBytesPerTrigger="2kB")
    held_all(query, world)
    query.run(lambda: len(query.checkpoint.rows) == world.total, 40.0)
    batches = [rows for _, rows in sorted(query.checkpoint.sink.items())]
    sizes = [len(rows) for rows in batches]
    assert len(sizes) >= 4
    assert {row.stream for row in batches[0]} == set(world.streams)
    world.check(query.checkpoint)


def test_a_small_batch_waits_for_more_but_not_if_no_more_can_come(world: World) -> None:
    world.lead()
    query = world.query(minOffsetsPerTrigger=10, maxTriggerDelay="10m")
    held_all(query, world)
    world.publish({"s.0.0": 3})
    query.run(lambda: len(query.checkpoint.rows) == 3)  # no batch was before it: it need not wait
    world.publish({"s.0.1": 3})
    wait_for(lambda: query.reader.reportLatestOffset()["lag"] == 6)  # the first three are not proved done yet
    assert not any(query.trigger() for _ in range(5))
    world.publish({"s.0.2": 7})
    query.run(lambda: len(query.checkpoint.rows) == 13)
    assert [len(rows) for _, rows in sorted(query.checkpoint.sink.items())] == [3, 10]
    query.stop()
    world.publish({"s.0.0": 1})
    once = world.query(query.checkpoint, once=True, minOffsetsPerTrigger=10)
    once.run_to_the_end()
    world.check(once.checkpoint)


def test_a_small_batch_waits_no_longer_than_the_delay(world: World) -> None:
    world.lead()
    query = world.query(minOffsetsPerTrigger=10, maxTriggerDelay="1s")
    held_all(query, world)
    for _ in range(2):
        world.publish({"s.0.0": 3})
        query.run(lambda: len(query.checkpoint.rows) == world.total)
    assert [len(rows) for _, rows in sorted(query.checkpoint.sink.items())] == [3, 3]


@pytest.mark.parametrize("options", [{"minPartitions": 6}, {"maxRecordsPerPartition": 4}], ids=str)
def test_more_tasks_read_the_same_rows(world: World, options: dict[str, int]) -> None:
    world.publish(6)
    world.lead()
    query = world.query(**options)
    held_all(query, world)
    query.run_until("logged")
    start = query.reader.initialOffset()
    assert len(query.reader.partitions(start, json.loads(query.checkpoint.offsets[-1]))) >= 6
    query.run(lambda: len(query.checkpoint.rows) == world.total)
    world.check(query.checkpoint)
    assert {row.cut for row in query.checkpoint.rows} == {f"{stream}@0-6" for stream in world.streams}


@pytest.mark.parametrize("slots", [1, 4])
def test_the_only_batch_of_a_query_has_all_that_is_there(world: World, slots: int) -> None:
    """The trigger ``once`` asks for one offset, before any stream is granted, and says to ignore limits."""
    world.publish(6)
    query = world.query(maxOffsetsPerTrigger=5, slots=slots, embeddedLeader=True)
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ReadAllAvailable())
    assert sorted(row[:2] for row in query.read(start, end)) == [
        (s, o) for s in world.streams for o in range(6)
    ]


def test_the_only_batch_of_a_query_is_empty_where_nothing_is(world: World) -> None:
    query = world.query(embeddedLeader=True)
    start = query.reader.initialOffset()
    assert query.reader.latestOffset(start, ReadAllAvailable()) == start


# ---------------------------------------------------------------- a schema that changes


def test_a_running_query_goes_on_with_its_columns_until_it_starts_again(world: World) -> None:
    typed = {"columns": [{"name": "n", "type": "int64"}]}
    with blocking.connect(world.url) as client:
        client.create_space("u", ["u/#"], streams=1, schema=typed)

    def publish(**columns: int) -> None:
        with blocking.connect(world.url) as client, client.publisher() as publisher:
            publisher.send_batch("u/a", pa.record_batch({name: [n] for name, n in columns.items()}))

    given = {"redis": world.url, "subscribe": "$shared/g/u/#", "startingOffsets": "earliest"}
    publish(n=1)
    query = typed_query(world, given)
    assert read_next(query) == [{"n": 1}]
    typed["columns"].append({"name": "more", "type": "int64"})
    world._thread.call(world._client.alter_space("u", schema=typed))
    publish(n=2, more=3)
    assert read_next(query) == [{"n": 2}]
    query.stop()
    publish(n=4, more=5)
    assert read_next(typed_query(world, given, query.checkpoint)) == [{"n": 4, "more": 5}]


def typed_query(world: World, given: dict[str, str], checkpoint: Checkpoint | None = None) -> Query:
    """A query with the typed columns of its space."""
    query = world.query(checkpoint)
    options = SourceOptions.parse(given)
    query.reader = StreamReader(options, stream_columns(options, readable(given)))
    return query


def read_next(query: Query) -> list[dict[str, int]]:
    """The typed columns of the next batch, which goes through the sink."""
    query.run_until("logged")
    batch = query.checkpoint.commits
    before = json.loads(query.checkpoint.offsets[batch - 1]) if batch else query.reader.initialOffset()
    query.checkpoint.sink[batch] = []
    partitions = query.reader.partitions(before, json.loads(query.checkpoint.offsets[batch]))
    rows = [row for part in partitions for one in query.reader.read(part) for row in one.to_pylist()]
    query.checkpoint.commits += 1
    return [{name: row[name] for name in ("n", "more") if name in row} for row in rows]


# ---------------------------------------------------------------- what is gone


def test_what_retention_took_fails_the_query_or_is_skipped(world: World) -> None:
    world.publish(9)
    world.lead()
    query = world.query(sessionTimeoutMs=2000)
    held_all(query, world)
    query.run_until("logged")
    truncate(world, "s.0.1", 6)
    with pytest.raises(HistoryTruncated, match="the oldest left is 6") as refused:
        query.trigger()
    one_line(refused.value)
    query.kill()
    again = world.query(query.checkpoint, failOnDataLoss=False)
    again.run(lambda: world.all_committed)
    lost = {("s.0.1", offset) for offset in range(6)}
    assert set(positions(again)) == {(s, o) for s in world.streams for o in range(9)} - lost
    assert len(again.checkpoint.rows) == world.total - 6


# ---------------------------------------------------------------- a Redis that goes away


@pytest.mark.slow
def test_a_query_waits_for_redis_then_fails_and_goes_on_where_it_was(
    make_redis_server: Callable[..., RedisServer],
) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always"}
    server = make_redis_server(persistent=True, settings=settings)
    world = World(server.url)
    try:
        world.publish(5)
        query = world.query(embeddedLeader=True, **{"redis.timeout": "30s"})
        query.run(lambda: len(query.checkpoint.rows) == world.total)
        server.restart()
        world.publish(5)
        query.run(lambda: len(query.checkpoint.rows) == world.total, 30.0)
        query.kill()
        impatient = world.query(query.checkpoint, embeddedLeader=True, **{"redis.timeout": "1s"})
        impatient.run(lambda: impatient.held.keys() == set(world.streams), 30.0)
        server.stop()
        with pytest.raises(StoreUnavailable, match=r"redis\.timeout") as refused:
            impatient.run(lambda: False, 30.0)
        one_line(refused.value)
        impatient.kill()
        server.start()
        world.publish(5)
        again = world.query(query.checkpoint, embeddedLeader=True)
        again.run(lambda: len(again.checkpoint.rows) == world.total, 40.0)
        world.check(again.checkpoint)
    finally:
        if not server.is_running:
            server.start()
        world.close()
