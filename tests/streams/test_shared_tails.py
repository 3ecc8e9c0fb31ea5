"""Several readers share one Tails: each hears of its own streams, and of none twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.tails import Tails
from streamlease.streams.log.watches import Watch
from streamlease.streams.redis.connection import AsyncRedis
from tests.streams.helpers import append, rows

A, B = StreamId("s", 0, 0), StreamId("s", 0, 1)
Heard = list[tuple[StreamId, int | None]]


class Reader:
    """A watch, what it heard, and a way to wait for it."""

    def __init__(self, shared: Tails, *streams: StreamId) -> None:
        self.heard: Heard = []
        self._news = asyncio.Event()
        self.watch: Watch = shared.watch(self._hear)
        self.watch.set_streams(streams)

    def _hear(self, stream: StreamId, next: int | None) -> None:
        self.heard.append((stream, next))
        self._news.set()

    async def until(self, said: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not said():
                self._news.clear()
                await self._news.wait()


async def test_each_reader_hears_of_its_own_streams(redis: AsyncRedis) -> None:
    log, shared = AsyncLog(redis), Tails(redis, poll_interval=0.02)
    await log.open([A, B])
    one, two = Reader(shared, A), Reader(shared, A, B)
    await log.append(append(A, 0, rows(0, 3)))
    await log.append(append(B, 0, rows(0, 2)))
    await one.until(lambda: one.watch.next_of(A) == 3)
    await two.until(lambda: (two.watch.next_of(A), two.watch.next_of(B)) == (3, 2))
    assert one.watch.next_of(B) is None
    assert {stream for stream, _ in one.heard} == {A}
    assert one.heard == sorted(set(one.heard), key=one.heard.index), "it heard something twice"
    one.watch.close()
    await log.append(append(A, 1, rows(3, 1)))
    await two.until(lambda: two.watch.next_of(A) == 4)
    assert (A, 4) not in one.heard
    two.watch.close()


async def test_what_another_reader_knows_is_news_to_one_that_comes_later(redis: AsyncRedis) -> None:
    log, shared = AsyncLog(redis), Tails(redis, poll_interval=3600)
    await log.open([A])
    await log.append(append(A, 0, rows(0, 3)))
    one = Reader(shared, A)
    await one.until(lambda: one.watch.next_of(A) == 3)
    two = Reader(shared)
    two.watch.set_streams([A])
    await two.until(lambda: (A, 3) in two.heard)
    one.watch.close()
    two.watch.close()


async def test_each_reader_is_told_of_a_stream_that_redis_lost_the_end_of(redis: AsyncRedis) -> None:
    shared = Tails(redis, push=False, poll_interval=3600)
    shared._closed = True  # nothing is polled: what is known is set here
    one, two = Reader(shared, A, B), Reader(shared, A)
    for next in (3, 1):
        shared.set_end(A, next)
        shared.set_end(B, 2)
    assert (one.watch.lowered, two.watch.lowered) == ({A}, {A})
    one.watch.lowered.clear()
    shared.set_end(A, 2)
    assert (one.watch.lowered, two.watch.lowered) == (set(), {A})
    assert one.heard == [(A, 3), (B, 2), (A, 1), (A, 2)]
    one.watch.close()
    two.watch.close()
