"""A publisher that stages: the parts of one epoch each, in staged logs; and who may publish where."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from streamlease.protocol.errors import InvalidInput, StreamSealed
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.epoch_fields import Stamp
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.staged_log import StagedLog
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.epoch_staging import EpochStaging
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.spaces.spaces import Space, SpaceStore


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def space(redis: AsyncRedis) -> Space:
    return await SpaceStore(redis).create("clicks", ["clicks/#"], streams=3, epochs=1)


class Told:
    """What a publisher staged, as it was told."""

    def __init__(self) -> None:
        self.parts: list[tuple[tuple[int, ...], StreamId, int, int]] = []

    def __call__(self, stamp: Stamp, stream: StreamId, first: int, rows: int) -> None:
        self.parts.append((stamp.epoch, stream, first, rows))

    def rows(self) -> dict[tuple[int, ...], int]:
        found: dict[tuple[int, ...], int] = {}
        for epoch, _, _, rows in self.parts:
            found[epoch] = found.get(epoch, 0) + rows
        return found


class Third:
    """The third incarnation of a publisher."""

    first_incarnation = 3 << 20


def publisher(redis: AsyncRedis, told: Told, **options: object) -> Publisher:
    staging = EpochStaging("ingest-1", Third(), StagedLog(redis), lambda space: None, told)
    return Publisher(redis, staging=staging, **options)  # type: ignore[arg-type]


async def staged(redis: AsyncRedis, space: Space) -> dict[bytes, int]:
    """All that is counted as staged in the space."""
    found: dict[bytes, int] = {}
    for stream in space.streams():
        ((*flat,),) = await ask(redis, [("HGETALL", keys.staged_epochs(stream))])
        for field, count in zip(flat[::2], flat[1::2], strict=True):
            found[field] = found.get(field, 0) + int(count)
    return found


def stamp(epoch: int) -> Stamp:
    return Stamp((epoch,), "ingest-1 3")


async def test_parts_are_of_one_epoch_each_and_told(redis: AsyncRedis, space: Space) -> None:
    told = Told()
    async with publisher(redis, told) as made:
        for epoch in (4, 5, 4):
            made.stamp(stamp(epoch))
            for number in range(40):
                await made.submit(f"clicks/{number % 7}", b"message %d" % number)
        await made.flush()
        made.stamp(stamp(6))
        await made.send_many([f"clicks/{number % 7}" for number in range(900)], [b"x"] * 900)
        batch = pa.RecordBatch.from_pydict({"payload": [b"y"] * 500})
        await made.send_batch("clicks/0", batch)
        assert (await made.send("clicks/1", b"one"))[0] in space.streams()
    assert told.rows() == {(4,): 80, (5,): 40, (6,): 1401}
    assert await staged(redis, space) == {b"4 ingest-1 3": 80, b"5 ingest-1 3": 40, b"6 ingest-1 3": 1401}
    assert set((await AsyncLog(redis).next_offsets(space.streams())).values()) == {0}, "nothing is published"
    ranges = sorted((stream, first, first + rows) for _, stream, first, rows in told.parts)
    for (stream, _, end), (next_stream, begin, _) in itertools.pairwise(ranges):
        assert begin == (end if stream == next_stream else 0), "each offset is told once"


async def test_the_incarnation_is_that_of_the_publisher(redis: AsyncRedis, space: Space) -> None:
    async with publisher(redis, Told()) as made:
        made.stamp(stamp(4))
        stream, _ = await made.send("clicks/1", b"x")
    (record,) = await ask(redis, [("HGET", keys.staged_publishers(stream), "ingest-1")])
    assert record.split()[:2] == [str(3 << 20).encode(), b"0"], "and it is remembered when it ends"


async def test_an_awaited_message_is_staged_however_often(redis: AsyncRedis, space: Space) -> None:
    """A message alone may not take the short way, which leads into the stream."""
    told = Told()
    async with publisher(redis, told) as made:
        made.stamp(stamp(4))
        for _ in range(20):
            await made.send("clicks/1", b"x")
        assert not made.lends
    assert told.rows() == {(4,): 20}
    assert sum((await staged(redis, space)).values()) == 20


async def test_a_sealed_space_takes_no_more(redis: AsyncRedis, space: Space) -> None:
    async with publisher(redis, Told()) as made:
        made.stamp(stamp(4))
        await made.send("clicks/1", b"x")
        await SpaceStore(redis).generations.seal("clicks")
        with pytest.raises(StreamSealed):
            await made.send("clicks/1", b"y")


async def test_an_ordinary_publisher_is_refused_by_a_space_with_epochs(
    redis: AsyncRedis, space: Space
) -> None:
    await SpaceStore(redis).create("plain", ["plain/#"])
    batch = pa.RecordBatch.from_pydict({"payload": [b"y"] * 5})
    async with Publisher(redis) as made:
        await made.send("plain/1", b"x")
        for attempt in (
            lambda: made.send("clicks/1", b"x"),
            lambda: made.submit("clicks/1", b"x"),
            lambda: made.send_many("clicks/1", [b"x"]),
            lambda: made.send_many(["plain/1", "clicks/1"], [b"x", b"y"]),
            lambda: made.send_batch("clicks/1", batch),
        ):
            with pytest.raises(InvalidInput, match="space clicks has epochs, so its messages come from"):
                await attempt()  # type: ignore[no-untyped-call]
        await made.flush()
    assert set((await AsyncLog(redis).next_offsets(space.streams())).values()) == {0}
    assert await staged(redis, space) == {}


async def test_a_space_that_is_made_anew_with_epochs_gets_nothing_of_before(redis: AsyncRedis) -> None:
    spaces = SpaceStore(redis)
    await spaces.create("clicks", ["clicks/#"])
    async with Publisher(redis) as made:
        await made.send("clicks/1", b"x")
        await spaces.delete("clicks")
        again = await spaces.create("clicks", ["clicks/#"], epochs=1)
        with pytest.raises(InvalidInput, match="has epochs"):
            await asyncio.wait_for(made.send("clicks/1", b"y"), 20)
    assert set((await AsyncLog(redis).next_offsets(again.streams())).values()) == {0}
