"""When a leader host writes a file, and how long it rests from that."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import Client
from streamlease.hosts import archiving
from streamlease.hosts.archiving import ArchiveUpkeep
from streamlease.streams.archive.archiver import Archiver
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from tests.archive.helpers import Clock, publish, space_of


async def test_what_may_stay_in_memory_says_when_a_file_is_worth_it(client: Client, uri: str) -> None:
    """A space whose streams all wait for a large file would have a multiple of what it may have there."""
    keep = 8 * archiving.LEAST_BYTES
    space = await client.create_space(
        "flights", ["flights/#"], streams=2, archive=ArchiveSettings.of(uri, keep_bytes=keep)
    )
    host = ArchiveUpkeep(client.redis, "host-a", Clock())
    payload, size = random.randbytes(1000), 0
    stream = space.stream_for("flights/a")
    async with client.publisher() as publisher:
        while size < keep / 4:
            (done,) = await host.round()
            assert done.messages == 0, size
            batch = pa.RecordBatch.from_pydict({"payload": pa.array([payload] * 200, pa.binary())})
            await publisher.send_batch("flights/a", batch)
            size = (await AsyncLog(client.redis).states([stream]))[stream].bytes
    (done,) = await host.round()
    assert done.messages == (await AsyncLog(client.redis).states([stream]))[stream].next
    await host.close()


@pytest.mark.parametrize(("part", "factor"), [(0.3, 5), (0.6, 2), (0.9, 1)])
async def test_it_rests_less_when_redis_has_little_memory_left(
    client: Client, uri: str, monkeypatch: pytest.MonkeyPatch, part: float, factor: int
) -> None:
    await space_of(client, uri)
    await publish(client, 0, 100)
    used = int((await client.redis.info("memory"))["used_memory"])
    await client.redis.config_set("maxmemory", int(used / part))
    rests: list[tuple[float, float]] = []

    class Noting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            rests.append((steps[-1], timeout))
            return super().wait(0)

    steps: list[float] = []
    init = Archiver.__init__

    def noted(worker: Archiver, *about: Any, rest: Callable[[float], None], **more: Any) -> None:
        def step(seconds: float) -> None:
            steps.append(seconds)
            rest(seconds)

        init(worker, *about, rest=step, **more)

    monkeypatch.setattr(Archiver, "__init__", noted)
    monkeypatch.setattr(archiving, "threading", SimpleNamespace(Event=Noting))
    clock = Clock()
    host = ArchiveUpkeep(client.redis, "host-a", clock)
    try:
        await host.round()
        clock.now += int(archiving.WAIT_SECONDS * 1000)
        (done,) = await host.round()
    finally:
        await client.redis.config_set("maxmemory", 0)
        await host.close()
    assert done.messages == 100
    assert len(rests) >= 3
    assert all(rest == pytest.approx(seconds * factor) for seconds, rest in rests)
