"""A space whose messages are in a table, in Redis, and in both; the table lies in a bucket."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa
from pyarrow import fs

from streamlease import connect
from streamlease.agent.client import Client
from streamlease.streams.archive.files import places
from streamlease.streams.redis.connection import connect_blocking
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space
from tests.archive.helpers import archive, in_table, trim_all
from tests.buckets import REGION, bucket_server

PLACE = "data/of-a-version"
SCHEMA = pa.schema([("degrees", pa.float64()), ("place", pa.string())])
LOGS = "$shared/back/logs/#"
SECONDS = 60.0


@contextmanager
def bucket(done: Any) -> Iterator[None]:
    """A server with what lay in the bucket."""
    with bucket_server() as environment, mock.patch.dict(os.environ, environment):
        places._files.cache_clear()
        store = _store()
        store.delete_dir_contents(PLACE, missing_dir_ok=True)  # servers of one process have one content
        for name, content in (done or {"objects": {}})["objects"].items():
            with store.open_output_stream(f"{PLACE}/{name}") as file:
                file.write(base64.b64decode(content))
        yield
        places._files.cache_clear()


def _store() -> fs.S3FileSystem:
    return fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"],
        access_key="key",
        secret_key="secret",
        region=REGION,
    )


def _objects() -> dict[str, str]:
    store, found = _store(), {}
    for one in store.get_file_info(fs.FileSelector(PLACE, recursive=True)):
        if one.type is fs.FileType.File:
            with store.open_input_stream(one.path) as file:
                found[one.path.removeprefix(f"{PLACE}/")] = base64.b64encode(file.read()).decode()
    return found


async def write(url: str) -> dict[str, Any]:
    """40 messages in the table only, 20 in both, 10 in Redis; a column has come in between."""
    async with connect(url, embedded=False) as client:
        space = await client.create_space(
            "logs",
            ["logs/#"],
            streams=2,
            archive=ArchiveSettings(f"s3://{PLACE}", keep_ms=3_600_000),
            schema=SCHEMA,
        )
        await _publish(client, 0, 40)
        await _archive(url, space)
        await trim_all(client, space)
        await client.alter_space("logs", schema=SCHEMA.append(pa.field("rain", pa.int64())))
        await _publish(client, 40, 20, rain=pa.int64())
        await _archive(url, await client.spaces.get("logs"))
        await _publish(client, 60, 10)
    return {"objects": _objects()}


async def _publish(client: Client, first: int, count: int, **more: pa.DataType) -> None:
    async with client.publisher() as publisher:
        for number in range(first, first + count):
            row = {"degrees": [number / 4], "place": [None if number % 5 == 0 else f"place {number}"]}
            kinds = pa.schema([*SCHEMA, *(pa.field(name, kind) for name, kind in more.items())])
            row |= {name: [number] for name in more}
            await publisher.send_batch(f"logs/{number % 7}", pa.RecordBatch.from_pydict(row, kinds))


async def _archive(url: str, space: Space) -> None:
    with connect_blocking(url) as redis:
        await asyncio.to_thread(archive, redis, space)


async def read(url: str, done: Any) -> dict[str, Any]:
    """All messages as a reader gets them, and how many of each stream are in the table."""
    async with connect(url, embedded=False) as client:
        space = await client.spaces.get("logs")
        with connect_blocking(url) as redis:
            rows = await asyncio.to_thread(in_table, redis, space)
        return {
            "messages": await _history(client),
            "in the table": {str(one): sum(name == str(one) for name, _ in rows) for one in space.streams()},
        }


async def _history(client: Client) -> list[Any]:
    found = []
    async with asyncio.timeout(SECONDS), client.history("logs/#") as history:
        async for batch in history:
            found += [[one.stream, one.offset, one.topic, one.values] for one in batch.messages]
    return sorted(found, key=lambda one: one[:2])


async def go_on(url: str, done: Any) -> None:
    """Publish, archive, and let a group read over the seam, from the table into Redis."""
    async with connect(url) as client:
        before = await _history(client)
        await _publish(client, 70, 30)
        space = await client.spaces.get("logs")
        await _archive(url, space)
        await trim_all(client, space)
        await _publish(client, 100, 5)
        whole = await _history(client)
        assert [one for one in whole if one in before] == before
        assert len(whole) == len(before) + 35
        got: list[Any] = []
        async with asyncio.timeout(SECONDS), client.subscribe(LOGS, start="earliest") as reader:
            while len(got) < len(whole):
                batch = await anext(reader)
                got += [[one.stream, one.offset, one.topic, one.values] for one in batch.messages]
                await batch.commit()
        assert sorted(got, key=lambda one: one[:2]) == whole
