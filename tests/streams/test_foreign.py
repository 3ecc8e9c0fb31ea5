"""Producers that know nothing of this package: the commands of docs/foreign-producers.md, word by word."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.entries.entries import to_messages
from streamlease.streams.imports import inbox
from streamlease.streams.imports.inbox import InboxMover
from streamlease.streams.log.keys import space_inbox
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import SpaceStore
from tests.awake import awake, within

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "foreign-producers.md").read_text()
LUA = ROOT / "streams" / "log" / "lua"


def documented(title: str) -> list[list[str]]:
    """The words of the commands in the first code block below a heading."""
    section = PAGE.split(f"## {title}\n", 1)[1]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    assert block is not None
    lines = block.group(1).replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix("redis-cli ")) for line in lines if line.startswith("redis-cli ")]


async def run(redis: AsyncRedis, words: list[str]) -> Any:
    return await redis.execute_command(*[_expanded(word) for word in words])


def _expanded(word: str) -> str:
    files = re.fullmatch(r"\$\(cat (.*)\)", word)
    return "".join((LUA / name).read_text() for name in files[1].split()) if files else word


async def test_the_documented_inbox_commands_work(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("flights", ["flights/#"])
    commands = documented("The inbox")
    assert commands
    for words in commands:
        await run(redis, words)
    assert await InboxMover(redis, "host").round() == len(commands)
    (batch,) = await AsyncLog(redis).read(space.streams()[0], 0)
    first = to_messages(batch)[0]
    assert (first.topic, first.payload, first.key) == ("flights/JFK/LAX", b"on time", b"N14228")
    assert first.headers == (("source", b"tower"),)


async def test_a_mover_waits_for_entries(embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    redis = connect(embedded_redis_url)
    store = SpaceStore(redis)
    mover = InboxMover(redis, "host")
    monkeypatch.setattr(inbox, "WAIT_MS", 20)
    assert not await mover.wait(), "there is no space"
    for name in ("flights", "trains"):
        await store.create(name, [f"{name}/#"])
    assert not await mover.wait()
    monkeypatch.setattr(inbox, "WAIT_MS", 20_000)
    waiting = asyncio.create_task(mover.wait())
    async with within(10):
        await redis.xadd(space_inbox("trains"), {"topic": "trains/1", "payload": "late"})
        assert await waiting
    assert await mover.round() == 1
    await redis.set(space_inbox("flights"), "no stream")
    await redis.xadd(space_inbox("trains"), {"topic": "trains/1", "payload": "later"})
    async with within(10):
        assert await mover.wait(), "nobody can wait for what is no stream: look at each"
    assert await mover.round() == 1
    await redis.aclose()


async def test_a_mover_for_whom_definitions_are_read_moves_what_comes_for_a_new_space(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody hears of each change, and has them read anew; not the mover by itself."""
    monkeypatch.setattr(inbox, "WAIT_MS", 50)
    redis = connect(embedded_redis_url)
    spaces = SpaceStore(redis)
    mover = InboxMover(redis, "host", spaces)
    await SpaceStore(redis).create("old", ["old/#"])
    assert not await mover.wait()
    await SpaceStore(redis).create("new", ["new/#"])
    await redis.execute_command("XADD", space_inbox("new"), "*", "topic", "new/a", "payload", "x")
    spaces.forget()
    assert await mover.wait()
    assert await mover.round() == 1
    await redis.aclose()


async def test_the_documented_append_works_and_is_idempotent(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("flights", ["flights/#"])
    (stream,) = space.streams()
    commands = documented("Direct appends")
    first, again, second = [await run(redis, words) for words in commands]
    assert first[0] == b"appended"
    assert again == [b"duplicate", *first[1:]]
    assert second[:2] == [b"appended", 1]
    batches = await AsyncLog(redis).read(stream, 0)
    found = [message for batch in batches for message in to_messages(batch)]
    assert [(one.topic, one.payload, one.key) for one in found] == [
        ("flights/JFK/LAX", b"on time", b"N14228"),
        ("flights/JFK/SFO", b"late", None),
    ]


async def test_a_foreign_append_that_does_not_fit_is_refused(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("flights", ["flights/#"])
    first, _, second = documented("Direct appends")
    await run(redis, first)
    await run(redis, second)
    assert (await run(redis, first))[0] == b"old"
    unknown = [word.replace("flights.0.0", "flights.9.0") for word in first]
    assert await run(redis, unknown) == [b"unknown"]
    with pytest.raises(ResponseError, match="must be numbers"):
        await run(redis, [*first[:7], "one", *first[8:]])
    await redis.connection_pool.disconnect()  # the fake closes a connection after an error
    for place in (7, 8, 9):  # they become part of the publisher's record and of the id as they are
        with pytest.raises(ResponseError, match="must be numbers"):
            await run(redis, [*first[:place], "1e0", *first[place + 1 :]])
        await redis.connection_pool.disconnect()
    schema = {"columns": [{"name": "n", "type": "int8"}]}
    await SpaceStore(redis).create("typed", ["typed/#"], schema=schema)
    typed = [word.replace("flights", "typed") for word in first]
    assert (await run(redis, typed))[0] == b"schema"


@pytest.mark.parametrize(
    ("topic", "shards", "shard", "other"), [("flights/JFK/LAX", 8, 5, 4), ("flights/JFK/SFO", 8, 6, 1)]
)
async def test_the_documented_choice_of_the_stream_is_the_one_of_this_package(
    redis: AsyncRedis, topic: str, shards: int, shard: int, other: int
) -> None:
    space = await SpaceStore(redis).create("flights", ["flights/#"], streams=shards)
    number = int.from_bytes(blake2b(topic.encode(), digest_size=8).digest(), "big") % shards
    assert space.stream_for(topic).shard == number == shard
    space = await SpaceStore(redis).create("two", ["two/#"], streams=shards, shard_hash="sha256")
    (script,) = re.findall(r"```bash\n(topic=.*?)```", PAGE, re.DOTALL)
    words = ["bash", "-euc", script.replace("topic=flights/JFK/LAX", f"topic={topic}")]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=True, timeout=30)
    printed = int(done.stdout)
    assert space.stream_for(topic).shard == printed == other
    assert f"| `{topic}` | {shard} | {other} |" in PAGE


@pytest.mark.parametrize(
    ("id", "removed"), [("*", False), ("25-1", False), ("3-0", False), ("*", True), ("25-1", True)]
)
@pytest.mark.slow
async def test_an_entry_that_somebody_put_into_a_log_is_named_and_new_streams_take_its_place(
    redis: AsyncRedis, id: str, removed: bool
) -> None:
    """One that is a little ahead is met by the next long batch, which would stand before and behind it."""
    spaces = SpaceStore(redis)
    space = await spaces.create("flights", ["flights/#"])
    (stream,) = space.streams()
    log = f"sl:{{{stream}}}:log"
    async with Publisher(redis, delivery_timeout=20) as publisher:
        await publisher.send_many("flights/JFK", ["one", "two", "three"])
        entry = (await redis.xadd(log, {"payload": "by hand"}, id=id)).decode()
        if removed:
            await redis.xdel(log, entry)
        named = "an entry, removed since," if removed else f"entry {entry},"
        for count in (1,) if removed else (1, 100):
            with awake() as clock, pytest.raises(StreamleaseError) as raised:
                await publisher.send_many("flights/JFK", [str(number) for number in range(count)])
            assert clock.seconds < 15, "it is tried again in vain"
            assert f"stream {stream} takes no messages any more: {log} was given {named}" in str(raised.value)
            assert "streamlease space alter flights --rotate" in str(raised.value)
        if not removed:
            assert f"XDEL {log} {entry}" in str(raised.value)
            await redis.xdel(log, entry)
        space = await spaces.generations.alter("flights", rotate=True)
        await publisher.send("flights/JFK", "four")
    found = [
        message.payload
        for one in space.streams()
        for batch in await AsyncLog(redis).read(one, 0)
        for message in to_messages(batch)
    ]
    assert found == [b"one", b"two", b"three", b"four"]
