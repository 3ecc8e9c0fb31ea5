"""Many streams new at once: each is read once its news are pushed, though nobody knows where it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from streamlease.agent.client import Client
from streamlease.agent.dividing import News
from streamlease.agent.fetching import Fetching
from streamlease.protocol.ids import StreamId
from streamlease.streams.log import poll_order
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import ask
from tests.agent.helpers import SUB, in_order, publish, take
from tests.streams.helpers import until

STREAMS = 40


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_order, "MANY_NEW", 1)
    monkeypatch.setattr(poll_order, "COMING_SECONDS", 60)  # longer than a test may take


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Counter[StreamId]:
    """How often the end of each stream was asked for."""
    found: Counter[StreamId] = Counter()
    next_offsets = AsyncLog.next_offsets

    async def counted(log: AsyncLog, streams: Iterable[StreamId], *more: object) -> dict[StreamId, int]:
        wanted = [*streams]
        found.update(wanted)
        return await next_offsets(log, wanted, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(AsyncLog, "next_offsets", counted)
    return found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[News]:
    """What is read, in order."""
    found: list[News] = []
    read = Fetching._read

    def noted(fetching: Fetching, reading: list[News]) -> object:
        found.extend(reading)
        return read(fetching, reading)

    monkeypatch.setattr(Fetching, "_read", noted)
    return found


async def test_all_is_read_and_no_end_is_asked_for(
    client: Client, polled: Counter[StreamId], read: list[News]
) -> None:
    await client.create_space("s", ["a/#"], streams=STREAMS)
    await publish(client, range(200))
    async with client.subscribe(SUB, start="earliest") as reader:
        got = await take(reader, 200)
        await publish(client, range(200, 300))
        got += await take(reader, 100)
        await until(lambda: len({one.stream for one in read}) == STREAMS)  # those without a message, too
    assert sorted(got) == [*range(300)]
    assert in_order(got)
    unknown = [one.stream for one in read if one.end is None]
    assert len(unknown) == len({*unknown}) >= STREAMS - 1, "each once; the last one alone is not many"
    assert sum(polled[one] for one in unknown) <= STREAMS  # a share of each poll, in turn


async def test_a_stream_that_is_not_there_is_polled_as_any_other(
    client: Client, read: list[News], polled: Counter[StreamId]
) -> None:
    await client.create_space("s", ["a/#"], streams=STREAMS)
    await publish(client, range(200))
    gone = StreamId("s", 0, 3)
    async with client.subscribe("$shared/other/a/#", start="earliest") as reader:
        await take(reader, 200)
        await until(lambda: gone in {one.stream for one in read})
        read.clear()
        polled.clear()
        await ask(client.redis, [("DEL", stream_meta(gone))])
        held = reader.book.streams[str(gone)]
        reader._tails._tails.set_end(gone, None)
        reader._pushed(gone)
        await until(lambda: polled[gone] > 0)
        assert held.end_unknown is False
    assert [one.stream for one in read].count(gone) == 1, "it is not read again and again"
