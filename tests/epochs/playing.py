"""Publishers by hand, a keeper, and readers, for tests that look at what a subscription hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from streamlease.agent.client import Client
from streamlease.agent.epochs.epoch_items import Aborted, EpochBatch, EpochItem, Frontier, Snapshot
from streamlease.agent.epochs.epoch_reading import EpochSubscription
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row, encode_message
from streamlease.streams.entries.epoch_fields import with_epoch
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.lines import StagedPart
from streamlease.streams.epochs.keeping import INCARNATIONS, Keeper
from streamlease.streams.epochs.staged_log import StagedLog
from streamlease.streams.epochs.writing import LineWriter, lose
from streamlease.streams.log.log import Append, Appended
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.durability import MEMORY
from streamlease.testing.memory.memory_server import MemoryServer

SECONDS = 30.0


class Hand:
    """One incarnation of a publisher, whose every act a test says."""

    def __init__(self, redis: AsyncRedis, name: str, space: str = "space") -> None:
        self.name = name
        self._redis = redis
        self._space = space
        self._writer = LineWriter(redis, space, name)
        self._sequences: dict[StreamId, int] = {}
        self._staged: dict[tuple[Epoch, StreamId], list[tuple[int, int]]] = {}

    async def enter(self) -> Hand:
        await self._writer.enter()
        return self

    async def send(self, epoch: int | Epoch, *payloads: str, shard: int = 0, topic: str = "") -> None:
        """Stage each payload, one entry each."""
        at = (epoch,) if isinstance(epoch, int) else epoch
        stream = StreamId(self._space, 0, shard)
        for payload in payloads:
            sequence = self._sequences.get(stream, 0)
            entry = encode_message(Row(topic or f"{self._space}/t", payload.encode()))
            stamped = with_epoch(entry, at, keys.writer_text(self.name, self._writer.inc))
            own = self._writer.inc * INCARNATIONS
            append = Append(stream, self.name, own, sequence, stamped)
            (done,) = await StagedLog(self._redis).append_many([append])
            assert isinstance(done, Appended), done
            self._sequences[stream] = sequence + 1
            ranges = self._staged.setdefault((at, stream), [])
            if ranges and ranges[-1][1] == done.first:
                ranges[-1] = (ranges[-1][0], done.first + 1)
            else:
                ranges.append((done.first, done.first + 1))

    async def advance(self, *to: int | Epoch) -> None:
        """Hold `to` from now on."""
        frontier = tuple((one,) if isinstance(one, int) else one for one in to)
        gone = [
            (epoch, stream)
            for epoch, stream in self._staged
            if not any(all(a <= b for a, b in zip(one, epoch, strict=True)) for one in frontier)
        ]
        parts = [StagedPart(epoch, stream, (*self._staged.pop((epoch, stream)),)) for epoch, stream in gone]
        await self._writer.advance(frontier, parts)

    async def leave(self) -> None:
        """End well."""
        parts = [StagedPart(epoch, stream, (*ranges,)) for (epoch, stream), ranges in self._staged.items()]
        await self._writer.leave((), parts)


async def hand(redis: AsyncRedis, name: str = "a", space: str = "space") -> Hand:
    """One that has entered."""
    return await Hand(redis, name, space).enter()


async def kept(client: Client, space: str = "space", term: int = 1) -> Keeper:
    """A keeper of the space that has begun."""
    defined = (await client.spaces.look()).get(space)
    keeper = Keeper(
        client.redis,
        space,
        defined.epochs,
        defined.streams(),
        term,
        lambda: 0,
        durability=MEMORY,
        timeout=None,
    )
    await keeper.begin()
    return keeper


async def settled(keeper: Keeper) -> None:
    """All that is complete stands in the streams."""
    while await keeper.turn():
        pass


def replicated_server() -> MemoryServer:
    """A server with a replica, and a clock that every look moves."""
    ticks = count(1_000_000_000)
    return MemoryServer(lambda: next(ticks) / 1000, replicated=True)


async def replaced(server: MemoryServer, client: Client, *epochs: int) -> None:
    """A failover takes what publisher "one" did in these epochs, and another one completes them instead."""
    assert server.fail_over(10_000) > 0
    other = await hand(client.redis, "other")
    for epoch in epochs:
        await other.send(epoch, "came", "instead")
    await other.advance(epochs[-1] + 1)
    await lose(client.redis, "space", "one", 1, "operator")
    await settled(await kept(client, term=2))


def shown(item: EpochItem) -> Any:
    """An item as a test writes it down."""
    match item:
        case Snapshot(lower, upper):
            return "snapshot", [*lower], [*upper]
        case Frontier(lower, changes):
            return "frontier", [*lower], dict(changes)
        case EpochBatch(epoch, _, publisher):
            texts = [message.payload.decode() for message in item.messages]
            return (epoch, texts) if publisher is None else (epoch, publisher, texts)
        case Aborted(publisher, incarnation, epochs):
            return "aborted", publisher, incarnation, [*epochs]


async def everything(subscription: EpochSubscription) -> list[Any]:
    """All items of one that ends."""
    async with asyncio.timeout(SECONDS), subscription as items:
        return [shown(item) async for item in items]


async def some(subscription: EpochSubscription, count: int) -> list[Any]:
    """The next items."""
    async with asyncio.timeout(SECONDS):
        return [shown(await anext(subscription)) for _ in range(count)]


def epochs_of(items: Iterable[Any]) -> Mapping[Epoch, list[str]]:
    """The messages of each epoch; the test fails if one comes twice."""
    found: dict[Epoch, list[str]] = {}
    for item in items:
        if isinstance(item[0], tuple):
            assert item[0] not in found, f"epoch {item[0]} came twice"
            found[item[0]] = sorted(item[1])
    return found
