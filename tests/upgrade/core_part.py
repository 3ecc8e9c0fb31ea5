"""Spaces of each kind, and groups in the middle of their work."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pyarrow as pa

from streamlease import Retention, connect
from streamlease.agent.client import Client
from streamlease.agent.epochs.epoch_items import Frontier
from streamlease.hosts import snapshot_maker
from streamlease.hosts.compactor import Compactor
from streamlease.hosts.snapshot_maker import SnapshotMaker
from streamlease.leader import journal
from streamlease.leader.core import view
from streamlease.leader.journal import recover
from streamlease.protocol.acts import PauseGroup, ResetProgress, ResumeGroup
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.dead_letters import DeadLetters
from streamlease.streams.clock import milliseconds
from streamlease.streams.collections.snapshots import newest_snapshots
from streamlease.streams.entries.delivered import Message
from streamlease.streams.log import compacting, merging
from streamlease.streams.log.keys import stream_merged
from streamlease.streams.redis.connection import ask

SHARED = "$shared/desk/flights/#"
OPTIONS = GroupOptions(max_failures=1, retry_delay_ms=0)
PARKED = SharedSubscription.parse("$shared/parked/readings/#")
EPOCHS = "$shared/tally/clicks/#"
SCHEMA = pa.schema([("degrees", pa.float64()), ("place", pa.string()), ("tags", pa.list_(pa.int64()))])
SECONDS = 60.0


def shown(message: Message) -> list[Any]:
    """All of a message that is the same for every reader."""
    return [
        message.topic,
        None if message.key is None else message.key.hex(),
        message.payload.hex(),
        message.stream,
        message.offset,
        message.timestamp_us,
        message.append_timestamp_us,
        [[name, value.hex()] for name, value in message.headers],
        None if message.epoch is None else list(message.epoch),
        message.values,
    ]


async def write(url: str) -> dict[str, Any]:
    """What the groups have committed."""
    async with connect(url) as client:
        return await _write(client)


async def _write(client: Client) -> dict[str, Any]:
    await client.create_space(
        "flights",
        ["flights/#"],
        streams=2,
        shard_by="key",
        retention=Retention(messages=10_000),
        compact_after_ms=1000,
    )
    await client.create_space("readings", ["readings/#"], schema=SCHEMA)
    await client.create_space("clicks", ["clicks/#"], streams=2, epochs=1)
    await client.create_space("seats", ["seats/#"], streams=2, collection=True)
    async with client.publisher() as publisher:
        for number in range(40):
            await publisher.send(
                f"flights/{number % 7}",
                b"\xff%d" % number,
                key=b"k%d" % (number % 5),
                headers={"n": b"%d" % number},
                timestamp=1_700_000_000_000_000 + number,
            )
        await _merge(client)
        await client.alter_space("flights", streams=3)
        await publisher.send_many("flights/later", [b"more %d" % number for number in range(20)])
        degrees = [20.5, None, -3.25]
        columns = {"degrees": degrees, "place": ["a", "b", None], "tags": [[1, 2], [], None]}
        await publisher.send_batch("readings/x", pa.RecordBatch.from_pydict(columns, SCHEMA))
        for number in range(10):
            await publisher.send(f"seats/{number % 3}", b"seat %d" % number, key=b"k", diff=1 + number % 2)
        for number in range(4):
            await publisher.send(f"seats/{number % 3}", b"seat %d" % number, key=b"k", diff=-1)
    async with client.epoch_publisher("clicks", "ingest") as staged:
        for epoch in range(4):
            await staged.send_many(f"clicks/{epoch % 2}", [b"click %d" % epoch] * 3, epoch=epoch)
            await staged.advance(epoch + 1)
    await _snapshot(client)
    with mock.patch.object(journal, "SNAPSHOT_EVERY", 3):
        await _park(client)
        return {"flights": await _consume(client), "clicks": await _consume_parts(client)}


async def _merge(client: Client) -> None:
    """Let small entries of `flights` be merged."""
    compactor = Compactor(client.redis, "writer", milliseconds)
    streams = (await client.spaces.get("flights")).streams()
    few = mock.patch.object(compacting, "LEAST_ENTRIES", 4), mock.patch.object(merging, "ENOUGH_ROWS", 10)
    with few[0], few[1]:
        async with asyncio.timeout(SECONDS):
            while not any(await ask(client.redis, [("EXISTS", stream_merged(one)) for one in streams])):
                await compactor.round()
                await asyncio.sleep(0.1)
    await compactor.close()


async def _snapshot(client: Client) -> None:
    """Write what there is of the collection beside its changes."""
    maker = SnapshotMaker(client.redis, "writer", milliseconds)
    streams = (await client.spaces.get("seats")).streams()
    with mock.patch.object(snapshot_maker, "LEAST_CHANGES", 1):
        async with asyncio.timeout(SECONDS):
            while not any(one.upto for one in (await newest_snapshots(client.redis, streams)).values()):
                await maker.round()  # unless the client's own host has that claim, and makes it
                await asyncio.sleep(0.1)
    await maker.close()


async def _park(client: Client) -> None:
    """A group that an operator has put somewhere, and paused."""
    await client.groups.declare(PARKED, "earliest", options=OPTIONS)
    stream = (await client.spaces.get("readings")).streams()[0]
    await client.act(PARKED, PauseGroup(), who="operator")
    await client.act(PARKED, ResetProgress(offsets={str(stream): 2}), who="operator")


async def _consume(client: Client) -> list[Any]:
    """Commit 12 messages, and let one be a dead letter; what is done."""
    done = []
    async with (
        asyncio.timeout(SECONDS),
        client.subscribe(SHARED, start="earliest", options=OPTIONS, max_batch=4) as reader,
    ):
        while len(done) < 12:
            batch = await anext(reader)
            await batch.commit()
            done += map(shown, batch.messages)
        batch = await anext(reader)
        assert await batch.fail(batch.messages[0].offset, "not today") == "passed"
        done.append(shown(batch.messages[0]))
    return done


async def _consume_parts(client: Client) -> list[Any]:
    """Commit two parts of epochs; what is done."""
    done: list[Any] = []
    async with (
        asyncio.timeout(SECONDS),
        client.subscribe(EPOCHS, start="earliest", epochs="atomic") as reader,
    ):
        while len(done) < 6:
            part = await anext(reader)
            if not isinstance(part, Frontier):
                await part.commit()
                done += map(shown, part.messages)
    return done


async def read(url: str, done: dict[str, Any]) -> dict[str, Any]:
    """All that can be read of it.

    Args:
        done: what the groups have committed.
    """
    async with connect(url) as client:
        return await _read(client, done)


async def _read(client: Client, done: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"spaces": [], "histories": {}, "groups": {}}
    for group in await client.groups.list():
        seen = view.of_state((await recover(client.redis, group.id)).state)
        rows = [
            [row["stream"], row["committed"], row["state"], row["dead_letters"]] for row in seen["streams"]
        ]
        found["groups"][group.id] = [seen["state"], rows]
    for space in await client.spaces.list():
        streams = [str(stream) for stream in space.streams()]
        kinds = [space.shard_by, space.epochs, space.collection, str(space.retention), space.compact_after_ms]
        columns = [[column.name, column.type] for schema in space.schemas for column in schema.columns]
        found["spaces"].append([space.name, [*space.topics], streams, kinds, columns])
        messages = []
        async with asyncio.timeout(SECONDS), client.history(space.topics[0]) as history:
            async for batch in history:
                messages += map(shown, batch.messages)
        found["histories"][space.name] = sorted(messages, key=lambda one: (one[3], one[4]))
    async with asyncio.timeout(SECONDS), client.collection("seats/#") as seats:
        found["seats"] = sorted(
            [topic, key and key.hex(), payload.hex(), count]
            for (topic, key, payload), count in seats.items.items()
        )
    letters = await DeadLetters(client.redis).of(SharedSubscription.parse(SHARED), OPTIONS)
    found["dead letters"] = [
        [shown(one.message)[:3], one.facts["offset"], one.facts["cause"]] for one in letters
    ]
    found["rest"] = await _rest(client, {name: len(all) for name, all in found["histories"].items()}, done)
    return found


async def _rest(client: Client, there: dict[str, int], done: dict[str, Any]) -> dict[str, Any]:
    """What the groups have not committed, which is what they get now."""
    flights: list[Any] = []
    async with asyncio.timeout(SECONDS), client.subscribe(SHARED) as reader:
        while len(flights) + len(done["flights"]) < there["flights"]:
            batch = await anext(reader)
            flights += map(shown, batch.messages)
            await batch.commit()  # streams of the newer generation come after those of the older one
    clicks: list[Any] = []
    async with asyncio.timeout(SECONDS), client.subscribe(EPOCHS, epochs="atomic") as parts:
        while len(clicks) + len(done["clicks"]) < there["clicks"]:
            part = await anext(parts)
            if not isinstance(part, Frontier):
                clicks += map(shown, part.messages)
                await part.commit()
    return {
        name: sorted(rest, key=lambda one: (one[3], one[4]))
        for name, rest in (("flights", flights), ("clicks", clicks))
    }


async def go_on(url: str, done: dict[str, Any]) -> None:
    """Publish to it, and consume that."""
    async with connect(url) as client:
        await _go_on(client)


async def _go_on(client: Client) -> None:
    async with client.publisher() as publisher:
        stream, offset = await publisher.send("flights/new", b"new", key=b"k1")
        row = {"degrees": [1.0], "place": ["c"], "tags": [None]}
        await publisher.send_batch("readings/x", pa.RecordBatch.from_pydict(row, SCHEMA))
        await publisher.send("seats/1", b"seat 4", key=b"k", diff=1)
    async with asyncio.timeout(SECONDS), client.subscribe(SHARED) as reader:
        seen: list[tuple[str, int]] = []
        while (str(stream), offset) not in seen:
            batch = await anext(reader)
            seen += [(one.stream, one.offset) for one in batch.messages]
            await batch.commit()
    await client.act(PARKED, ResumeGroup(), who="operator")
    async with asyncio.timeout(SECONDS), client.subscribe(str(PARKED)) as reader:
        assert (await anext(reader)).start == 2
    async with asyncio.timeout(SECONDS), client.epoch_publisher("clicks", "ingest") as staged:
        assert staged.frontier == [(4,)]
        await staged.send("clicks/0", b"new", epoch=4)
        await staged.advance(5)
        async with client.subscribe(EPOCHS, epochs="atomic") as parts:
            while True:
                part = await anext(parts)
                if not isinstance(part, Frontier) and part.epoch == (4,):
                    assert [one.payload for one in part.messages] == [b"new"]
                    break
