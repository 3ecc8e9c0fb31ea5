"""Spaces with a schema on real servers: typed rows in and out, refusals that write nothing, evolution."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import connect as connect_client
from streamlease.protocol.errors import InvalidOption, SchemaMismatch, SpaceConflict
from streamlease.streams.entries.entries import Message, Row, encode_message, encode_typed_rows, to_messages
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.log.segments import read_range
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis
from streamlease.streams.spaces.spaces import Space, SpaceStore
from tests.streams.schema_change import alter_schema

OLD: dict[str, Any] = {
    "columns": [
        {"name": "carrier", "type": "string", "nullable": False},
        {"name": "delay", "type": "float64"},
    ]
}
NEW: dict[str, Any] = {"columns": [*OLD["columns"], {"name": "gate", "type": "int16"}]}


async def create(redis: AsyncRedis, **options: Any) -> Space:
    return await SpaceStore(redis).create("f", ["f/#"], schema=OLD, **options)


async def all_messages(redis: AsyncRedis, space: Space, **options: Any) -> list[Message]:
    batches = [
        batch for stream in space.streams() for batch in await AsyncLog(redis).read(stream, 0, **options)
    ]
    return [message for batch in batches for message in to_messages(batch)]


async def test_rows_and_batches_come_out_typed(redis: AsyncRedis, blocking: BlockingRedis) -> None:
    space = await create(redis)
    (stream,) = space.streams()
    async with Publisher(redis) as publisher:
        place = await publisher.send("f/a", {"carrier": "UA", "delay": 1.5}, key="k", headers={"h": "v"})
        assert place == (stream, 0)
        batch = pa.record_batch(
            {"carrier": ["AA", "DL"], "delay": pa.array([None, 2.0]), "topic": ["f/b", "f/c"]}
        )
        await publisher.send_batch("topic", batch)
        await asyncio.gather(*[publisher.send("f/d", {"carrier": f"c{n}"}) for n in range(5)])
    found = await all_messages(redis, space)
    assert [(one.topic, one.values) for one in found[:3]] == [
        ("f/a", {"carrier": "UA", "delay": 1.5}),
        ("f/b", {"carrier": "AA", "delay": None}),
        ("f/c", {"carrier": "DL", "delay": 2.0}),
    ]
    assert (found[0].key, found[0].headers, found[0].payload) == (b"k", (("h", b"v"),), b"")
    assert [one.values for one in found[3:]] == [{"carrier": f"c{n}", "delay": None} for n in range(5)]
    (same,) = read_range(blocking, stream, 0, 8)
    assert same.column("carrier").to_pylist()[:3] == ["UA", "AA", "DL"]
    assert same.schema == Schema.of(OLD).message_schema


async def test_what_is_not_of_the_schema_is_refused_and_nothing_written(redis: AsyncRedis) -> None:
    space = await create(redis)
    async with Publisher(redis) as publisher:
        for payload in (b"bytes", "text", {"carrier": 5}, {}, {"carrier": "x", "other": 1}):
            with pytest.raises(SchemaMismatch):
                await publisher.send("f/a", payload)  # type: ignore[arg-type]
        with pytest.raises(SchemaMismatch, match="payload"):
            await publisher.send_batch("f/a", pa.record_batch({"payload": [b"x"]}))
        await SpaceStore(redis).create("plain", ["plain/#"])
        with pytest.raises(SchemaMismatch, match="space plain has no schema"):
            await publisher.send("plain/a", {"carrier": "UA"})
        with pytest.raises(SchemaMismatch, match="different schemas"):
            await publisher.send_batch("t", pa.record_batch({"t": ["f/a", "plain/a"], "carrier": ["a", "b"]}))
    assert await all_messages(redis, space) == []


async def test_the_append_script_refuses_other_fingerprints(redis: AsyncRedis, log: AsyncLog) -> None:
    """Whatever a program sends, a stream takes entries of its one present schema only."""
    space = await create(redis)
    (stream,) = space.streams()
    other = Schema.of(NEW)
    entries = [
        encode_message(Row("f/a", b"payload")),
        encode_typed_rows(other, [Row("f/a", b"", values={"carrier": "UA"})]),
    ]
    for entry in entries:
        with pytest.raises(SchemaMismatch, match=Schema.of(OLD).fingerprint):
            await log.append(Append(stream, "~p", 1, 0, entry))
    assert await log.next_offsets([stream]) == {stream: 0}
    plain = await SpaceStore(redis).create("plain", ["plain/#"])
    with pytest.raises(SchemaMismatch, match="without a schema"):
        await log.append(Append(plain.streams()[0], "~p", 1, 0, entries[1]))


async def test_a_new_nullable_column_under_a_running_publisher(
    redis: AsyncRedis, log: AsyncLog, caplog: pytest.LogCaptureFixture
) -> None:
    space = await create(redis, streams=3)
    topics = [f"f/{n}" for n in range(9)]
    async with Publisher(redis) as running:
        for topic in topics:
            await running.send(topic, {"carrier": "old"})
        altered = await alter_schema(SpaceStore(redis), "f", NEW)
        assert [one.fingerprint for one in altered.schemas] == [
            Schema.of(OLD).fingerprint,
            Schema.of(NEW).fingerprint,
        ]
        # An entry of the old version is refused now, and the publisher, which still has it, does not notice.
        stale = encode_typed_rows(Schema.of(OLD), [Row("f/0", b"", values={"carrier": "stale"})])
        (refused,) = await log.append_many([Append(space.streams()[0], "~p", 1, 0, stale)], evolve=False)
        assert isinstance(refused, SchemaMismatch)
        batch = pa.record_batch({"t": topics, "carrier": ["between"] * 9})
        await running.send_batch("t", batch)
        for topic in topics:
            await running.send(topic, {"carrier": "new", "gate": 7})
    assert caplog.messages == [], "what goes by itself is nothing to warn of"
    found = await all_messages(redis, space)
    rows = [one.values for one in found]
    assert rows.count({"carrier": "old", "delay": None, "gate": None}) == 9
    assert rows.count({"carrier": "between", "delay": None, "gate": None}) == 9
    assert rows.count({"carrier": "new", "delay": None, "gate": 7}) == 9
    assert len(rows) == 27


async def test_rows_on_their_way_while_the_schema_changes_are_written_once(redis: AsyncRedis) -> None:
    space = await create(redis, streams=2)
    async with Publisher(redis, max_batch_messages=20) as running:

        async def send(part: int) -> None:
            for n in range(100):
                await running.submit(f"f/{part}", {"carrier": f"{part}-{n}"})

        senders = [asyncio.create_task(send(part)) for part in range(4)]
        columns = list(NEW["columns"])
        for number in range(5):
            columns.append({"name": f"more{number}", "type": "string"})
            await alter_schema(SpaceStore(redis), "f", {"columns": columns})
        await asyncio.gather(*senders)
    found = await all_messages(redis, space)
    sent = [f"{part}-{n}" for part in range(4) for n in range(100)]
    assert sorted(str((one.values or {})["carrier"]) for one in found) == sorted(sent)
    for part in range(4):
        mine = [str((one.values or {})["carrier"]) for one in found if one.topic == f"f/{part}"]
        assert mine == [f"{part}-{n}" for n in range(100)]


async def test_a_stream_that_was_not_told_of_the_schema_is_told_by_a_publisher(redis: AsyncRedis) -> None:
    """As after a crash between the definition and the streams, or in streams that were opened later."""
    space = await create(redis)
    (stream,) = space.streams()
    await redis.hdel(stream_meta(stream), "schema", "schemas", "schema_versions")  # type: ignore[misc]
    async with Publisher(redis) as publisher:
        assert await publisher.send("f/a", {"carrier": "UA"}) == (stream, 0)
    assert [one.values for one in await all_messages(redis, space)] == [{"carrier": "UA", "delay": None}]


async def test_an_older_definition_does_not_take_a_stream_back(redis: AsyncRedis, log: AsyncLog) -> None:
    space = await create(redis)
    altered = await alter_schema(SpaceStore(redis), "f", NEW)
    await SpaceStore(redis).generations.tell_schemas(space)
    (stream,) = altered.streams()
    assert await redis.hget(stream_meta(stream), "schema") == Schema.of(NEW).fingerprint.encode()  # type: ignore[misc]


async def test_changes_that_are_not_compatible_change_nothing(redis: AsyncRedis) -> None:
    space = await create(redis)
    store = SpaceStore(redis)
    for columns in (
        OLD["columns"][:1],
        [*OLD["columns"], {"name": "gate", "type": "int16", "nullable": False}],
        [OLD["columns"][0], {"name": "delay", "type": "float32"}],
    ):
        with pytest.raises(SchemaMismatch, match="cannot change so"):
            await alter_schema(store, "f", {"columns": columns})
    with pytest.raises(InvalidOption):
        await alter_schema(store, "f", {"columns": [*OLD["columns"], {"name": "x", "type": "int7"}]})
    assert await store.get("f") == space
    assert await alter_schema(store, "f", OLD) == space
    await store.create("plain", ["plain/#"])
    with pytest.raises(SchemaMismatch, match="without a schema"):
        await alter_schema(store, "plain", OLD)


async def test_creating_again_with_the_same_schema_is_done_at_once(redis: AsyncRedis) -> None:
    space = await create(redis)
    assert await create(redis) == space
    for other in (None, NEW):
        with pytest.raises(SpaceConflict, match="schema"):
            await SpaceStore(redis).create("f", ["f/#"], schema=other)


async def test_a_reader_names_the_columns_that_it_wants(redis: AsyncRedis, blocking: BlockingRedis) -> None:
    space = await create(redis)
    (stream,) = space.streams()
    async with Publisher(redis) as publisher:
        await publisher.send("f/a", {"carrier": "UA", "delay": 1.0})
    delay = Schema.of({"columns": [OLD["columns"][1]]})
    assert [one.values for one in await all_messages(redis, space, schema=delay)] == [{"delay": 1.0}]
    for columns in (
        [{"name": "delay", "type": "int64"}],
        [{"name": "gate", "type": "int16"}],
        [{"name": "delay", "type": "float64", "nullable": False}],
    ):
        wanted = Schema.of({"columns": columns})
        with pytest.raises(SchemaMismatch, match="space f"):
            await all_messages(redis, space, schema=wanted)
        with pytest.raises(SchemaMismatch, match="space f"):
            list(read_range(blocking, stream, 0, 1, schema=wanted))


async def test_a_subscriber_gets_typed_batches_or_a_clear_end(redis_url: str) -> None:
    async with connect_client(redis_url) as client:
        await client.create_space("f", ["f/#"], schema=Schema.of(OLD).arrow)
        async with client.publisher() as publisher:
            await publisher.send("f/a", {"carrier": "UA"})
        async with client.subscribe("$shared/g/f/#", start="earliest") as subscription:
            batch = await anext(subscription)
            assert batch.to_arrow().column("carrier").to_pylist() == ["UA"]
            assert batch.messages[0].values == {"carrier": "UA", "delay": None}
            await batch.commit()
        wanted = pa.schema([("carrier", pa.int64())])
        async with client.subscribe("$shared/other/f/#", start="earliest", schema=wanted) as subscription:
            with pytest.raises(SchemaMismatch, match="carrier"):
                await anext(subscription)


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
async def test_each_publisher_chooses_how_it_compresses(redis: AsyncRedis, codec: Any) -> None:
    plain = await SpaceStore(redis).create("plain", ["plain/#"])
    space = await create(redis)
    async with Publisher(redis, compression=codec) as publisher:
        await publisher.send_batch("plain/a", pa.record_batch({"payload": [b"x" * 100] * 1000}))
        await publisher.send_batch("f/a", pa.record_batch({"carrier": ["x" * 100] * 1000}))
    sizes = []
    for stream in (*plain.streams(), *space.streams()):
        ((_, fields),) = await redis.xrange(f"sl:{{{stream}}}:log")
        sizes.append(sum(map(len, fields.values())))
    assert all(size > 100_000 if codec == "none" else size < 10_000 for size in sizes)
    assert len(await all_messages(redis, plain)) == 1000
    assert {str((one.values or {})["carrier"]) for one in await all_messages(redis, space)} == {"x" * 100}


async def test_an_unknown_compression_is_refused(redis: AsyncRedis) -> None:
    with pytest.raises(InvalidOption, match="gzip"):
        Publisher(redis, compression="gzip")  # type: ignore[arg-type]
