"""Who waits for the next item may be cancelled: nothing is lost, nothing comes twice, and it goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier, Snapshot
from streamlease.agent.shielded import ShieldedItems
from tests.agent.helpers import SECONDS, until
from tests.epochs.playing import hand, kept, settled

Opened = AbstractAsyncContextManager[AsyncIterator[Any]]


# ---------------------------------------------------------------- by itself


class Steps:
    """A generator that waits for what a test lets come."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[Sequence[int] | Exception] = asyncio.Queue()
        self.ended = False
        self.items = ShieldedItems(self._run(), "steps of a test")

    async def _run(self) -> AsyncGenerator[Sequence[int]]:
        try:
            while True:
                come = await self.coming.get()
                if isinstance(come, Exception):
                    raise come
                yield come
        finally:
            self.ended = True

    def waiting(self) -> asyncio.Task[int]:
        return asyncio.create_task(self.items.next())


async def begun(task: asyncio.Task[int]) -> asyncio.Task[int]:
    """The task, once it waits, and the step with it."""
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_what_came_for_a_wait_that_was_cancelled_comes_next() -> None:
    steps = Steps()
    for _ in range(3):
        task = await begun(steps.waiting())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    for come in ([10, 11], [30, 31]):
        steps.coming.put_nowait(come)
    assert [await steps.items.next() for _ in range(4)] == [10, 11, 30, 31]
    await steps.items.close()
    assert steps.ended


async def test_each_of_many_that_wait_gets_its_own() -> None:
    steps = Steps()
    tasks = [await begun(steps.waiting()) for _ in range(5)]
    tasks.pop(2).cancel()
    for come in ([1], [], [2, 3], [4]):
        steps.coming.put_nowait(come)
    assert sorted(await asyncio.gather(*tasks)) == [1, 2, 3, 4]
    await steps.items.close()


async def test_an_error_comes_once_behind_what_came_before_it_and_then_it_is_over() -> None:
    steps = Steps()
    steps.coming.put_nowait([1])
    steps.coming.put_nowait(ValueError("boom"))
    assert await steps.items.next() == 1
    with pytest.raises(ValueError, match="boom"):
        await steps.items.next()
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await steps.items.next()
    await steps.items.close()


async def test_an_error_that_nobody_waited_for_comes_next() -> None:
    steps = Steps()
    task = await begun(steps.waiting())
    task.cancel()
    steps.coming.put_nowait(ValueError("boom"))
    await until(lambda: steps.ended)
    with pytest.raises(ValueError, match="boom"):
        await steps.items.next()
    await steps.items.close()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_to_close_it_ends_who_waits(*, cancelled: bool) -> None:
    steps = Steps()
    task = await begun(steps.waiting())
    if cancelled:
        task.cancel()
    await steps.items.close()
    await asyncio.wait([task])
    assert steps.ended
    assert task.cancelled() if cancelled else isinstance(task.exception(), StopAsyncIteration)
    with pytest.raises(StopAsyncIteration):
        await steps.items.next()


@pytest.mark.parametrize("turns", range(4))
async def test_to_close_it_ends_who_has_just_begun_to_wait(turns: int) -> None:
    """Also before the first step has begun, which then never runs."""
    steps = Steps()
    task = steps.waiting()
    for _ in range(turns):
        await asyncio.sleep(0)
    await steps.items.close()
    async with asyncio.timeout(SECONDS):
        await asyncio.wait([task])
    assert isinstance(task.exception(), StopAsyncIteration)


# ---------------------------------------------------------------- of subscriptions


def payloads(found: Any) -> list[bytes]:
    """Of what a subscription hands out: its messages, in order."""
    if isinstance(found, Frontier | Snapshot):
        return []
    if isinstance(found, EpochBatch):
        return [payload for batch in found.batches for payload in batch.column("payload").to_pylist()]
    return [message.payload for message in found.messages] if hasattr(found, "messages") else [found.payload]


async def messages(publish: Callable[[int], Awaitable[object]], opened: Opened) -> list[bytes]:
    """Hundred messages as they are handed out, while most waits are cut short."""
    rolls, got = random.Random(7), list[bytes]()

    async def publish_all() -> None:
        for number in range(100):
            await publish(number)
            await asyncio.sleep(rolls.random() / 200)

    async with asyncio.timeout(SECONDS), opened as items, asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(publish_all())
        cut = 0
        while len(got) < 100:
            waiting = asyncio.create_task(anext(items))
            await asyncio.wait([waiting], timeout=0.0 if publishing.done() and cut < 500 else 0.002)
            cut += not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                got += payloads(waiting.result())
    assert cut > 20
    return got


LISTEN: dict[str, Callable[[Client], Opened]] = {
    "listen": lambda client: client.listen("a/#"),
    "collection": lambda client: client.collection("a/#"),
    "group": lambda client: client.subscribe("$shared/g/a/#"),
}


@pytest.mark.parametrize("kind", LISTEN)
async def test_waits_that_are_cut_short_cost_no_message(client: Client, kind: str) -> None:
    await client.create_space("s", ["a/#"], streams=1, collection=kind == "collection")
    async with client.publisher() as publisher:

        async def publish(number: int) -> None:
            await publisher.send("a/x", b"%d" % number)

        got = await messages(publish, LISTEN[kind](client))
    assert got == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("mode", ["atomic", "eager"])
async def test_waits_that_are_cut_short_cost_no_epoch(client: Client, mode: Any) -> None:
    await client.create_space("s", ["a/#"], streams=1, epochs=1)
    async with client.epoch_publisher("s", "p") as publisher:

        async def publish(number: int) -> None:
            await publisher.submit("a/x", b"%d" % number, epoch=number)
            await publisher.advance(number + 1)

        got = await messages(publish, client.listen("a/#", epochs=mode))
    if mode == "eager":  # one epoch may come as it is staged, and one before it at its boundary, later
        got.sort(key=int)
    assert got == [b"%d" % number for number in range(100)]


async def test_positions_are_those_of_what_was_handed_out(client: Client) -> None:
    """What a step brought for a wait that was cancelled is not behind them: else it would be lost."""
    await client.create_space("space", ["space/#"], streams=1, epochs=1)
    made, keeper = await hand(client.redis), await kept(client)
    async with asyncio.timeout(SECONDS), client.listen("space/#", epochs="atomic") as items:
        assert isinstance(await anext(items), Snapshot)
        waiting = asyncio.create_task(anext(items))
        await asyncio.sleep(0)
        (step,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("reading the epochs")]
        waiting.cancel()
        await made.send(0, "x", shard=0)
        await made.advance(1)
        await settled(keeper)
        await asyncio.wait([step])
        assert items.positions == {"space.0.0": 0}
        assert payloads(await anext(items)) == [b"x"]
        assert items.positions == {"space.0.0": 1}
