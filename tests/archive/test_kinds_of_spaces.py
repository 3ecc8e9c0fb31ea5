"""Spaces with typed columns, collections, epochs, several generations, and lost messages in the archive."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import Client
from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.offsets import parse_entry_id
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.upkeep_steps import merge
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.keys import stream_log
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import BlockingRedis
from tests.archive.helpers import all_of, archive, archiver, in_table, publish, rows, same, space_of, trim_all

TYPES = pa.schema(
    [
        pa.field("small", pa.int8(), nullable=False),
        ("short", pa.int16()),
        ("whole", pa.int32()),
        ("long", pa.int64()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("blob", pa.binary()),
        ("day", pa.date32()),
        ("clock", pa.timestamp("us")),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(10, 2)),
        ("many", pa.list_(pa.int16())),
        ("part", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])),
        ("a.b", pa.string()),
    ]
)


def values(number: int) -> dict[str, Any]:
    if number % 5 == 4:
        return dict.fromkeys(TYPES.names) | {"small": 1}
    return {
        "small": number % 100 - 50,
        "short": -number,
        "whole": number * 70_000,
        "long": number * 10**12,
        "real": number / 4,
        "double": number / 3,
        "flag": number % 2 == 0,
        "text": f"text {number}",
        "blob": bytes([number % 256]),
        "day": date(2026, 1, 1 + number % 28),
        "clock": datetime(2026, 1, 1, 12, number % 60),
        "moment": datetime(2026, 1, 1, 12, number % 60, tzinfo=UTC),
        "price": Decimal(number) / 4,
        "many": [number % 7, None],
        "part": {"a": number % 9, "b": ["x", None]},
        "a.b": "dot",
    }


async def publish_typed(client: Client, schema: pa.Schema, given: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(given, schema=schema)
    async with client.publisher() as publisher:
        await publisher.send_batch("flights/a", batch)


async def test_typed_columns_come_back_as_they_were_and_grow(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri, streams=1, schema=TYPES)
    (stream,) = space.streams()
    await publish_typed(client, TYPES, [values(number) for number in range(50)])
    before = await rows(client, space)
    archive(blocking, space)
    await trim_all(client, space, keep=0)
    assert same(before, await rows(client, space))
    wider = TYPES.append(pa.field("more", pa.list_(pa.float64())))
    space = await client.alter_space("flights", schema=wider)
    await publish_typed(client, wider, [values(number) | {"more": [1.5]} for number in range(50)])
    before = await rows(client, space)
    archive(blocking, space)
    await trim_all(client, space, keep=0)
    now = await rows(client, space)
    assert same(before, now)
    assert now[stream]["more"].to_pylist() == [None] * 50 + [[1.5]] * 50
    assert space.archive is not None
    table = SpaceTable.open(blocking, space, space.archive).iceberg.scan().to_arrow()
    assert sorted(table["long"].drop_null().to_pylist()) == sorted(
        now[stream]["long"].drop_null().to_pylist()
    )
    assert {"more", "small", "topic", "epoch"} <= {*table.schema.names}
    few = Schema.of(pa.schema([TYPES.field("small"), TYPES.field("part")]))
    part = pa.Table.from_batches(
        read_range(blocking, stream, 10, 60, schema=few, columns=frozenset({"offset"}))
    )
    assert part.schema.names == ["topic", "offset", "small", "part"]
    assert part["small"].to_pylist() == now[stream]["small"].to_pylist()[10:60]
    other = Schema.of(pa.schema([("small", pa.string())]))
    with pytest.raises(SchemaMismatch):
        [*read_range(blocking, stream, 0, 5, schema=other)]


async def test_an_archiver_that_does_not_know_a_column_yet_loses_none(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    first = pa.schema([("n", pa.int64())])
    space = await space_of(client, uri, streams=1, schema=first)
    (stream,) = space.streams()
    await publish_typed(client, first, [{"n": 1}])
    wider = first.append(pa.field("more", pa.string()))
    now = await client.alter_space("flights", schema=wider)
    await publish_typed(client, wider, [{"n": 2, "more": "x"}])
    late = archive(blocking, space)
    assert (late.messages, late.more) == (0, True), "it stops, and looks again at what the space is"
    archive(blocking, now)
    await publish_typed(client, wider, [{"n": 3, "more": "y"}])
    archive(blocking, now)
    await trim_all(client, now, keep=0)
    assert merge(archiver(blocking, space)).files == 0, "nor one that joins files"
    assert (await rows(client, now))[stream]["more"].to_pylist() == [None, "x", "y"]
    assert merge(archiver(blocking, now)).files == 2
    assert (await rows(client, now))[stream]["more"].to_pylist() == [None, "x", "y"]


async def test_collections_keep_their_diffs(client: Client, blocking: BlockingRedis, uri: str) -> None:
    space = await space_of(client, uri, streams=1, collection=True)
    async with client.publisher() as publisher:
        for number in range(100):
            await publisher.send("flights/a", b"item %d" % (number % 10), diff=1 if number < 60 else -1)
    archive(blocking, space)
    await trim_all(client, space, keep=0)
    async with asyncio.timeout(30), client.collection("flights/#") as items:
        counts = {payload: count for (_, _, payload), count in items.items.items()}
    assert counts == {b"item %d" % number: 2 for number in range(10)}


async def test_generations_are_read_in_their_order(client: Client, blocking: BlockingRedis, uri: str) -> None:
    space = await space_of(client, uri, streams=2)
    await publish(client, 0, 100)
    space = await client.alter_space("flights", streams=3)
    await publish(client, 100, 100)
    whole = await rows(client, space)
    archive(blocking, space)
    await trim_all(client, space, keep=0)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)
    found: list[bytes] = []
    async with asyncio.timeout(30), client.subscribe("$shared/g/flights/#", start="earliest") as taken:
        async for batch in taken:
            found += [message.payload for message in batch.messages]
            await batch.commit()
            if len(found) >= 200:
                break
    assert sorted(found[:100]) == sorted(b"message %d" % number for number in range(100))
    assert len(set(found)) == 200


async def test_what_redis_lost_is_in_no_file_and_is_told(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri, streams=1)
    (stream,) = space.streams()
    await publish(client, 0, 200)
    ((gone, _),) = await client.redis.xrange(stream_log(stream), "60-0", count=1)
    await client.redis.xdel(stream_log(stream), gone)
    first, next = parse_entry_id(gone)
    assert archive(blocking, space).messages == 200 - (next - first)
    await trim_all(client, space, keep=0)
    with pytest.raises(MissingOffsets) as caught:
        await AsyncLog(client.redis).read(stream, first)
    assert (caught.value.asked, caught.value.oldest) == (first, next)
    files = recorded(blocking, [stream])[stream].files
    assert [(one.first, one.next) for one in files] == [(0, first), (next, 200)]


async def test_epochs_are_read_whole(client: Client, blocking: BlockingRedis, uri: str) -> None:
    space = await space_of(client, uri, streams=2, epochs=1)
    async with client.epoch_publisher("flights", "one") as publisher:
        for epoch in range(5):
            for number in range(20):
                await publisher.send(f"flights/{number}", b"%d" % number, epoch=epoch)
            await publisher.advance([epoch + 1])
        seen: list[tuple[int, int]] = []

        async def epochs() -> list[tuple[int, int]]:
            found: list[tuple[int, int]] = []
            async with (
                asyncio.timeout(30),
                client.listen("flights/#", start="earliest", epochs="atomic") as all,
            ):
                async for item in all:
                    if hasattr(item, "messages"):
                        found.append((item.epoch[0], len(item.messages)))
                    if sum(count for _, count in found) >= 100:
                        break
            return found

        seen = await epochs()
        assert sum(count for _, count in seen) == 100
        await asyncio.to_thread(archive, blocking, space)
        await trim_all(client, space, keep=0)
        assert await epochs() == seen
