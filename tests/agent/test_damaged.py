"""Entries that cannot be decoded, and tasks that end by a defect: nothing stands still without a word."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.fetching import Fetching
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.protocol.errors import (
    SchemaMismatch,
    StoreRefused,
    StreamleaseError,
    TaskFailed,
    Unsupported,
)
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys
from streamlease.registry.dead_letters import DeadLetter, DeadLetters
from streamlease.registry.mail.mailbox import Mailbox
from streamlease.streams.entries.decoding import DamagedEntry, decode_entries
from streamlease.streams.entries.delivered import to_messages
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.log.keys import stream_log, stream_meta, stream_publishers
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.connection import ask
from streamlease.testing import MemoryServer, Timeline
from streamlease.testing.memory import memory_connection
from tests.agent.helpers import SUB, publish, take, until
from tests.awake import awake
from tests.streams.test_damaged import DAMAGED, batch, single

SHARED = SharedSubscription.parse(SUB)
OPTIONS = GroupOptions(max_failures=2, retry_delay_ms=1)
STREAM = StreamId("s", 0, 0)


async def put(client: Client, id: bytes, flat: list[bytes]) -> None:
    """Write an entry as a foreign program would."""
    last = int(id.partition(b"-")[0])
    await client.redis.execute_command("XADD", stream_log(STREAM), id, *flat)
    await client.redis.hset(stream_meta(STREAM), "next", str(last + 1))


async def letters(client: Client) -> list[DeadLetter]:
    return await DeadLetters(client.redis).of(SHARED, OPTIONS)


@pytest.mark.parametrize(
    "what", ["event time beyond int64", "lone surrogate in a header name", "deeply nested headers"]
)
async def test_a_damaged_message_becomes_a_dead_letter_and_the_rest_goes_on(
    client: Client, what: str
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    await put(client, *DAMAGED[what])
    await publish(client, range(4, 6), topics=1)
    async with client.subscribe(SUB, start="earliest", options=OPTIONS) as reader:
        assert await take(reader, 5) == [0, 1, 2, 4, 5]
    (letter,) = await letters(client)
    assert (letter.facts["stream"], letter.facts["offset"], letter.facts["failures"]) == ("s.0.0", "3", "2")
    assert letter.facts["payload"] == "unreadable"
    assert "the entry 3-1 of stream s.0.0 is damaged" in letter.facts["cause"]
    assert letter.message.topic == "$dead/g"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["next", "publisher", "publishers", "log"])
async def test_who_publishes_to_a_damaged_stream_is_told_what_to_do(client: Client, damage: str) -> None:
    await client.create_space("s", ["a/#"])
    async with client.publisher(delivery_timeout=1) as publisher:
        await publisher.send("a/1", b"x")
        match damage:
            case "next":
                await client.redis.hset(stream_meta(STREAM), "next", b"junk")
            case "publisher":
                (name,) = await client.redis.hkeys(stream_publishers(STREAM))
                await client.redis.hset(stream_publishers(STREAM), name, b"junk")
            case _:
                key = stream_log(STREAM) if damage == "log" else stream_publishers(STREAM)
                await client.redis.delete(key)
                await client.redis.set(key, b"junk")
        for send in (publisher.send("a/1", b"y"), publisher.send_many("a/1", [b"y", b"z"])):
            with pytest.raises(
                StoreRefused, match=r"^stream s\.0\.0 takes no messages, for one of its keys"
            ) as told:
                await send
            assert str(told.value).endswith("streamlease space alter s --rotate")
            assert "\n" not in str(told.value) and "script: " not in str(told.value)
    await client.alter_space("s", rotate=True)
    async with client.publisher() as publisher:
        assert await publisher.send("a/1", b"y") == (StreamId("s", 1, 0), 0)


@pytest.mark.parametrize("mark", [b"{", b"7", b"\xff"])
async def test_a_mark_of_a_dead_letter_that_cannot_be_read_is_told(client: Client, mark: bytes) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(1), topics=1)
    async with client.subscribe(SUB, start="earliest", options=GroupOptions(max_failures=1)) as reader:
        async with asyncio.timeout(20):
            assert await (await anext(reader)).fail(0, "no") == "passed"
    (letter,) = await letters(client)
    key = keys.replayed(SHARED.id)
    await client.redis.hset(key, letter.place, mark)
    with pytest.raises(
        Unsupported, match=r"which dead letters were replayed is damaged.*: restore key sl:"
    ) as told:
        await letters(client)
    assert key in str(told.value)
    await client.redis.hdel(key, letter.place)
    assert [one.place for one in await letters(client)] == [letter.place]


async def test_a_damaged_message_waits_for_what_is_before_it(client: Client) -> None:
    """A failure says that all before it is done, which only the program knows."""
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    await put(client, *DAMAGED["no topic"])
    async with client.subscribe(SUB, start="earliest", options=OPTIONS) as reader:
        async with asyncio.timeout(30):
            first = await anext(reader)
        await until(lambda: reader.book.streams["s.0.0"].damaged_at is not None)
        assert reader.book.streams["s.0.0"].failing is None
        await first.commit(2)
        assert reader.book.streams["s.0.0"].failing is None
        await first.commit()
        await first.commit()  # once more does no harm
        await until(lambda: reader.book.streams["s.0.0"].acknowledged == 4)
    assert len(await letters(client)) == 1


async def test_a_failure_before_a_damaged_message_makes_no_dead_letters_of_what_lies_between(
    client: Client,
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(4), topics=1)
    await put(client, *single(4, h=b"7"))
    await publish(client, range(5, 6), topics=1)
    once = GroupOptions(max_failures=1)
    async with client.subscribe(SUB, start="earliest", options=once) as reader:
        async with asyncio.timeout(30):
            first = await anext(reader)
        await until(lambda: reader.book.streams["s.0.0"].damaged_at is not None)
        assert await first.fail(1, "no") == "passed"
        assert await take(reader, 3) == [2, 3, 5]
    assert sorted(letter.facts["offset"] for letter in await letters(client)) == ["1", "4"]


@pytest.mark.slow
async def test_all_messages_of_a_damaged_batch_are_dead_letters_and_only_the_first_one_waits(
    client: Client,
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    id, flat = batch(3, 5)
    place = flat.index(b"b") + 1
    await put(client, id, [*flat[:place], flat[place][:-40], *flat[place + 1 :]])
    await publish(client, range(8, 10), topics=1)
    slow = GroupOptions(max_failures=4, retry_delay_ms=100)
    async with client.subscribe(SUB, start="earliest", options=slow) as reader:
        with awake() as clock:
            assert await take(reader, 5) == [0, 1, 2, 8, 9]
    assert clock.seconds < 5 * 0.7  # 0.1, 0.2 and 0.4 s for each would be more
    assert [letter.facts["offset"] for letter in await letters(client)] == ["3", "4", "5", "6", "7"]


async def test_a_damaged_message_stops_the_stream_if_the_group_says_so(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_space("s", ["a/#"])
    await put(client, *single(0, h=b"7"))
    stop = GroupOptions(max_failures=1, on_poison="stop")
    async with client.subscribe(SUB, start="earliest", options=stop) as reader:
        await until(lambda: "the entry 0-1 of stream s.0.0 is damaged" in caplog.text)
        await until(lambda: reader.streams == [])
        assert await letters(client) == []


WAYS: dict[str, tuple[dict[str, Any], Callable[[Client], Any]]] = {
    "group": ({}, lambda client: client.subscribe(SUB, start="earliest")),
    "listen": ({}, lambda client: client.listen("a/#", start="earliest")),
    "whole epochs": ({"epochs": 1}, lambda client: client.listen("a/#", start="earliest", epochs="atomic")),
    "collection": ({"collection": True}, lambda client: client.collection("a/#")),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_that_cannot_be_read_is_said_once_a_minute_and_tried_again(
    real_redis_url: str, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """It was said five times a second."""
    options, opened = WAYS[way]
    caplog.set_level(logging.DEBUG, logger="streamlease")
    async with connect(real_redis_url) as client:
        space = await client.create_space("s", ["a/#"], streams=1, **options)
        (stream,) = space.streams()
        if space.epochs:
            async with client.epoch_publisher("s", "p") as staged:
                await staged.send("a/1", b"x", epoch=1)
        else:
            async with client.publisher() as publisher:
                await publisher.send("a/1", b"x")
        async with asyncio.timeout(60):
            while await client.next_offsets([stream]) != {stream: 1}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        log = stream_log(stream)

        def said(level: int) -> int:
            return sum(
                one.levelno == level and log in one.message and one.message.startswith("reading ")
                for one in caplog.records
            )

        (kept,) = await ask(client.redis, [("DUMP", log)])
        await ask(client.redis, [("DEL", log), ("SET", log, "x")])

        async def first() -> None:
            async with opened(client) as reader:  # a collection is read here
                if way != "collection":
                    await anext(reader)

        reading = asyncio.create_task(first())
        await until(lambda: said(logging.DEBUG) > 3)
        await ask(client.redis, [("DEL", log), ("RESTORE", log, 0, kept)])
        async with asyncio.timeout(60):
            await reading
    assert said(logging.WARNING) == 1


async def test_a_damaged_message_ends_reading_without_a_group_with_its_offset(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    await put(client, *DAMAGED["deeply nested headers"])
    await publish(client, range(4, 6), topics=1)
    for subscription in (client.history("a/#"), client.listen("a/#", start="earliest")):
        got = []
        async with subscription as batches:
            with pytest.raises(SchemaMismatch, match="go on at offset 4"):
                async with asyncio.timeout(30):
                    async for found in batches:
                        got += [int(message.payload) for message in found.messages]
            assert got == [0, 1, 2]
            assert batches.positions == {"s.0.0": 3}
    async with client.listen("a/#", start={"s.0.0": 4}) as batches, asyncio.timeout(30):
        assert [message.offset for message in (await anext(batches)).messages] == [4, 5]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
async def test_whatever_stands_in_a_stream_all_that_can_be_read_is_delivered(
    client: Client, seed: int
) -> None:
    dice = random.Random(seed)
    await client.create_space("s", ["a/#"])
    good: list[int] = []
    bad: list[int] = []
    offset = 0
    for _ in range(40):
        count = dice.choice([1, 1, 2, 5])
        id, whole = batch(offset, count) if count > 1 else single(offset)
        whole = [b"a/x" if part == b"a" and place % 2 else part for place, part in enumerate(whole)]
        readable = None
        while readable is None:
            flat = [*whole]
            for _ in range(dice.choice([0, 0, 0, 1, 2])):
                place = dice.randrange(len(flat))
                damage = bytearray(flat[place] or b"?")
                damage[dice.randrange(len(damage))] ^= dice.randrange(1, 256)
                flat[place] = dice.choice([bytes(damage), b"", b"9" * 30, b"[" * 5000, b"%d" % 2**63])
            try:
                found = decode_entries(STREAM, [(id, flat)])
                readable = [one.offset for rows in found for one in to_messages(filter_batch(rows, "a/#"))]
            except DamagedEntry:
                readable = []
                bad += range(offset, offset + count)
            except SchemaMismatch:
                continue  # a name became 's': that would be an error of the reader
        await put(client, id, flat)
        good += readable
        offset += count
    assert len(bad) > 5 and len(good) > 5
    once = GroupOptions(max_failures=1)
    async with client.subscribe(SUB, start="earliest", options=once, max_batch=7) as reader:
        got: list[int] = []
        async with asyncio.timeout(60):
            while len(got) < len(good):
                batch_ = await anext(reader)
                got += [message.offset for message in batch_.messages]
                await batch_.commit()
            await until(lambda: all(held.acknowledged == offset for held in reader.book.streams.values()))
        assert got == good
    assert [int(letter.facts["offset"]) for letter in await letters(client)] == bad
    start = 0
    again: list[int] = []
    async with asyncio.timeout(60):
        while start < offset:
            async with client.history("a/#", since=start - 1) as history:
                try:
                    async for found_ in history:
                        again += [message.offset for message in found_.messages]
                    break
                except DamagedEntry as error:
                    start = error.end
    assert again == good


@pytest.mark.parametrize(
    ("field", "value"), [("next", "many"), ("schemas", "[" * 100_000), ("schemas", "[7]"), ("floor", "?")]
)
async def test_a_stream_whose_state_is_damaged_is_told_and_the_others_go_on(
    client: Client, field: str, value: str
) -> None:
    await client.create_space("s", ["a/#"])
    await client.create_space("t", ["b/#"])
    await publish(client, range(3), topics=1)
    await publish(client, range(3), topics=1, root="b")
    await client.redis.hset(stream_meta(STREAM), field, value)
    async with Tails(client.redis, push=False, poll_interval=0.01) as watched:
        tails = watched.watch()
        tails.set_streams([STREAM, StreamId("t", 0, 0)])
        await until(lambda: tails.next_of(StreamId("t", 0, 0)) == 3)
        assert tails.error is None
    with pytest.raises(StreamleaseError, match=r"what is kept about stream s\.0\.0 is damaged"):
        await AsyncLog(client.redis).read(STREAM, 0)


# -- tasks ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def other(real_redis_url: str) -> AsyncIterator[Client]:
    async with connect(real_redis_url) as client:
        yield client


async def test_a_defect_while_reading_is_raised_and_the_streams_go_to_others(
    client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    whole = Fetching.round

    async def breaks(fetching: Fetching) -> bool:
        if fetching._book.streams:
            raise ZeroDivisionError("division by zero")
        return await whole(fetching)

    async with client.subscribe(SUB, start="earliest") as reader:
        with monkeypatch.context() as patched:
            patched.setattr(Fetching, "round", breaks)
            with pytest.raises(
                TaskFailed, match=r"subscription \$shared/g/a/#: fetching ended by a defect .*Zero"
            ):
                async with asyncio.timeout(30):
                    await anext(reader)
        async with other.subscribe(SUB) as second:
            assert await take(second, 3) == [0, 1, 2]
        with pytest.raises(TaskFailed):
            await anext(reader)


@pytest.mark.parametrize("loop", ["receive", "open"])
async def test_a_defect_of_the_agent_ends_its_sessions_and_the_next_one_gets_another_agent(
    client: Client, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    monkeypatch.setattr("streamlease.registry.mail.mailbox.KEEP_ALIVE_MS", 20)
    broken = (await client.agent()).mail._mailbox
    whole = getattr(Mailbox, loop)

    async def breaks(mailbox: Mailbox) -> object:
        if mailbox is broken:
            raise LookupError("nobody foresaw it")
        return await whole(mailbox)

    async with client.subscribe(SUB, start="earliest") as reader:
        await until(lambda: reader.streams == ["s.0.0"])
        monkeypatch.setattr(Mailbox, loop, breaks)
        with pytest.raises(TaskFailed, match="LookupError: nobody foresaw it"):
            async with asyncio.timeout(30):
                while True:
                    await anext(reader)
    async with client.subscribe(SUB) as reader:
        assert await take(reader, 3) == [0, 1, 2]


async def test_a_defect_in_one_session_leaves_the_others_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"])
    async with (
        client.subscribe(SUB, start="earliest") as reader,
        client.subscribe("$shared/h/a/#", start="earliest") as spared,
    ):
        await until(lambda: reader.streams == spared.streams == ["s.0.0"])
        assert reader._settling.session is not None
        monkeypatch.setattr(reader._settling.session.slots[0], "tick", lambda since: 1 // 0)
        with pytest.raises(TaskFailed, match="a tick ended by a defect"):
            async with asyncio.timeout(30):
                await anext(reader)
        await publish(client, range(3), topics=1)
        assert await take(spared, 3) == [0, 1, 2]


def test_a_group_that_no_leader_host_can_lead_is_said_where_it_is_consumed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its consumer waited without a word; why, is in the logs of hosts on other machines."""
    group = SharedSubscription.parse(SUB)

    async def host(server: MemoryServer) -> None:
        async with memory_connection.connect(server, embedded=False) as client:
            leads = LeaderHost(client.redis, HostConfig(name="host"))
            await leads.start()
            try:
                await asyncio.Event().wait()
            finally:
                await leads.close()

    async def consume(server: MemoryServer) -> None:
        async with memory_connection.connect(server) as client:
            await client.create_space("s", ["a/#"])
            await client.groups.declare(group)
            damage = ("XADD", keys.journal(group.id), "9999999999999-1", "r", b"\xff", "t", "x", "n", "1")
            await ask(client.redis, [damage])
            async with client.subscribe(SUB) as reader:
                await anext(reader)

    with Timeline() as timeline:
        server = MemoryServer(timeline.clock)
        timeline.process("host").start(host(server))
        timeline.run(1)
        timeline.process("consumer").start(consume(server))
        timeline.run(9)
        assert "the logs of hosts say why" not in caplog.text
        timeline.run(30)
    said = [one.message for one in caplog.records if "the logs of hosts say why" in one.message]
    assert said == [
        f"looking for the leader of {group.id}: no leader host leads it: "
        f"the logs of hosts say why, or 'streamlease doctor'"
    ]
