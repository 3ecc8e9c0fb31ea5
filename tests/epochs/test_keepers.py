"""Hosts keep the spaces with epochs: one at a time, another one when it ends, none where nobody leads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import streamlease
from streamlease.hosts import keepers
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.signals.exposition import exposition
from streamlease.protocol.ids import StreamId
from streamlease.streams.clock import milliseconds
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.lines import StagedPart
from streamlease.streams.epochs.stored import read_bounds, read_frontier_since
from streamlease.streams.epochs.writing import LineWriter
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.redis.lines.bells import Bells
from tests.streams.helpers import until


async def boundary(redis: AsyncRedis, number: int) -> None:
    """Wait until there is boundary `number`."""
    async with asyncio.timeout(20):
        while not [one for one in await read_bounds(redis, "space", 0) if one.number >= number]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_gone(redis: AsyncRedis, *patterns: str) -> None:
    """Wait until no key matches."""
    async with asyncio.timeout(20):
        while any(await ask(redis, [("KEYS", pattern) for pattern in patterns])):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def host_of(redis: AsyncRedis, name: str) -> LeaderHost:
    host = LeaderHost(redis, HostConfig(name=name))
    await host.start()
    return host


@pytest.mark.slow
async def test_one_host_keeps_a_space_and_another_one_follows(redis_url: str) -> None:
    async with streamlease.connect(redis_url, embedded=False) as client:
        await client.create_space("space", topics=["t/#"], streams=2, epochs=1)
        await client.create_space("plain", topics=["p/#"], streams=2)
        first, second = connect(redis_url), connect(redis_url)
        one, two = await host_of(first, "one"), await host_of(second, "two")
        hosts = [one, two]
        await until(lambda: any(host.keeps for host in hosts))
        writer = LineWriter(client.redis, "space", "a")
        await writer.enter()
        await writer.advance(((1,),), [])
        await boundary(client.redis, 1)
        assert sorted(host.keeps for host in hosts) == [[], ["space"]]
        hosts.sort(key=lambda host: host.keeps)
        await hosts.pop().close()
        await writer.advance(((2,),), [])
        await boundary(client.redis, 2)
        await until(lambda: hosts[0].keeps == ["space"])
        await ask(client.redis, [("SET", keys.staged_meta(StreamId("space", 0, 1)), "x")])
        await client.spaces.delete("space")
        await until(lambda: hosts[0].keeps == [])
        await until_gone(client.redis, "sl:{epochs:*", "sl:{space.*", "sl:{g:!epochs*")
        await hosts[0].close()
        await first.aclose()
        await second.aclose()


@pytest.mark.slow
async def test_a_claim_that_redis_lost_is_had_again_above_the_terms_of_the_space(redis_url: str) -> None:
    async with streamlease.connect(redis_url, embedded=False) as client:
        await client.create_space("space", topics=["t/#"], streams=2, epochs=1)
        await ask(client.redis, [("HSET", keys.state("space"), "term", 10**9)])
        redis = connect(redis_url)
        host = await host_of(redis, "one")
        writer = LineWriter(client.redis, "space", "a")
        await writer.enter()
        await writer.advance(((1,),), [])
        await boundary(client.redis, 1)
        (bound,) = await read_bounds(client.redis, "space", 0)
        assert bound.term > 10**9
        await host.close()
        await redis.aclose()


async def test_a_process_keeps_by_itself_where_there_are_no_hosts(redis_url: str) -> None:
    async with streamlease.connect(redis_url) as client:
        await client.create_space("space", topics=["t/#"], streams=2, epochs=1)
        async with client.epoch_publisher("space", "a") as publisher:
            await publisher.send("t/1", b"x", epoch=0)
            await publisher.advance(1)
            await boundary(client.redis, 1)
        bounds = await read_bounds(client.redis, "space", 0)
        assert sum(part.rows for bound in bounds for part in bound.moved) == 1


async def test_lines_that_were_not_pushed_are_found(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []

    def lose(news: Bells, replies: list[Any]) -> None:
        heard.extend(reply[0] for reply in replies if isinstance(reply, list))

    monkeypatch.setattr(Bells, "_take", lose)
    async with streamlease.connect(redis_url, embedded=False) as client:
        await client.create_space("space", topics=["t/#"], streams=2, epochs=1)
        redis = connect(redis_url)
        host = await host_of(redis, "one")
        await until(lambda: host.keeps == ["space"] and b"subscribe" in heard)
        writer = LineWriter(client.redis, "space", "a")
        await writer.enter()
        for number in (1, 2):
            await writer.advance(((number,),), [])
            await boundary(client.redis, number)
        assert heard.count(b"message") >= 2
        await host.close()
        await redis.aclose()


async def kept_spaces(host: LeaderHost) -> dict[str, tuple[int, int, int]]:
    """By space: publishers, those that are held back, and the messages that wait."""
    return {
        one.space: (one.publishers, one.held_back, one.waiting)
        for one in (await host.facts()).kept
        if one.frontier_seconds >= 0
    }


async def test_a_host_tells_who_waits_for_the_frontier(redis_url: str) -> None:
    async with streamlease.connect(redis_url, embedded=False) as client:
        await client.create_space("space", topics=["t/#"], streams=2, epochs=1)
        await client.create_space("empty", topics=["e/#"], epochs=2)
        redis = connect(redis_url)
        host = await host_of(redis, "one")
        late, ahead = (LineWriter(client.redis, "space", name) for name in ("late", "ahead"))
        await late.enter()
        await late.advance(((1,),), [])
        await boundary(client.redis, 1)
        await ahead.enter()
        await ahead.advance(((7,),), [StagedPart((1,), StreamId("space", 0, 0), ((0, 3),))])
        wanted = {"empty": (0, 0, 0), "space": (2, 1, 3)}
        async with asyncio.timeout(20):
            while await kept_spaces(host) != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        before = {one.space: one.frontier_seconds for one in (await host.facts()).kept}
        stood = await read_frontier_since(client.redis, "space")
        await host.close()
        other = await host_of(redis, "two")
        async with asyncio.timeout(20):
            while await kept_spaces(other) != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        after = {one.space: one.frontier_seconds for one in (await other.facts()).kept}
        assert after["space"] > before["space"], "the next host knows since when"
        assert await read_frontier_since(client.redis, "space") == stood
        advanced = milliseconds()
        await late.advance(((3,),), [])
        await boundary(client.redis, 2)
        async with asyncio.timeout(20):
            while await kept_spaces(other) != {"empty": (0, 0, 0), "space": (2, 1, 0)}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (found,) = [one.frontier_seconds for one in (await other.facts()).kept if one.space == "space"]
        assert found <= (milliseconds() - advanced) / 1000, "it has moved"
        text = exposition(await other.facts()).decode()
        assert 'streamlease_epochs_held_back_publishers{space="space"} 1.0' in text
        assert '"late"' not in text, "names of publishers come and go: they are no label"
        await other.close()
        await redis.aclose()


async def test_a_host_hears_of_a_new_space_at_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepers, "ROUND_SECONDS", 600.0)
    redis = connect(redis_url)
    host = await host_of(redis, "one")
    async with streamlease.connect(redis_url, embedded=False) as client:
        for number in range(3):
            await client.create_space(f"space-{number}", topics=[f"t/{number}"], epochs=1)
            await until(lambda: len(host.keeps) == number + 1)  # noqa: B023
        await client.spaces.delete("space-1")
        await until(lambda: "space-1" not in host.keeps)
        assert host.keeps == ["space-0", "space-2"]
    await host.close()
    await redis.aclose()


async def test_a_space_that_is_changed_is_kept_at_once_under_a_higher_term(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "ROUND_SECONDS", 600.0)  # a claim that is lost is free after half an hour
    redis = connect(redis_url)
    host = await host_of(redis, "one")
    async with streamlease.connect(redis_url, embedded=False) as client:
        await client.create_space("space", topics=["t/#"], streams=2, epochs=1)
        for epoch in range(3):
            async with client.epoch_publisher("space", "a") as publisher:
                await publisher.submit("t/1", b"x", epoch=epoch)
            await boundary(client.redis, epoch + 1)
            assert await client.alter_space("space", streams=3 + epoch)
        first, *_, last = await read_bounds(client.redis, "space", 0)
        assert first.term < last.term
        await until(lambda: host.keeps == ["space"])
    await host.close()
    await redis.aclose()
