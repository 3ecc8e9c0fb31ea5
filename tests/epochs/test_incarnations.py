"""An incarnation is issued once, whatever Redis loses: each lineage of the data has numbers of its own."""

from __future__ import annotations

from itertools import count

import pytest

from streamlease.agent.client import Client
from streamlease.protocol.errors import InvalidInput
from streamlease.streams.epochs import keys, writing
from streamlease.streams.epochs.boundary_reading import EpochsLost
from streamlease.streams.epochs.writing import LineWriter
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.testing.memory.memory_connection import connect as connect_in_memory
from streamlease.testing.memory.memory_server import MemoryServer
from tests.epochs.playing import hand, kept, some
from tests.epochs.staging import SPACE

ALL = "space/#"


@pytest.fixture
def server() -> MemoryServer:
    ticks = count(1_000_000_000)
    return MemoryServer(lambda: next(ticks) / 1000, replicated=True)


async def with_a_space(client: Client) -> None:
    """One that no failover loses."""
    await client.create_space("space", [ALL], streams=1, epochs=1)
    await ask(client.redis, [("WAIT", 1, 100)])


async def entered(redis: AsyncRedis, name: str = "a", space: str = "space", above: int = 0) -> int:
    writer = LineWriter(redis, space, name)
    await writer.enter(above)
    return writer.inc


async def test_incarnations_rise_by_one_while_redis_loses_nothing(redis: AsyncRedis) -> None:
    issued = [await entered(redis, name, SPACE) for name in ("a", "a", "b", "a", "b")]
    assert issued == [1, 2, 1, 3, 2]


async def test_what_a_failover_took_is_not_issued_again_though_redis_was_restarted_since(
    server: MemoryServer,
) -> None:
    """A server that was restarted does not know that it was a replica once."""
    async with connect_in_memory(server, embedded=False) as client:
        await with_a_space(client)
        issued = [await entered(client.redis)]
        for _ in range(20):
            assert server.fail_over(10_000) > 0
            server.restart()
            issued.append(await entered(client.redis))
    assert len({*issued}) == len(issued) and min(issued[1:]) > writing.SHORTEST_LEAP


async def test_whoever_comes_back_first_all_names_leap_away(server: MemoryServer) -> None:
    async with connect_in_memory(server, embedded=False) as client:
        await with_a_space(client)
        first = [await entered(client.redis, name) for name in ("a", "b", "b")]
        server.restart()
        second = [await entered(client.redis, name) for name in ("c", "a", "b", "b", "a", "c")]
    base = second[0] - 1
    assert first == [1, 1, 2] and base >= 2 + writing.SHORTEST_LEAP
    assert [one - base for one in second] == [1, 1, 1, 2, 2, 2]


async def test_who_is_seen_and_not_there_makes_all_leap(redis: AsyncRedis) -> None:
    """A staged log, perhaps on another server of a cluster, knows of what the lines have lost."""
    assert await entered(redis, "a", SPACE) == 1
    assert await entered(redis, "a", SPACE, above=1) == 2
    base = await entered(redis, "b", SPACE, above=7) - 1
    assert base >= 7 + writing.SHORTEST_LEAP
    assert await entered(redis, "a", SPACE) == base + 1


async def test_a_space_of_an_earlier_version_leaps_where_redis_was_a_replica(server: MemoryServer) -> None:
    async with connect_in_memory(server, embedded=False) as client:
        await with_a_space(client)
        await ask(client.redis, [("HDEL", keys.writers("space"), "!lineage"), ("WAIT", 1, 100)])
        assert await entered(client.redis) == 1
        await ask(client.redis, [("HDEL", keys.writers("space"), "!lineage"), ("WAIT", 1, 100)])
        server.fail_over(10_000)
        assert await entered(client.redis) > writing.SHORTEST_LEAP


async def test_who_entered_and_was_lost_is_read_by_nobody_when_the_name_comes_back(
    server: MemoryServer,
) -> None:
    async with connect_in_memory(server, embedded=False) as client:
        await with_a_space(client)
        former = await hand(client.redis, "a")
        assert server.fail_over(10_000) > 0
        server.restart()
        keeper = await kept(client)
        async with client.listen(ALL, start="earliest", epochs="eager") as eager:
            new = await hand(client.redis, "a")
            while await keeper.turn():
                pass
            await former.send(0, "void")
            await new.send(0, "kept")
            assert await some(eager, 1) == [((0,), "a", ["kept"])]


async def test_a_name_whose_numbers_are_used_up_is_refused(redis: AsyncRedis) -> None:
    most = 1 << 33
    assert await entered(redis, "a", SPACE) == 1
    await ask(redis, [("HSET", keys.writers(SPACE), "!floor", most - 2)])
    assert await entered(redis, "a", SPACE) == most - 1
    before = await ask(redis, [("HGETALL", keys.writers(SPACE))])
    with pytest.raises(InvalidInput, match="make the space anew"):
        await entered(redis, "a", SPACE)
    assert await ask(redis, [("HGETALL", keys.writers(SPACE))]) == before


async def test_who_was_handed_out_something_before_anybody_kept_the_space_is_told(
    server: MemoryServer,
) -> None:
    """Else nobody has written down of which data that was, and others stand where it was read."""
    async with connect_in_memory(server, embedded=False) as client:
        await with_a_space(client)
        one = await hand(client.redis, "one")
        async with client.listen(ALL, start="earliest", epochs="eager") as eager:
            await one.send(0, "lost")
            assert await some(eager, 1) == [((0,), "one", ["lost"])]
            assert server.fail_over(10_000) > 0
            two = await hand(client.redis, "two")
            await two.send(0, "new", "newer")
            with pytest.raises(EpochsLost, match="failed over or was restarted"):
                await some(eager, 1)
