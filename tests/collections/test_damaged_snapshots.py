"""A note about a snapshot that cannot be read stops its own stream, and nobody else's."""

from __future__ import annotations

import logging

import pytest

from streamlease.admin.doctor.damaged_records import records
from streamlease.agent.client import Client, connect
from streamlease.hosts.snapshot_maker import LEAST_CHANGES, SnapshotMaker
from streamlease.hosts.trimming import Retainer
from streamlease.protocol.errors import Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.log.keys import snapshot_state
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import ask
from streamlease.streams.spaces.retention import Retention
from tests.collections.test_collection import item
from tests.collections.test_snapshots import clock

BAD, GOOD, PLAIN = (StreamId(name, 0, 0) for name in ("bad", "good", "plain"))
FEW = Retention(messages=1, force=True)


async def send(client: Client, space: str) -> None:
    async with client.publisher() as publisher:
        await publisher.send_many(f"{space}/a", [b"same"] * LEAST_CHANGES)


async def items_of(client: Client, space: str) -> int:
    async with client.collection(f"{space}/#") as found:
        return found.items[item(b"same", topic=f"{space}/a")]


async def floor(client: Client, stream: StreamId) -> int:
    return (await AsyncLog(client.redis).states([stream]))[stream].floor


@pytest.mark.slow
@pytest.mark.parametrize("field", ["number", "upto", "token", "messages", "entries", "lost"])
async def test_a_note_that_cannot_be_read(
    client: Client, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    await check(client, field, caplog)


@pytest.mark.slow
async def test_a_note_of_another_type(real_redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """(The in-memory server closes a connection on which it answered with an error.)"""
    async with connect(real_redis_url, embedded=False) as client:
        await check(client, "all", caplog)


async def check(client: Client, field: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("bad", "good"):
        await client.create_space(name, [f"{name}/#"], collection=True, retention=FEW)
        await send(client, name)
    await client.create_space("plain", ["plain/#"], retention=FEW)
    maker, retainer = SnapshotMaker(client.redis, "host", clock), Retainer(client.redis, "host", clock)
    assert await maker.round() == [BAD, GOOD]
    key, aside = snapshot_state(BAD), f"{snapshot_state(BAD)}:aside"
    (before,) = await ask(client.redis, [("HGET", key, field)])
    if field == "all":  # of another type
        await ask(client.redis, [("RENAME", key, aside), ("SET", key, "x")])
    else:
        await ask(client.redis, [("HSET", key, field, b"\xffjunk")])
    for name in ("bad", "good", "plain", "plain"):
        await send(client, name)
    caplog.set_level(logging.WARNING)
    caplog.clear()

    assert await maker.round() == [GOOD]
    (told,) = caplog.messages
    why = f"key {key} is of another type" if field == "all" else f"the snapshot of stream {BAD} is damaged"
    assert told.startswith(f"no snapshot of {BAD}: {why}")
    assert "\n" not in told
    assert await maker.round() == []
    assert caplog.messages == [told], "once a minute"
    await retainer.round()
    assert await floor(client, GOOD) > 0 and await floor(client, PLAIN) > 0
    assert await floor(client, BAD) == 0, "what may be nowhere else stays"
    with pytest.raises(Unsupported, match=r"restore (key .*|it) from a backup"):
        await items_of(client, "bad")
    assert await items_of(client, "good") == 2 * LEAST_CHANGES
    assert why in (await records(client)).message

    if field == "all":
        await ask(client.redis, [("RENAME", aside, key)])
    else:
        await ask(client.redis, [("HSET", key, field, before)])
    assert await maker.round() == [BAD]
    await retainer.round()
    assert await floor(client, BAD) > 0
    assert await items_of(client, "bad") == 2 * LEAST_CHANGES
    await maker.close()
    await retainer.close()


async def test_a_space_whose_boundaries_cannot_be_read(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_space("bad", ["bad/#"], collection=True, epochs=1)
    await client.create_space("good", ["good/#"], collection=True)
    await send(client, "good")
    await ask(client.redis, [("HSET", keys.state("bad"), "boundary", b"1")])
    await ask(client.redis, [("XADD", keys.bounds("bad"), "1-0", "b", b"junk")])
    maker = SnapshotMaker(client.redis, "host", clock)
    assert await maker.round() == [GOOD]
    assert caplog.messages[0].startswith("no snapshot of space bad: boundary 1 cannot be read")
    await maker.close()
