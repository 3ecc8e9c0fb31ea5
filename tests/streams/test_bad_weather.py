"""A Redis that takes nothing for a while, without memory or disk: typed, retried, nothing lost or twice."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable

import pytest

from streamlease.protocol.errors import StoreRefused
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import connect
from streamlease.streams.spaces.spaces import SpaceStore
from tests.conftest import MakeServer
from tests.servers import RedisServer
from tests.streams.helpers import payloads

Switch = Callable[[RedisServer, bool], None]


def memory(server: RedisServer, full: bool) -> None:
    with server.client() as admin:
        admin.config_set("maxmemory", "1mb" if full else "0")


def disk(server: RedisServer, full: bool) -> None:
    """Let the background save fail, as on a full disk, after which Redis takes no writes."""
    with server.client() as admin:
        admin.config_set("save", "3600 1")
        if full:
            place = server.directory / "gone"
            place.mkdir(exist_ok=True)
            admin.config_set("dir", str(place))
            shutil.rmtree(place)
        else:
            admin.config_set("dir", str(server.directory))
        wanted = "err" if full else "ok"
        deadline = time.monotonic() + 20
        while True:
            info = admin.info("persistence")
            if info["rdb_last_bgsave_status"] == wanted and not info["rdb_bgsave_in_progress"]:
                return
            assert time.monotonic() < deadline, "the background save did not end as wanted"
            if not info["rdb_bgsave_in_progress"]:
                admin.bgsave()


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
@pytest.mark.parametrize(("switch", "word"), [(memory, "out of memory"), (disk, "MISCONF")])
async def test_a_refusal_is_typed_and_passes(
    make_redis_server: MakeServer, kind: str, switch: Switch, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis_server(kind, settings={"enable-protected-configs": "yes"})
    client = connect(server.url)
    space = await SpaceStore(client).create("s", ["s/#"], streams=2)
    async with (
        Publisher(client, delivery_timeout=60) as patient,
        Publisher(client, delivery_timeout=0.2) as hasty,
    ):
        for number in range(10):
            await patient.send(f"s/{number % 4}", b"%d" % number)
        await asyncio.to_thread(switch, server, True)
        with pytest.raises(StoreRefused, match=word) as caught:
            await hasty.send("s/0", b"lost")
        assert caught.value.retriable
        assert "\n" not in str(caught.value)
        waiting = [await patient.submit(f"s/{n % 4}", b"%d" % n) for n in range(10, 200)]
        assert not any(future.done() for future in waiting)
        await asyncio.to_thread(switch, server, False)
        await patient.flush()
        assert len({future.result() for future in waiting}) == 190
    (said,) = [line for line in caplog.messages if line.startswith(f"publisher {hasty.id}: ")]
    assert word in said
    assert said.endswith("(tried again for 0.2 s at most)")
    found = [p for stream in space.streams() for p in payloads(await AsyncLog(client).read(stream, 0))]
    assert sorted(map(int, found)) == list(range(200))
    await client.aclose()
