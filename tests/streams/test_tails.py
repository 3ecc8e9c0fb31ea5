"""Watching the tails of streams, with push and without, over a restart of the server."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.protocol.errors import InvalidOption, StoreUnavailable
from streamlease.protocol.ids import StreamId
from streamlease.streams.log import tails as tails_module
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.connection import AsyncRedis, connect
from tests.conftest import MakeServer
from tests.streams.helpers import append, rows, until

STREAMS = [StreamId("s", 0, shard) for shard in range(3)]


@pytest.mark.parametrize("push", [True, False])
async def test_tails_follow_a_changing_set(redis: AsyncRedis, log: AsyncLog, push: bool) -> None:
    await log.open(STREAMS)
    seen: list[tuple[StreamId, int | None]] = []
    async with Tails(
        redis, poll_interval=0.02, push=push, on_change=lambda stream, next: seen.append((stream, next))
    ) as tails:
        tails.set_streams(STREAMS[:2])
        assert tails.next_of(STREAMS[0]) is None
        await until(lambda: [tails.next_of(one) for one in STREAMS] == [0, 0, None])
        async with asyncio.timeout(5):
            while not await tails.changed() >= set():
                pass
        await log.append(append(STREAMS[1], 0, rows(0, 5)))
        async with asyncio.timeout(5):
            while STREAMS[1] not in await tails.changed():
                pass
        assert tails.next_of(STREAMS[1]) == 5
        tails.set_streams(STREAMS[1:])
        await until(lambda: [tails.next_of(one) for one in STREAMS] == [None, 5, 0])
        await redis.delete(stream_meta(STREAMS[2]))
        await until(lambda: tails.next_of(STREAMS[2]) is None)
        await log.append(append(STREAMS[1], 1, rows(5, 1)))
        await until(lambda: tails.next_of(STREAMS[1]) == 6)
        tails.set_streams([])
        assert tails.next_of(STREAMS[1]) is None
    assert (STREAMS[1], 5) in seen
    assert (STREAMS[2], None) in seen


async def test_push_needs_no_poll(redis: AsyncRedis, log: AsyncLog) -> None:
    await log.open(STREAMS)
    async with Tails(redis, poll_interval=3600) as tails:
        tails.set_streams(STREAMS)
        await until(lambda: tails.next_of(STREAMS[2]) == 0)
        sequence = 0
        async with asyncio.timeout(10):
            while not tails.pushes:  # until the subscription stands
                await log.append(append(STREAMS[2], sequence, rows(0, 1)))
                sequence += 1
                await asyncio.sleep(0.01)
        await until(lambda: tails.next_of(STREAMS[2]) == sequence)
        polls = tails.polls
        await log.append(append(STREAMS[2], sequence, rows(0, 1)))
        await until(lambda: tails.next_of(STREAMS[2]) == sequence + 1)
        assert tails.polls == polls
        tails.set_streams(STREAMS[:1])
        await until(lambda: tails.next_of(STREAMS[0]) == 0)
        await log.append(append(STREAMS[0], 0, rows(0, 1)))
        await until(lambda: tails.next_of(STREAMS[0]) == 1)


async def test_polls_read_a_share_where_news_are_pushed(
    redis: AsyncRedis, log: AsyncLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails_module, "POLL_SHARE", 2)
    many = [StreamId("s", 0, shard) for shard in range(9)]
    await log.open(many)
    asked: list[int] = []
    async with Tails(redis, poll_interval=0.02) as tails:
        next_offsets = tails._log.next_offsets

        async def count(streams: list[StreamId], *damaged: object) -> dict[StreamId, int]:
            asked.append(len(streams))
            return await next_offsets(streams)

        monkeypatch.setattr(tails._log, "next_offsets", count)
        tails.set_streams(many)
        await until(lambda: all(tails.next_of(one) == 0 for one in many))
        await until(lambda: asked[-20:] == [2] * 20)
        # A change that nobody pushed is found in turn.
        for one in many:
            await redis.hset(stream_meta(one), "next", 7)  # type: ignore[misc]
        await until(lambda: all(tails.next_of(one) == 7 for one in many))
        tails.set_streams(many[1:])
        await until(lambda: len(asked) > 0 and asked[-1] == 2 and tails.next_of(many[0]) is None)
        tails.set_streams(many)
        await until(lambda: tails.next_of(many[0]) == 7)


@pytest.mark.parametrize("push", [True, False])
async def test_tails_outlive_the_server(make_redis_server: MakeServer, push: bool) -> None:
    server = make_redis_server()
    client = connect(server.url)
    log = AsyncLog(client)
    await log.open(STREAMS)
    await log.append(append(STREAMS[0], 0, rows(0, 9)))
    async with Tails(client, poll_interval=0.02, push=push) as tails:
        tails.set_streams(STREAMS)
        await until(lambda: tails.next_of(STREAMS[0]) == 9)
        server.kill()
        await until(lambda: tails.error is not None)
        assert isinstance(tails.error, StoreUnavailable)
        assert tails.next_of(STREAMS[0]) == 9
        await asyncio.to_thread(server.start)
        await log.open(STREAMS)
        await until(lambda: tails.error is None and tails.next_of(STREAMS[0]) == 0)  # all was lost
        pushes = tails.pushes
        for sequence in range(1000):
            await log.append(append(STREAMS[0], sequence, rows(0, 1)))
            if tails.pushes > pushes or not push:
                break
            await asyncio.sleep(0.01)
        assert not push or tails.pushes > pushes
        await until(lambda: tails.next_of(STREAMS[0]) == sequence + 1)
    await client.aclose()


async def test_a_callback_that_fails_stops_nothing(
    redis: AsyncRedis, log: AsyncLog, caplog: pytest.LogCaptureFixture
) -> None:
    await log.open(STREAMS)

    def fail(stream: StreamId, next: int | None) -> None:
        raise ZeroDivisionError

    async with Tails(redis, poll_interval=0.02, on_change=fail) as tails:
        tails.set_streams(STREAMS)
        await until(lambda: tails.next_of(STREAMS[2]) == 0)
        await log.append(append(STREAMS[2], 0, rows(0, 1)))
        await until(lambda: tails.next_of(STREAMS[2]) == 1)
    assert "the callback for s.0.2 failed" in caplog.text


async def test_starting_and_closing_twice_is_harmless(redis: AsyncRedis) -> None:
    tails = Tails(redis)
    tails.start()
    tails.start()
    await tails.close()
    await tails.close()
    with pytest.raises(InvalidOption):
        Tails(redis, poll_interval=0)
