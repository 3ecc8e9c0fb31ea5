"""More readers that find a part of what they want in files: of Spark, without Java, and groups."""

from __future__ import annotations

import asyncio
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.protocol.acts import ResetProgress
from streamlease.protocol.topics import SharedSubscription
from streamlease.spark.core import batch_tasks
from streamlease.streams.redis.connection import BlockingRedis
from tests.archive.helpers import archive, publish, space_of, trim_all
from tests.spark.test_batch import reader, rows

GROUP = "$shared/g/flights/#"


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["stream"], row["offset"]))


async def test_a_batch_of_spark_has_the_same_rows_wherever_they_are(
    client: Client,
    blocking: BlockingRedis,
    uri: str,
    embedded_redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 200)
    middle = int(datetime.now(UTC).timestamp() * 1000) + 1
    while datetime.now(UTC).timestamp() * 1000 < middle:
        continue
    await publish(client, 200, 200)
    first = str(space.streams()[0])
    wanted: list[dict[str, Any]] = [
        {},
        {"columns": "offset,stream,payload"},
        {"startingOffsets": json.dumps({first: 20}), "endingOffsets": json.dumps({first: 130})},
        {"startingTimestamp": middle},
        {"endingTimestamp": middle},
        {"topics": "flights/3"},
    ]

    def read() -> list[list[dict[str, Any]]]:
        return [
            in_order(rows(reader(embedded_redis_url, subscribe="flights/#", **options))) for options in wanted
        ]

    def planned() -> bytes:
        made = reader(embedded_redis_url, subscribe="flights/#")
        return pickle.dumps((made, made.partitions()))

    before, plan = await asyncio.to_thread(read), await asyncio.to_thread(planned)
    assert [len(found) for found in before[:1]] == [400]
    assert len(before[3]) == len(before[4]) == 200
    await asyncio.to_thread(archive, blocking, space)
    await trim_all(client, space, keep=60)
    assert await asyncio.to_thread(read) == before
    await trim_all(client, space, keep=0)
    monkeypatch.setattr(batch_tasks, "LEAST_ROWS", 10)
    monkeypatch.setattr(batch_tasks, "SMALL_ROWS", 100)
    made = reader(embedded_redis_url, subscribe="flights/#")
    assert len(await asyncio.to_thread(made.partitions)) == 4, "a file says that they are small"

    def replayed() -> list[dict[str, Any]]:
        made, partitions = pickle.loads(plan)
        return in_order([row for one in partitions for batch in made.read(one) for row in batch.to_pylist()])

    assert await asyncio.to_thread(replayed) == before[0], "planned before the seam moved"


async def test_a_group_is_reset_into_the_files_while_it_consumes(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri, streams=1)
    (stream,) = space.streams()
    await publish(client, 0, 200)
    await asyncio.to_thread(archive, blocking, space)
    await trim_all(client, space)
    found: list[int] = []
    async with asyncio.timeout(60), client.subscribe(GROUP, start="earliest") as taken:
        async for part in taken:
            found += [message.offset for message in part.messages]
            await part.commit()
            if len(found) == 200:
                await client.act(SharedSubscription.parse(GROUP), ResetProgress(offsets={str(stream): 70}))
                await publish(client, 200, 50)
            if found[-1] == 249:
                break
    assert found == [*range(200), *range(70, 250)]


@pytest.mark.parametrize("most", [20, 1000])
async def test_a_slow_group_goes_on_in_the_files(
    client: Client, blocking: BlockingRedis, uri: str, most: int
) -> None:
    space = await space_of(client, uri, streams=1)
    await publish(client, 0, 300)
    found: list[int] = []
    async with asyncio.timeout(60), client.subscribe(GROUP, start="earliest", max_batch=most) as taken:
        async for part in taken:
            if not found:
                await asyncio.to_thread(archive, blocking, space)
                await trim_all(client, space)
                await publish(client, 300, 50)
            found += [message.offset for message in part.messages]
            await part.commit()
            if found[-1] == 349:
                break
    assert found == [*range(350)]
