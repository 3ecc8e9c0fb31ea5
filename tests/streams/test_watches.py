"""Readers that learn by reading where their streams end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamlease.protocol.ids import StreamId
from streamlease.streams.log import poll_order
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.connection import AsyncRedis
from tests.streams.helpers import append, rows, until

MANY = [StreamId("s", 0, shard) for shard in range(300)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[StreamId]:
    """Of which streams the end was asked for."""
    monkeypatch.setattr(poll_order, "MANY_NEW", 5)
    monkeypatch.setattr(poll_order, "COMING_SECONDS", 60)
    found: list[StreamId] = []
    next_offsets = AsyncLog.next_offsets

    async def noted(log: AsyncLog, streams: Sequence[StreamId], *more: object) -> dict[StreamId, int]:
        found.extend(streams)
        return await next_offsets(log, streams, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(AsyncLog, "next_offsets", noted)
    return found


async def test_who_reads_many_new_streams_is_told_when_they_are_pushed(
    redis: AsyncRedis, log: AsyncLog, asked: list[StreamId]
) -> None:
    await log.open(MANY)
    pushed: list[StreamId] = []
    changed: list[tuple[StreamId, int | None]] = []
    async with Tails(redis, poll_interval=3600) as tails:
        watch = tails.watch(lambda *change: changed.append(change), pushed.append)
        watch.set_streams(MANY)
        await until(lambda: len({*pushed} | {*asked}) == len(MANY))
        assert len(asked) <= 5  # the last ones are not many any more
        assert len(pushed) == len({*pushed}), "each once"
        one, other = pushed[:2]
        assert watch.next_of(one) is None
        watch.learn(one, 4)
        assert watch.next_of(one) == 4
        assert changed == [], "who has learnt it is not told"
        await log.append(append(one, 0, rows(0, 3)))
        watch.learn(one, 3)
        assert watch.next_of(one) == 4, "a read never takes the end back"
        await log.append(append(other, 0, rows(0, 3)))
        await until(lambda: (other, 3) in changed)
        asked.clear()
        watch.learn(other, None)
        await until(lambda: other in asked)  # it could not be read: it is polled


async def test_another_reader_of_the_stream_learns_it_by_a_poll_or_from_the_first(
    redis: AsyncRedis, log: AsyncLog, asked: list[StreamId]
) -> None:
    await log.open(MANY)
    changed: list[tuple[StreamId, int | None]] = []
    pushed: list[StreamId] = []
    async with Tails(redis, poll_interval=3600) as tails:
        first, second = tails.watch(None, pushed.append), tails.watch(lambda *change: changed.append(change))
        first.set_streams(MANY)
        second.set_streams(MANY[:1])
        await until(lambda: second.next_of(MANY[0]) == 0)
        await until(lambda: len({*pushed} | {*asked}) == len(MANY))
        assert MANY[0] not in pushed
        await redis.hset(stream_meta(MANY[0]), "next", 7)  # type: ignore[misc]
        first.learn(MANY[0], 7)
        assert changed == [(MANY[0], 0), (MANY[0], 7)]
        second.discard(MANY[0])
        first.learn(MANY[0], 8)
        assert len(changed) == 2
        first.close()
        first.learn(MANY[0], 9)
        assert first.next_of(MANY[0]) is None
