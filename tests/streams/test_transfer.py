"""Bringing messages in from sources with positions: once, whatever is repeated, late or runs twice."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from streamlease.protocol.errors import (
    InvalidInput,
    InvalidOption,
    SchemaMismatch,
    StreamSealed,
    UnknownSpace,
    Unsupported,
)
from streamlease.streams.entries.entries import Message, Row, encode_rows, to_messages
from streamlease.streams.imports.inbox import InboxMover
from streamlease.streams.imports.positions import BEGINNING, Resume
from streamlease.streams.imports.redis_streams import Mapping, PlainReader
from streamlease.streams.imports.transfer import Item, Transfer
from streamlease.streams.log.keys import inbox_refused, source_state, space_inbox
from streamlease.streams.log.log import Append, AsyncLog, ProgressMoved
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import Space, SpaceStore
from tests.awake import within
from tests.conftest import MakeServer
from tests.streams.helpers import Proxy
from tests.streams.schema_change import alter_schema

TYPED = {"columns": [{"name": "n", "type": "int64", "nullable": False}, {"name": "w", "type": "string"}]}


def items(first: int, last: int, topics: int = 7) -> list[Item]:
    return [Item((1, n), f"s/{n % topics}", b"%d" % n) for n in range(first, last + 1)]


async def messages(redis: AsyncRedis, name: str = "s") -> list[Message]:
    space = await SpaceStore(redis).get(name)
    found = [await AsyncLog(redis).read(stream, 0) for stream in space.streams()]
    return [message for batches in found for batch in batches for message in to_messages(batch)]


async def check(redis: AsyncRedis, last: int, topics: int = 7) -> None:
    """Every payload of 1..last once, in order within each topic."""
    found = await messages(redis)
    assert sorted(int(one.payload) for one in found) == list(range(1, last + 1))
    for topic in range(topics):
        mine = [int(one.payload) for one in found if one.topic == f"s/{topic}"]
        assert mine == sorted(mine)


async def test_what_is_there_is_not_added_again(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"], streams=3)
    assert await Transfer(redis, "file").put(items(1, 2500)) == 2500
    assert await Transfer(redis, "file").put(items(1, 2500)) == 0
    assert await Transfer(redis, "file").put(items(2000, 3000)) == 500
    await check(redis, 3000)


async def test_two_runs_at_once_add_each_message_once(redis: AsyncRedis) -> None:
    """Both see the same progress, and cut what they append at different places."""
    await SpaceStore(redis).create("s", ["s/#"], streams=3)

    async def run(step: int) -> None:
        transfer = Transfer(redis, "file")
        for n in range(1, 401, step):
            await transfer.put(items(n, min(400, n + step - 1)))

    await asyncio.gather(run(7), run(13), run(50))
    await check(redis, 400)


async def test_a_lost_answer_adds_nothing_twice(redis_url: str, redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"], streams=2)
    port = int(redis_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    async with Proxy(port) as proxy:
        client = connect(proxy.url)
        transfer = Transfer(client, "file")
        await transfer.put(items(1, 20))
        proxy.lose(b"EVALSHA", times=2)
        await transfer.put(items(21, 60))
        await client.aclose()
        assert proxy.lost
    await check(redis, 60)


async def test_a_late_append_of_a_killed_run_is_refused_or_seen(redis: AsyncRedis, log: AsyncLog) -> None:
    space = await SpaceStore(redis).create("s", ["s/#"])
    (stream,) = space.streams()
    await Transfer(redis, "file").put(items(1, 10))
    late = Append(stream, "file", 1, 15, encode_rows([Row("s/0", b"x")] * 5), after=(1, 10))
    await Transfer(redis, "file").put(items(11, 12))
    with pytest.raises(ProgressMoved, match="runs twice"):
        await log.append(late)
    assert await log.positions("file", [stream]) == {stream: (1, 12)}
    with pytest.raises(ProgressMoved):
        await log.append(Append(stream, "file", 1, 5, encode_rows([Row("s/0", b"x")]), after=None))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
async def test_the_number_of_streams_changes_under_a_transfer_that_is_cut_off(
    redis: AsyncRedis, seed: int
) -> None:
    """Runs that end anywhere, even within a put, while the space gets other generations."""
    dice = random.Random(seed)
    store = SpaceStore(redis)
    await store.create("s", ["s/#"], streams=2)
    last, number = 600, 2
    cut_off = 0
    for _ in range(12):
        transfer = Transfer(redis, "file")

        async def run(transfer: Transfer = transfer) -> None:
            step = dice.randint(1, 12)  # at least 50 puts, which take more turns than a run gets
            for n in range(1, last + 1, step):
                await transfer.put(items(n, min(last, n + step - 1)))

        task = asyncio.create_task(run())
        for _ in range(dice.randint(1, 60)):
            await asyncio.sleep(0)
        if dice.random() < 0.5:
            number = dice.choice([one for one in (1, 2, 3, 5) if one != number])
            await store.generations.alter("s", streams=number)
        for _ in range(dice.randint(0, 60)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        cut_off += task.cancelled()
        assert task.cancelled() or task.exception() is None
    assert cut_off, "each run ended before it was cut off"
    await Transfer(redis, "file").put(items(1, last))
    await check(redis, last)


async def test_a_bad_item_lets_those_before_it_in(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"])
    await SpaceStore(redis).create("t", ["t/#"], schema=TYPED)
    transfer = Transfer(redis, "file", space="s")
    for bad, error in (
        (Item((1, 11), "t/x", b"11", where="line 11"), UnknownSpace),
        (Item((1, 11), "nowhere", b"11"), UnknownSpace),
        (Item((1, 11), "s/#", b"11"), InvalidInput),
        (Item((1, 11), "s/x", b"x" * (17 << 20), where="line 11"), InvalidInput),
        (Item((1, 11), "s/x", {"n": 1}), SchemaMismatch),
    ):
        with pytest.raises(error):
            await transfer.put([*items(1, 10), bad, *items(12, 20)])
    await check(redis, 10)


async def test_rows_are_converted_to_the_schema(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"], schema=TYPED)
    transfer = Transfer(redis, "file")
    await transfer.put([Item((1, 1), "s/a", {"n": "5", "w": b"x"}), Item((1, 2), "s/a", {"n": 6})])
    more = {"columns": [*TYPED["columns"], {"name": "l", "type": "list<int8>"}]}
    await alter_schema(SpaceStore(redis), "s", more)
    await transfer.put([Item((1, 3), "s/a", {"n": 7})])
    await Transfer(redis, "file").put([Item((1, 4), "s/a", {"n": 8, "l": "[1, 2]"})])
    assert [one.values for one in await messages(redis)] == [
        {"n": 5, "w": "x", "l": None},
        {"n": 6, "w": None, "l": None},
        {"n": 7, "w": None, "l": None},
        {"n": 8, "w": None, "l": [1, 2]},
    ]
    with pytest.raises(SchemaMismatch, match=r"line 9.*column n"):
        await transfer.put([Item((1, 9), "s/a", {"n": "x"}, where="line 9")])


async def test_a_sealed_space_ends_a_transfer_at_once(redis: AsyncRedis) -> None:
    store = SpaceStore(redis)
    await store.create("s", ["s/#"])
    transfer = Transfer(redis, "file")
    await transfer.put(items(1, 5))
    await store.generations.seal("s")
    async with within(10):
        with pytest.raises(StreamSealed):
            await transfer.put(items(6, 9))


# ------------------------------------------------------------------------------- what is remembered


async def test_a_source_is_recognised_and_goes_on(redis: AsyncRedis) -> None:
    store = SpaceStore(redis)
    spaces = {"s": await store.create("s", ["s/#"])}
    await Resume.open(redis, "file:x", {"size": 4, "topic": "t"}, spaces)  # and nothing was published
    resume = await Resume.open(redis, "file:x", {"size": 5, "topic": "t"}, spaces)
    assert (resume.done, resume.complete) == (BEGINNING, False)
    await resume.advance((1, 100))
    await resume.finish()
    again = await Resume.open(redis, "file:x", {"topic": "t", "size": 5}, spaces)
    assert (again.done, again.complete) == ((1, 100), True)
    with pytest.raises(InvalidOption, match="begun with size 5, and now it is 6"):
        await Resume.open(redis, "file:x", {"size": 6, "topic": "t"}, spaces)
    await store.generations.alter("s", streams=3)
    altered = await Resume.open(redis, "file:x", {"size": 5, "topic": "t"}, {"s": await store.get("s")})
    assert altered.complete
    await store.delete("s")
    spaces = {"s": await store.create("s", ["s/#"])}
    anew = await Resume.open(redis, "file:x", {"size": 5, "topic": "t"}, spaces)
    assert (anew.done, anew.complete) == (BEGINNING, False)


# -------------------------------------------------------------------------------- plain Redis streams


@pytest.mark.parametrize(
    ("field", "junk"), [("identity", b"{"), ("identity", b"7"), ("done", b"\xff"), ("done", b"x y")]
)
async def test_what_is_known_of_a_source_and_cannot_be_read_is_told(
    redis: AsyncRedis, field: str, junk: bytes
) -> None:
    spaces = {"s": await SpaceStore(redis).create("s", ["s/#"])}
    resume = await Resume.open(redis, "file:x", {"size": 5}, spaces)
    await resume.advance((1, 2))
    assert await redis.hexists(source_state("file:x"), field)
    await redis.hset(source_state("file:x"), field, junk)
    with pytest.raises(Unsupported, match=r"what is known of file:x is damaged.*: restore key sl:"):
        await Resume.open(redis, "file:x", {"size": 5}, spaces)


async def test_entries_become_messages(redis: AsyncRedis) -> None:
    await redis.xadd("plain", {"t": "s/a", "p": b"\xff\x00", "k": "key", "x": "1"}, id="1700000000000-3")
    await redis.execute_command("XADD", "plain", "1700000000001-0", "a", "1", "a", "2", "b", b"\xff")
    reader = PlainReader(redis, "plain", BEGINNING)
    one, two = await reader.next()
    assert await reader.next() == []
    item = Mapping(topic_field="t", payload_field="p", key_field="k").item("plain", one)
    assert item[:4] == ((1700000000000, 3), "s/a", b"\xff\x00", b"key")
    assert item.headers == (("redis-stream", b"plain"), ("redis-id", b"1700000000000-3"), ("x", b"1"))
    assert item.timestamp == 1_700_000_000_000_000
    whole = Mapping(topic="s/b").item("plain", two)
    assert whole.payload == b'{"a": ["1", "2"], "b": {"base64": "/w=="}}'
    with pytest.raises(InvalidInput, match="no field 't'"):
        Mapping(topic_field="t").item("plain", two)
    with pytest.raises(InvalidOption, match="--topic"):
        Mapping(topic="x", topic_field="y")


async def test_large_entries_are_read_in_small_chunks(redis: AsyncRedis) -> None:
    for _ in range(80):
        await redis.xadd("plain", {"p": b"x" * 200_000})
    reader = PlainReader(redis, "plain", BEGINNING)
    sizes = []
    while entries := await reader.next():
        sizes.append(len(entries))
    assert sum(sizes) == 80
    assert max(sizes) <= 25


async def test_a_key_that_is_no_stream_is_refused(redis: AsyncRedis) -> None:
    await redis.set("text", "x")
    for key, missing in (("text", False), ("text", True), ("nothing", False)):
        with pytest.raises(InvalidOption, match=key):
            await PlainReader(redis, key, BEGINNING).check(may_be_missing=missing)
    await PlainReader(redis, "nothing", BEGINNING).check(may_be_missing=True)


# --------------------------------------------------------------------------------------------- inboxes


async def fill(redis: AsyncRedis, space: str, count: int, first: int = 1) -> None:
    for n in range(first, first + count):
        fields: dict[Any, Any] = {"topic": f"s/{n % 3}", "payload": str(n), "key": "k", "colour": "red"}
        await redis.xadd(space_inbox(space), fields)


async def test_an_inbox_is_moved_and_emptied(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"], streams=2)
    mover = InboxMover(redis, "host")
    assert await mover.round() == 0
    await fill(redis, "s", 50)
    assert await mover.round() == 50
    await fill(redis, "s", 10, 51)
    assert await mover.round() == 10
    await check(redis, 60, 3)
    first = (await messages(redis))[0]
    assert (first.key, first.headers) == (b"k", (("colour", b"red"),))
    assert await redis.xlen(space_inbox("s")) == 0
    assert await redis.exists("sl:{inbox:s}:mover") == 0


async def test_a_crash_between_append_and_deletion_moves_nothing_twice(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"], streams=2)
    await fill(redis, "s", 30)
    for id, fields in await redis.xrange(space_inbox("s")):
        await redis.xadd("before", fields, id=id)
    assert await InboxMover(redis, "one").round() == 30
    await redis.rename("before", space_inbox("s"))  # as if it had been killed before it deleted them
    assert await redis.xlen(space_inbox("s")) == 30
    await fill(redis, "s", 5, 31)
    await InboxMover(redis, "two").round()
    await check(redis, 35, 3)
    assert await redis.xlen(space_inbox("s")) == 0


async def test_movers_of_several_hosts_move_each_entry_once(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("s", ["s/#"], streams=2)
    await fill(redis, "s", 200)
    movers = [InboxMover(redis, f"host{n}") for n in range(3)]
    await asyncio.gather(*(mover.move(space) for mover in movers))  # without the mark that keeps them apart
    await check(redis, 200, 3)
    assert await redis.xlen(space_inbox("s")) == 0


async def test_what_cannot_be_a_message_is_put_aside_with_the_reason(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"])
    inbox = space_inbox("s")
    await redis.xadd(inbox, {"payload": "no topic"})
    await redis.xadd(inbox, {"topic": "t/outside", "payload": "x"})
    await redis.xadd(inbox, {"topic": "s/a"})
    await redis.xadd(inbox, {"topic": "s/#", "payload": "x"})
    await redis.xadd(inbox, {"topic": "s/0", "payload": "1"})
    assert await InboxMover(redis, "host").round() == 1
    refused = [fields for _, fields in await redis.xrange(inbox_refused("s"))]
    reasons = [fields[b"refused-because"].decode() for fields in refused]
    assert len(reasons) == 4
    assert all(
        part in reason for part, reason in zip(("topic", "t/outside", "payload", "s/#"), reasons, strict=True)
    )
    assert refused[1][b"payload"] == b"x"
    assert await redis.xlen(inbox) == 0
    await check(redis, 1, 1)


async def test_an_inbox_of_a_typed_space_takes_json_objects(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"], schema=TYPED)
    for payload in ('{"n": 1, "w": "x"}', '{"n": "many"}', "[1]", "x"):
        await redis.xadd(space_inbox("s"), {"topic": "s/a", "payload": payload})
    assert await InboxMover(redis, "host").round() == 1
    assert [one.values for one in await messages(redis)] == [{"n": 1, "w": "x"}]
    assert await redis.xlen(inbox_refused("s")) == 3


async def test_an_inbox_goes_with_its_space(redis: AsyncRedis) -> None:
    store = SpaceStore(redis)
    await store.create("s", ["s/#"])
    await fill(redis, "s", 3)
    assert await redis.exists(space_inbox("s")) == 1
    await store.delete("s")
    assert await redis.exists(space_inbox("s")) == 0


async def test_a_mover_lives_through_a_restart_of_the_server(make_redis_server: MakeServer) -> None:
    server = make_redis_server(persistent=True)
    client = connect(server.url)
    space: Space = await SpaceStore(client).create("s", ["s/#"])
    await fill(client, "s", 20)
    mover = InboxMover(client, "host")
    await mover.move(space)
    server.restart()
    again = connect(server.url)
    await fill(again, "s", 20, 21)
    await mover.move(space)
    await check(again, 40, 3)
    await client.aclose()
    await again.aclose()
