"""What stands of epochs and cannot be read: told in one line by whoever reads it, and its return mends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

import streamlease
from streamlease.admin.doctor.damaged_records import records
from streamlease.admin.doctor.findings import Level
from streamlease.admin.doctor.held_epochs import epochs
from streamlease.admin.facts.epochs import SpaceEpochs
from streamlease.agent.client import Client
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.protocol.errors import StreamleaseError, Unsupported
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.stored import Newest, newest_command, parse_newest
from streamlease.streams.redis.connection import ask, connect
from tests.streams.helpers import until

JUNK = b"\xffjunk"
FIELDS = {
    "boundary": (keys.state("s"), b"boundary"),
    "term": (keys.state("s"), b"term"),
    "publisher": (keys.writers("s"), b"p"),
    "end": (keys.ends("s"), b"s.0.0"),
}
READERS = {"boundary", "end"}
"""What readers of whole epochs look at."""


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    """Of a Redis with a space with epochs, of which a host keeps some."""
    async with streamlease.connect(redis_url, embedded=False) as client:
        await client.create_space("s", ["s/#"], epochs=1)
        redis = connect(redis_url)
        host = LeaderHost(redis, HostConfig(name="one", retention_interval=0.05))
        await host.start()
        await publish(client, 1)
        await reach(client, 1)
        yield client
        await host.close()
        await redis.aclose()


async def publish(client: Client, epoch: int) -> None:
    async with client.epoch_publisher("s", "p") as publisher:
        await publisher.send("s/a", b"x", epoch=epoch)
        await publisher.advance(epoch + 1)


async def newest(client: Client) -> Newest:
    (reply,) = await ask(client.redis, [newest_command("s")])
    return parse_newest("s", reply)


async def reach(client: Client, epoch: int) -> None:
    """Wait until that epoch is completed, and read it."""
    async with asyncio.timeout(20), client.listen("s/#", start="earliest", epochs="atomic") as reader:
        async for part in reader:
            if isinstance(part, streamlease.EpochBatch) and part.epoch == (epoch,):
                return


async def read(client: Client) -> None:
    async with asyncio.timeout(20), client.history("s/#", epochs="atomic") as history:
        async for _ in history:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("what", FIELDS)
async def test_a_damaged_field_is_told_and_its_return_mends_it(
    client: Client, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    key, field = FIELDS[what]
    (before,) = await ask(client.redis, [("HGET", key, field)])
    assert before is not None
    await ask(client.redis, [("HSET", key, field, JUNK)])
    space = await client.spaces.get("s")
    if what in READERS:
        with pytest.raises(Unsupported, match=f"restore key {key} from a backup|key {key} holds") as told:
            await read(client)
        assert "\n" not in str(told.value)
    if what != "end":  # which only readers look at
        with pytest.raises(Unsupported, match=f"restore key {key} from a backup") as told:
            await SpaceEpochs.read(client.redis, space)
        assert "\n" not in str(told.value)
        found = await records(client)
        assert found.level is Level.FAIL
        assert f"epochs of space s: {told.value}" in found.message
        assert (await epochs(client, 60.0)).message == "those of 1 space cannot be read"
    await ask(client.redis, [("HSET", key, field, before)])
    assert (await records(client)).level is Level.OK
    await publish(client, 2)
    await reach(client, 2)
    assert [one for one in caplog.records if "defect" in one.getMessage() or one.exc_info] == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["bounds", "lines"])
async def test_a_damaged_entry_is_told_until_it_goes(
    client: Client, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An entry of a later version, or nobody's: the keeper says so, once, and goes on when it is gone."""
    key = {"bounds": keys.bounds("s"), "lines": keys.lines("s")}[what]
    ((last, fields),) = (await ask(client.redis, [("XREVRANGE", key, "+", "-", "COUNT", 1)]))[0]
    next = f"{int(last.partition(b'-')[0]) + 1}-0"
    junk = [JUNK if at % 2 else name for at, name in enumerate(fields)]
    space = await client.spaces.get("s")
    await ask(client.redis, [("XADD", key, next, *junk)])
    with pytest.raises(StreamleaseError, match=r"cannot be read|is damaged") as told:
        await SpaceEpochs.read(client.redis, space)
    assert "\n" not in str(told.value)
    found = await records(client)
    assert found.level is Level.FAIL
    assert str(told.value) in found.message
    if what == "lines":
        await ask(client.redis, [("PUBLISH", keys.news("s"), b"line")])
        await until(lambda: any("keeper of space s: a line" in text for text in caplog.messages))
    await ask(client.redis, [("XDEL", key, next)])
    assert (await records(client)).level is Level.OK
    assert [one for one in caplog.records if "defect" in one.getMessage() or one.exc_info] == []
