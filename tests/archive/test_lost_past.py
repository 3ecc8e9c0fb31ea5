"""Redis has lost messages that were archived; and what is told of messages that the archive let go of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.protocol.errors import HistoryTruncated
from streamlease.streams.archive import archiver as archiver_module
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.upkeep_steps import retire
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import BlockingRedis, ask, run_blocking
from streamlease.streams.spaces.definitions import Space
from tests.archive.helpers import all_of, archive, archiver, in_table, publish, rows, same, space_of, trim_all


def lose(blocking: BlockingRedis, space: Space, next: int) -> None:
    """A failover takes back what was written to a stream from an offset on."""
    (stream,) = space.streams()
    (kept,) = run_blocking(ask(blocking, [("XRANGE", stream_log(stream), "-", f"{next}-0")]))
    commands: list[Any] = [("DEL", stream_log(stream))]
    commands += [("XADD", stream_log(stream), id, *fields) for id, fields in kept]
    commands.append(("HSET", stream_meta(stream), "next", next))
    run_blocking(ask(blocking, commands))


async def published(client: Client, text: str, count: int) -> None:
    """By a publisher that does not know what was lost."""
    async with client.publisher() as publisher:
        for number in range(count):
            await publisher.submit("flights/x", f"{text} {number}".encode())
        await publisher.flush()


@pytest.mark.parametrize("left", ["less", "more"])
async def test_what_a_failover_took_leaves_the_table(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    space = await space_of(client, uri, streams=1)
    await published(client, "kept", 50)
    archive(blocking, space)
    await published(client, "lost", 30)
    with monkeypatch.context() as patched:

        def dies(*about: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(archiver_module, "record", dies)
        with pytest.raises(KeyboardInterrupt):
            archive(blocking, space)
    assert len(in_table(blocking, space)) == 80
    lose(blocking, space, 50)
    await published(client, "new", 10 if left == "less" else 60)
    whole = await rows(client, space)
    archive(blocking, space)
    assert in_table(blocking, space) == all_of(whole)
    await trim_all(client, space)
    assert same(whole, await rows(client, space))


async def test_what_is_recorded_is_there(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, uri, streams=1)
    (stream,) = space.streams()
    await published(client, "lost", 30)
    record, lost = archiver_module.record, []

    async def again() -> None:
        await published(client, "new", 30)

    def late(redis: BlockingRedis, term: int, changes: Any) -> None:
        """The failover is between the commit and the record."""
        if not lost:
            lost.append(stream)
            lose(blocking, space, 0)
        record(redis, term, changes)

    monkeypatch.setattr(archiver_module, "record", late)
    assert archive(blocking, space).messages == 30  # and all of them are taken out again
    assert recorded(blocking, [stream])[stream].files == []
    assert in_table(blocking, space) == []
    await again()
    whole = await rows(client, space)
    archive(blocking, space)
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)


async def test_the_oldest_that_is_left_is_that_of_the_archive(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri, streams=1)
    (stream,) = space.streams()
    for first in (0, 100):
        await publish(client, first, 100)
        archive(blocking, space)
    await publish(client, 200, 100)
    archive(blocking, space)
    await trim_all(client, space)
    assert retire(archiver(blocking, space), {stream: 100}) == {stream: 100}
    log = AsyncLog(client.redis)
    with pytest.raises(HistoryTruncated) as caught:
        await log.read(stream, 0)
    assert caught.value.oldest == 100
    with pytest.raises(HistoryTruncated):
        await log.since(stream, datetime(2020, 1, 1, tzinfo=UTC))
    assert sum(batch.num_rows for batch in await log.read(stream, 100)) > 0
