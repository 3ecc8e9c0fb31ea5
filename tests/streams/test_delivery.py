"""Batches of a sink: whatever is repeated, killed, divided otherwise or altered meanwhile, each row once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamlease.protocol.errors import Fenced, Indefinite, StoreUnavailable, StreamSealed
from streamlease.streams.publish.staged.batch_plan import BatchPlan
from streamlease.streams.publish.staged.delivery import Delivery
from streamlease.streams.publish.staged.staging import StagedLost
from streamlease.streams.redis.connection import ask
from tests.streams.delivering import SCHEMA, SINK, Dying, rig
from tests.streams.helpers import full
from tests.streams.schema_change import alter_schema


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


async def test_what_is_staged_is_delivered_when_there_is_no_memory(real_redis_url: str) -> None:
    """It takes the memory already, and a batch that fails would keep it."""
    async with rig(real_redis_url) as world:
        first = world.stage(0, range(100), 2, "a")
        with full(real_redis_url):
            assert (await world.delivery().deliver(0, first)).rows == 100
            again = await world.delivery().deliver(0, [])
            assert (again.rows, again.repeated) == (0, True)
        assert await world.numbers() == list(range(100))
        assert await world.left() == []


async def test_an_empty_batch_is_a_batch(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        first = await world.delivery().deliver(3, [])
        assert (first.rows, first.repeated) == (0, False)
        again = await world.delivery().deliver(3, world.stage(3, range(10), 1, "a"))
        assert (again.rows, again.repeated) == (0, True)
        assert await world.numbers() == []
        assert await world.left() == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
async def test_killed_at_any_step_and_divided_otherwise(embedded_redis_url: str, seed: int) -> None:
    """The driver dies at each of its exchanges in turn; the batch is made again with other tasks."""
    choose = random.Random(seed)
    async with rig(embedded_redis_url) as world:
        deaths = 0
        for batch in range(8):
            numbers = range(batch * 50, batch * 50 + 50)
            for attempt in range(6):
                shuffled = choose.sample(numbers, 50)
                staged = world.stage(batch, shuffled, choose.randint(1, 5), f"{batch}.{attempt}")
                dying: Any = Dying(world.redis, choose.randint(0, 6), sends_last=choose.random() < 0.5)
                try:
                    await Delivery(dying, SINK, "spark-q").deliver(batch, staged)
                    break
                except (StoreUnavailable, Indefinite):
                    deaths += 1
            await world.delivery().deliver(batch, world.stage(batch, numbers, 2, f"{batch}.last"))
        assert deaths > 8
        assert await world.numbers() == list(range(400))
        assert await world.left() == []


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
        await world.spaces.generations.alter("t", streams=5)
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
        await alter_schema(world.spaces, "t", wider)
        await world.delivery().deliver(0, staged)
        assert await world.numbers() == list(range(40))


async def test_a_space_sealed_for_good_is_one_clear_error(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        staged = world.stage(0, range(10), 1, "a")
        await world.spaces.generations.seal("t")
        with pytest.raises(StreamSealed, match="space t is sealed"):
            await world.delivery().deliver(0, staged)


async def test_staged_rows_that_expired_are_taken_from_the_repetition(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        first = world.stage(0, range(60), 2, "a")
        delivery = world.delivery()
        await delivery._decide(0, "", BatchPlan.of(first), False)
        for key in await world.left():
            if b":staged:" in key:
                await ask(world.redis, [("UNLINK", key)])
        with pytest.raises(StagedLost, match=r"0 of . entries are left of what was staged .* start again"):
            await world.delivery().deliver(0, first)
        done = await world.delivery().deliver(0, world.stage(0, range(60), 3, "b"))
        assert done.rows == 60
        assert await world.numbers() == list(range(60))
