"""Batches of a sink: whatever is repeated, killed, divided otherwise or altered meanwhile, each row once."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from redis.exceptions import ConnectionError, ResponseError

from streamlease.protocol.errors import Fenced, Indefinite, StoreUnavailable, StreamSealed
from streamlease.protocol.ids import StreamId
from streamlease.streams.connection import AsyncRedis, ask, connect, connect_blocking
from streamlease.streams.delivery import Delivery
from streamlease.streams.entries import encode_batch
from streamlease.streams.log import AsyncLog
from streamlease.streams.spaces import Space, SpaceStore
from streamlease.streams.splitting import split
from streamlease.streams.staging import Lost, Plan, Staged, Stager

SINK = "q"
SCHEMA: dict[str, Any] = {"columns": [{"name": "n", "type": "int64"}]}


class Rig:
    """A space, and a sink that writes into it."""

    def __init__(self, url: str, redis: AsyncRedis, space: Space) -> None:
        self.url = url
        self.redis = redis
        self.space = space
        self.log = AsyncLog(redis)
        self.spaces = SpaceStore(redis)

    def delivery(self) -> Delivery:
        return Delivery(self.redis, SINK, "spark-q")

    def stage(self, batch: int, numbers: Sequence[int], tasks: int, token: str) -> list[Staged]:
        """Let `tasks` tasks stage these numbers; the keys in the order of tasks."""
        staged: list[Staged] = []
        schema = self.space.newest_schema
        with connect_blocking(self.url) as redis:
            for task in range(tasks):
                stager = Stager(redis, SINK, batch, f"{token}-{task}")
                mine = [n for n in numbers if n % tasks == task]
                for begin in range(0, len(mine), 10):
                    some = mine[begin : begin + 10]
                    columns = {"topic": [f"t/{n % 7}" for n in some], "key": [b"%d" % n for n in some]}
                    values = {"payload": [b"%d" % n for n in some]} if schema is None else {"n": some}
                    for stream, piece in split(
                        pa.record_batch({**columns, **values}), self.space.stream_for, False, 2**20
                    ):
                        stager.add(stream, encode_batch(piece, "zstd", schema))
                staged += stager.finish()
        return staged

    async def numbers(self) -> list[int]:
        """All numbers in the space, sorted."""
        found = []
        space = await self.spaces.get("t")
        for stream in space.streams():
            for batch in await self.log.read(stream, 0):
                if "n" in batch.schema.names:
                    found += batch.column("n").to_pylist()
                else:
                    found += [int(payload) for payload in batch.column("payload").to_pylist()]
        return sorted(found)

    async def left(self) -> list[bytes]:
        """Staged keys that are still there."""
        (keys,) = await ask(self.redis, [("KEYS", "*staged*")])
        return list(keys)


@asynccontextmanager
async def rig(url: str, schema: dict[str, Any] | None = None) -> AsyncIterator[Rig]:
    async with connect(url) as redis:
        space = await SpaceStore(redis).create("t", ["t/#"], streams=3, schema=schema)
        yield Rig(url, redis, space)


async def test_a_repeated_batch_is_the_first_one(real_redis_url: str) -> None:
    async with rig(real_redis_url) as world:
        first = world.stage(0, range(100), 2, "a")
        assert (await world.delivery().deliver(0, first)).rows == 100
        for tasks in (1, 2, 5):
            again = world.stage(0, range(100), tasks, f"b{tasks}")
            done = await world.delivery().deliver(0, again)
            assert (done.rows, done.repeated) == (0, True)
        assert (await world.delivery().deliver(1, world.stage(1, range(100, 130), 3, "c"))).rows == 30
        assert await world.numbers() == list(range(130))
        assert await world.left() == []


async def test_an_empty_batch_is_a_batch(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        assert (await world.delivery().deliver(3, [])).rows == 0
        assert await world.numbers() == []


@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_any_step_and_divided_otherwise(embedded_redis_url: str, seed: int) -> None:
    """The driver dies at each of its exchanges in turn; the batch is made again with other tasks."""
    choose = random.Random(seed)
    async with rig(embedded_redis_url) as world:
        for batch in range(8):
            numbers = range(batch * 50, batch * 50 + 50)
            for attempt in range(6):
                shuffled = choose.sample(numbers, 50)
                staged = world.stage(batch, shuffled, choose.randint(1, 5), f"{batch}.{attempt}")
                dying: Any = Dying(world.redis, choose.randint(0, 6), sends_last=choose.random() < 0.5)
                with suppress(StoreUnavailable, Indefinite):
                    await Delivery(dying, SINK, "spark-q").deliver(batch, staged)
                    break
            await world.delivery().deliver(batch, world.stage(batch, numbers, 2, f"{batch}.last"))
        assert await world.numbers() == list(range(400))
        assert await world.left() == []


class Dying:
    """A client that loses its server: before an exchange, or after sending it."""

    def __init__(self, redis: Any, exchanges: int, *, sends_last: bool) -> None:
        self.connection_pool = DyingPool(redis.connection_pool, exchanges, sends_last)


class DyingPool:
    """Gives connections for some exchanges; the last one may send but hears nothing."""

    def __init__(self, pool: Any, exchanges: int, sends_last: bool) -> None:
        self._pool = pool
        self._left = exchanges
        self._sends_last = sends_last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def get_connection(self) -> Any:
        if self._left == 0 and not self._sends_last:
            raise ConnectionError("gone")
        if self._left < 0:
            raise ConnectionError("gone")
        self._left -= 1
        connection = await self._pool.get_connection()
        if self._left == -1:
            return Deaf(connection)
        return connection

    async def release(self, connection: Any) -> None:
        await self._pool.release(connection.real if isinstance(connection, Deaf) else connection)


class Deaf:
    """A connection over which everything is sent and done, and no reply arrives."""

    def __init__(self, connection: Any) -> None:
        self.real = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def read_response(self, **options: Any) -> Any:
        with suppress(ResponseError):
            await self.real.read_response(**options)
        raise ConnectionError("gone")


async def test_an_older_batch_is_refused_or_skipped(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        await world.delivery().deliver(5, world.stage(5, range(10), 1, "a"))
        older = world.stage(4, range(10), 1, "b")
        with pytest.raises(Fenced, match="wrote batch 5 already, and this one writes batch 4"):
            await world.delivery().deliver(4, older)
        assert (await world.delivery().deliver(4, older, skip_past=True)).past
        assert await world.left() == []
        assert await world.numbers() == list(range(10))


async def test_a_space_altered_between_staging_and_commit(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        staged = world.stage(0, range(100), 2, "a")
        await world.spaces.alter("t", streams=5)
        assert (await world.delivery().deliver(0, staged)).rows == 100
        assert await world.numbers() == list(range(100))
        space = await world.spaces.get("t")
        newest = [s for s in space.streams() if s.generation == space.newest.number]
        for stream in newest:
            for batch in await world.log.read(stream, 0):
                topics = batch.column("topic").to_pylist()
                assert {space.stream_for(topic) for topic in topics} == {stream}
                assert batch.column("timestamp") == batch.column("append_timestamp")
        again = await world.delivery().deliver(0, world.stage(0, range(100), 3, "b"))
        assert (again.rows, again.repeated) == (0, True)
        assert await world.left() == []


async def test_a_schema_that_got_a_column_between_staging_and_commit(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url, SCHEMA) as world:
        staged = world.stage(0, range(40), 2, "a")
        wider = {"columns": [*SCHEMA["columns"], {"name": "m", "type": "string"}]}
        await world.spaces.alter_schema("t", wider)
        await world.delivery().deliver(0, staged)
        assert await world.numbers() == list(range(40))


async def test_a_space_sealed_for_good_is_one_clear_error(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        staged = world.stage(0, range(10), 1, "a")
        await world.spaces.seal("t")
        with pytest.raises(StreamSealed, match="space t is sealed"):
            await world.delivery().deliver(0, staged)


async def test_staged_rows_that_expired_are_taken_from_the_repetition(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        first = world.stage(0, range(60), 2, "a")
        delivery = world.delivery()
        await delivery._decide(0, "", Plan.of(first), False)
        for key in await world.left():
            if b":staged:" in key:
                await ask(world.redis, [("UNLINK", key)])
        with pytest.raises(Lost, match="are gone"):
            await world.delivery().deliver(0, first)
        done = await world.delivery().deliver(0, world.stage(0, range(60), 3, "b"))
        assert done.rows == 60
        assert await world.numbers() == list(range(60))


def test_a_plan_survives_its_text() -> None:
    stream = StreamId("t", 0, 1)
    plan = Plan.of([Staged(stream, "a.0", 1, 9_000_000), Staged(stream, "b.0", 1, 9_000_000)])
    assert plan.parts == {stream: [["a.0"], ["b.0"]]}
    assert Plan.load(plan.dump()).parts == plan.parts
