"""A Redis that was started again and reads its data: nothing is to be done but to wait."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.protocol.errors import StoreUnavailable
from streamlease.streams.redis.connection import connect
from streamlease.streams.spaces.spaces import SpaceStore
from tests.conftest import MakeServer

KEYS = 2000
DELAY = {"key-load-delay": "1000", "loading-process-events-interval-bytes": "1024", "appendonly": "no"}
"""It sleeps for so many microseconds with each key, and answers in between."""


async def test_a_redis_that_reads_its_data_says_so_and_answers_then(make_redis_server: MakeServer) -> None:
    server = make_redis_server(persistent=True, settings=DELAY)
    client = connect(server.url)
    spaces = SpaceStore(client)
    await spaces.create("a", ["a/#"], streams=1)
    with server.client() as blocking:
        blocking.mset({f"key-{number}": "x" * 100 for number in range(KEYS)})
        blocking.save()
    server.kill()
    starting = asyncio.create_task(asyncio.to_thread(server.start))
    said: set[str] = set()
    while not starting.done() and not any("reading its data" in one for one in said):
        with pytest.raises(StoreUnavailable) as told:
            await spaces.look()
        said.add(str(told.value))
        await asyncio.sleep(0.01)
    assert [one for one in said if "reading its data" in one] == [
        f"Redis at 127.0.0.1:{server.port} is reading its data "
        f"(Valkey is loading the dataset in memory): wait until it has"
    ]
    await starting
    assert (await spaces.get("a")).name == "a"
    await client.aclose()
