"""Compaction while its server is killed, and while a replica that lacks writes takes its place."""

from __future__ import annotations

import asyncio

import pytest
import redis as plain_redis

from streamlease.protocol.errors import Indefinite, StoreUnavailable
from streamlease.protocol.ids import StreamId
from streamlease.streams.log import compacting, merging
from streamlease.streams.log.compacting import Compacted, compact, first_run, replace
from streamlease.streams.log.keys import stream_merged
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.merging import merged
from streamlease.streams.log.segments import read_range
from streamlease.streams.redis.connection import connect, connect_blocking, run_blocking
from tests.conftest import MakeServer
from tests.servers import REAL_KINDS, Kind
from tests.streams.helpers import append, offsets, payloads, rows, until

STREAM = StreamId("space", 0, 0)
EVER = 2**60
MESSAGES = 1200


@pytest.fixture(autouse=True)
def few_messages_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is whole with ten messages, and is read in several pages."""
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)
    monkeypatch.setattr(compacting, "FIRST_COUNT", 4)
    monkeypatch.setattr(compacting, "MOST_COUNT", 4)


async def _compact_until_it_breaks(url: str, done: list[Compacted]) -> bool:
    """Whether it was cut off by a server that went away."""
    client = connect(url)
    try:
        while isinstance(one := await compact(client, STREAM, EVER), Compacted):
            done.append(one)
        return False
    except (StoreUnavailable, Indefinite):
        return True
    finally:
        await client.aclose()


@pytest.mark.parametrize("kind", REAL_KINDS)
@pytest.mark.slow
async def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(
    make_redis_server: MakeServer, kind: Kind
) -> None:
    """Two that compact; the server is killed when some runs are merged, wherever they are just then."""
    server = make_redis_server(kind, persistent=True)
    blocking = connect_blocking(server.url)
    log = AsyncLog(blocking)
    run_blocking(log.open([STREAM]))
    for number in range(MESSAGES):
        run_blocking(log.append(append(STREAM, number, rows(number, 1))))
    whole = [*read_range(blocking, STREAM, 0, MESSAGES)]
    for kill_at in (1, 7, 20, 40, 0):
        done: list[Compacted] = []
        both = [asyncio.create_task(_compact_until_it_breaks(server.url, done)) for _ in range(2)]
        if kill_at:
            await until(lambda seen=done, most=kill_at: len(seen) >= most)  # type: ignore[misc]
            await asyncio.to_thread(server.restart)
        cut_off = await asyncio.gather(*both)
        assert kill_at or not any(cut_off), "nobody killed the server in the last round"
        found = [*read_range(blocking, STREAM, 0, MESSAGES)]
        assert offsets(found) == list(range(MESSAGES))
        assert payloads(found) == payloads(whole)
    assert blocking.xlen(stream_merged(STREAM)) == MESSAGES // 10
    blocking.close()


@pytest.mark.slow
async def test_a_replica_that_lacks_the_end_of_a_run_refuses_it(make_redis_server: MakeServer) -> None:
    """The master goes on alone, its run is read, and the promoted replica gives the offsets out again."""
    master, replica = make_redis_server("redis7"), make_redis_server("redis7")
    old, new = connect(master.url), connect(replica.url)
    with plain_redis.Redis.from_url(replica.url) as plain:
        plain.replicaof("127.0.0.1", str(master.port))
        await AsyncLog(old).open([STREAM])
        for number in range(6):
            await AsyncLog(old).append(append(STREAM, number, rows(number, 1)))
        assert (await old.execute_command("WAIT", 1, 30_000)) == 1
        plain.replicaof("NO", "ONE")
    for number in range(6, 10):
        await AsyncLog(old).append(append(STREAM, number, rows(number, 1)))
        await AsyncLog(new).append(append(STREAM, number, rows(number + 100, 1)))
    found = await first_run(old, STREAM, EVER)
    assert found.run is not None
    run, fields = merged(STREAM, found.run, None)
    assert await replace(new, STREAM, run, found.mark, fields) is None
    expected = [b"message %d" % n for n in [*range(6), *range(106, 110)]]
    assert payloads(await AsyncLog(new).read(STREAM, 0)) == expected
    assert isinstance(await compact(new, STREAM, EVER), Compacted)
    assert payloads(await AsyncLog(new).read(STREAM, 0)) == expected
    await old.aclose()
    await new.aclose()
