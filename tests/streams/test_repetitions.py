"""What wrote, writes again when it is repeated.

A call whose reply was lost is repeated, on another connection perhaps. WAIT and WAITAOF behind it cover what
their own connection wrote: if a repetition wrote nothing, what was written first would count as durable
though nobody had waited for it. So each script that is waited for is called twice here, in one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

import streamlease
from streamlease.streams.epochs.batch_epochs import BatchEpochs
from streamlease.streams.redis import durable
from streamlease.streams.redis.cluster_slots import Answer
from streamlease.streams.redis.connection import Command
from streamlease.streams.redis.scripts import Call
from tests.streams.delivering import Rig, rig

SECONDS = 20.0
ENTERED = {"log/open", "epochs/enter", "epochs/line"}
KEPT = {"epochs/take_over", "epochs/decide", "epochs/move", "epochs/record"}


class Twice:
    """Runs each call twice, and notes which scripts wrote, and which of them did so only once."""

    def __init__(self, store: redis.Redis) -> None:
        self._store = store
        self.wrote: set[str] = set()
        self.only_once: set[str] = set()

    async def run(self, client: object, calls: Sequence[Call], waits: Sequence[Command]) -> list[Answer]:
        """In place of `durable.run_waiting`."""
        assert not waits
        return [Answer(self._twice(call), ()) for call in calls]

    def _twice(self, call: Call) -> Any:
        self._store.script_load(call.script.text)
        with self._store.pipeline(transaction=True) as together:
            together.info("persistence")
            for _ in range(2):
                together.execute_command(*call.command)
                together.info("persistence")
            before, reply, between, _, after = together.execute(raise_on_error=False)
        first, second = (
            later["rdb_changes_since_last_save"] - earlier["rdb_changes_since_last_save"]
            for earlier, later in ((before, between), (between, after))
        )
        if first:
            self.wrote.add(call.script.name.rpartition(".")[2])
        if first and not second:
            self.only_once.add(call.script.name.rpartition(".")[2])
        return reply


@pytest.fixture
def twice(embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Twice]:
    with redis.Redis.from_url(embedded_redis_url) as store:
        made = Twice(store)
        monkeypatch.setattr(durable, "run_waiting", made.run)
        yield made


async def test_groups(twice: Twice, embedded_redis_url: str) -> None:
    async with streamlease.connect(embedded_redis_url) as client:
        await client.create_space("s", ["s/#"], streams=2)
        async with client.publisher() as publisher:
            await publisher.send_many("s/a", [b"1", b"2"])
            for number in range(40):
                await publisher.submit(f"s/{number}", b"1")
        async with client.subscribe("$shared/g/s/#", start="earliest") as batches:
            await (await anext(batches)).commit()
        await client.alter_space("s", streams=3)
        await client.seal_space("s")
    assert twice.wrote >= {
        "log/open",
        "log/append",
        "log/append_many",
        "log/seal",
        "registry/commit",
        "leader/journal_append",
    }
    assert twice.only_once == set()


async def test_epochs(twice: Twice, embedded_redis_url: str) -> None:
    async with streamlease.connect(embedded_redis_url) as client:
        await client.create_space("s", ["s/#"], streams=2, epochs=1)
        async with client.epoch_publisher("s", "p") as publisher:
            await publisher.send_many("s/a", [b"1", b"2"], epoch=1)
            await publisher.advance([2])
        async with client.listen("s/#", start="earliest", epochs="atomic") as items, asyncio.timeout(SECONDS):
            await anext(items)
        await client.seal_space("s")
    assert twice.wrote >= {*ENTERED, *KEPT, "epochs/stage_many", "epochs/seal_epochs", "log/seal"}
    assert twice.only_once == set()


async def test_sinks(twice: Twice, embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        await world.delivery().deliver(0, world.stage(0, range(100), 2, "a"))
    assert twice.wrote >= {"log/open", "staged/decide", "staged/append_staged"}
    assert twice.only_once == set()


async def test_sinks_whose_batches_are_epochs(twice: Twice, embedded_redis_url: str) -> None:
    async with streamlease.connect(embedded_redis_url) as client:
        space = await client.create_space("t", ["t/#"], streams=2, epochs=1)
        world = Rig(embedded_redis_url, client.redis, space)
        staged = world.stage(0, range(100), 2, "a")
        await BatchEpochs(client.redis, space, "sink", SECONDS).deliver(0, staged)
    assert twice.wrote >= {*ENTERED, "epochs/stage_batch"}
    assert twice.only_once == set()
