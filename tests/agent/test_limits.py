"""What a publisher may not be given, and what is told of messages that were written before it was refused."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent import blocking
from streamlease.agent.client import Client
from streamlease.leader import letters as writer
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.errors import InvalidInput, MessageTooLarge, StreamleaseError
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.dead_letters import DeadLetter, DeadLetters, Poisoned
from streamlease.streams.entries.entries import Row, encode_message
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME, values_of
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import AsyncLog
from tests.agent.helpers import SUB, publish, take
from tests.streams.helpers import append

SHARED = SharedSubscription.parse(SUB)
OPTIONS = GroupOptions(max_failures=2, retry_delay_ms=1)
STREAM = StreamId("s", 0, 0)
SURROGATE = "a/\ud800"

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "time beyond int64": (
        {"timestamp": 2**63},
        "timestamp 9223372036854775808 lies beyond the years 1 to 9999",
    ),
    "last time of int64": ({"timestamp": 2**63 - 1}, "beyond the years 1 to 9999"),
    "first time of int64": ({"timestamp": -(2**63)}, "beyond the years 1 to 9999"),
    "time behind the last": ({"timestamp": LAST_TIME}, "beyond the years 1 to 9999"),
    "time before the first": ({"timestamp": FIRST_TIME - 1}, "beyond the years 1 to 9999"),
    "time before the first by its zone": (
        {"timestamp": datetime.min.replace(tzinfo=timezone(timedelta(hours=3)))},
        "beyond the years 1 to 9999",
    ),
    "time without zone": ({"timestamp": datetime(2020, 1, 1)}, "has no time zone"),
    "time as text": ({"timestamp": "2020"}, "timestamp '2020' is no time"),
    "time as truth": ({"timestamp": True}, "timestamp True is no time"),
    "lone surrogate in the payload": ({"payload": SURROGATE}, r"the payload, 'a/\\ud800', cannot be encoded"),
    "lone surrogate in the key": (
        {"key": SURROGATE},
        r"the key, 'a/\\ud800', cannot be encoded as UTF-8 \(lone",
    ),
    "lone surrogate in a header": ({"headers": {"h": SURROGATE}}, "header h, .* cannot be encoded"),
    "lone surrogate in a header name": ({"headers": {SURROGATE: b""}}, "a header name, .* cannot be encoded"),
    "lone surrogate in the topic": ({"topic": SURROGATE}, "lone surrogate"),
    "header name that is no text": ({"headers": {1: b""}}, "header name 1 is a int"),
    "header value that is no text": ({"headers": {"h": 1}}, "header h is a int"),
    "headers that are no pairs": ({"headers": ["x"]}, r"headers are \['x'\]: pass a mapping"),
    "headers that are a number": ({"headers": 7}, "headers are 7: pass a mapping"),
    "key that is a number": ({"key": 7}, "the key is a int"),
    "payload that is a number": ({"payload": 7}, "the payload is a int"),
    "topic that is a number": ({"topic": 7}, "topic 7 is a int"),
    "key too large": ({"key": b"x" * (16 * 2**20 + 1)}, "may have 16777216"),
    "headers too large": ({"headers": {"h": b"x" * (16 * 2**20)}}, "may have 16777216"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_cannot_be_published_is_refused_in_one_line(client: Client, what: str) -> None:
    changed, message = REFUSED[what]
    given = {"topic": "a/x", "payload": b"", **changed}
    await client.create_space("s", ["a/#"])
    async with client.publisher() as publisher:
        fine = await publisher.submit("a/x", b"fine")
        for send in (publisher.send, publisher.submit):
            with pytest.raises(InvalidInput, match=message) as told:
                await send(**given)
            assert "\n" not in str(told.value)
            assert len(str(told.value)) < 400
        plural = {"topic": "topics", "payload": "payloads", "key": "keys", "timestamp": "timestamps"}
        columns: dict[str, Any] = {"topics": ["a/x"], "payloads": [b""]}
        columns |= {plural.get(name, name): [value] for name, value in changed.items()}
        with pytest.raises(InvalidInput):
            await publisher.send_many(**columns)
        await fine
    assert (await client.next_offsets([STREAM]))[STREAM] == 1


def test_the_blocking_publisher_refuses_it_too(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            publisher.submit("a/x", b"fine")
            for time in (LAST_TIME, FIRST_TIME - 1, 2**63 - 1):
                with pytest.raises(InvalidInput, match="beyond the years 1 to 9999"):
                    publisher.submit("a/x", b"", timestamp=time)
            publisher.submit("a/x", b"", timestamp=LAST_TIME - 1)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
async def test_times_in_record_batches_are_looked_at(client: Client, unit: str) -> None:
    await client.create_space("s", ["a/#"])
    beyond = pa.array([None, 2**63 - 1], pa.int64()).cast(pa.timestamp(unit, tz="UTC"))
    batch = pa.record_batch(
        {"topic": pa.array(["a/x"] * 2), "payload": pa.array([b""] * 2), "timestamp": beyond}
    )
    async with client.publisher() as publisher:
        if unit == "ns":  # 2262
            await publisher.send_batch("topic", batch)
        else:
            with pytest.raises(InvalidInput, match="timestamp"):
                await publisher.send_batch("topic", batch)


async def test_the_first_and_the_last_time_come_back(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    async with client.publisher() as publisher:
        for time in (FIRST_TIME, LAST_TIME - 1):
            await publisher.send("a/x", b"", timestamp=time)
    async with client.history("a/#") as history:
        times = [message.timestamp async for batch in history for message in batch.messages]
    assert [time.replace(tzinfo=None) for time in times] == [datetime.min, datetime.max]


async def test_headers_and_keys_of_record_batches_have_limits(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    large = pa.array([b"x" * (16 * 2**20 + 1)], pa.binary())
    async with client.publisher() as publisher:
        for name, column in (
            ("key", large),
            ("headers", pa.array([[{"key": "h", "value": large[0].as_py()}]])),
        ):
            batch = pa.record_batch({"topic": pa.array(["a/x"]), "payload": pa.array([b""]), name: column})
            with pytest.raises(MessageTooLarge, match="may have 16777216"):
                await publisher.send_batch("topic", batch)


# -- what was written before --------------------------------------------------------------------------------


async def old(client: Client, offset: int, time: int) -> None:
    """A message as an earlier publisher wrote it."""
    await AsyncLog(client.redis).append(append(STREAM, offset, [Row("a/x", b"%d" % offset, timestamp=time)]))


async def test_a_message_with_any_time_can_be_read_and_becomes_a_dead_letter(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    for offset, time in enumerate((2**63 - 1, -(2**63), 5)):
        await old(client, offset, time)
    async with client.subscribe(SUB, start="earliest", options=OPTIONS) as reader:
        for _ in range(2):
            async with asyncio.timeout(30):
                batch = await anext(reader)
            assert [message.timestamp.year for message in batch.messages] == [9999, 1, 1970]
            verdict = await batch.fail(0, SURROGATE)
        assert verdict == "passed"
    (letter,) = await letters(client)
    assert letter.facts["cause"] == r"a/\ud800"
    assert letter.message.payload == b"0"
    async with client.history("$dead/#") as history:
        (exactly,) = [
            batch.to_arrow().column("timestamp").cast(pa.int64())[0].as_py() async for batch in history
        ]
    assert exactly == 2**63 - 1


def test_values_that_no_datetime_can_be_are_the_first_or_the_last() -> None:
    times = pa.array([[2**62, 0], None, [-(2**62)]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us")))
    assert values_of(times) == [[datetime.max, datetime(1970, 1, 1)], None, [datetime.min]]
    nested = pa.StructArray.from_arrays([pa.array([2**30, -(2**30)], pa.int32()).cast(pa.date32())], ["d"])
    assert values_of(nested) == [{"d": date.max}, {"d": date.min}]
    moments = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    assert values_of(moments) == [datetime.max.replace(tzinfo=UTC)]


# -- dead letters are always written ------------------------------------------------------------------------


async def letters(client: Client) -> list[DeadLetter]:
    return await DeadLetters(client.redis).of(SHARED, OPTIONS)


async def dead(client: Client, offset: int) -> DeadLetter:
    """The dead letter of what stands, or does not stand, at `offset`."""
    await DeadLetters(client.redis).write(Poisoned(SHARED, OPTIONS, STREAM, offset, 4, 2, "b1", "no"))
    return (await letters(client))[-1]


async def test_the_dead_letter_of_a_message_that_is_not_there_says_so(client: Client) -> None:
    """A hole, what retention removed, and what lies behind the end that a failover left."""
    await client.create_space("s", ["a/#"])
    await publish(client, range(6), topics=1)
    async with client.publisher() as publisher:
        await publisher.send("a/x", b"6")
    await client.redis.xdel(stream_log(STREAM), "6-1")
    await client.redis.xadd(stream_log(STREAM), {b"a": b"5", b"t": b"a/x", b"p": b"7"}, id="7-1")
    await client.redis.hset(stream_meta(STREAM), "next", "8")
    for offset in (6, 8, 11):
        letter = await dead(client, offset)
        assert (letter.facts["offset"], letter.facts["payload"]) == (str(offset), "lost")
        assert "s.0.0" in letter.facts["lost"]
        with pytest.raises(StreamleaseError, match="has no message"):
            await DeadLetters(client.redis).replay(SHARED, letter, "me")


async def test_the_dead_letter_of_what_cannot_be_read_says_why(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    entry = encode_message(Row("a/x", b"p", b"k"))
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    broken = fields | {b"a": b"5", b"h": json.dumps([["h"]]).encode()}
    await client.redis.xadd(stream_log(STREAM), broken, id="0-1")  # type: ignore[arg-type]
    await client.redis.hset(stream_meta(STREAM), "next", "1")
    letter = await dead(client, 0)
    assert letter.facts["payload"] == "unreadable"
    assert "the entry 0-1 of stream s.0.0 is damaged" in letter.facts["unreadable"]
    with pytest.raises(StreamleaseError, match=r"has no message: the entry 0-1 of stream s\.0\.0"):
        await DeadLetters(client.redis).replay(SHARED, letter, "me")


async def test_the_dead_letter_of_what_is_too_large_for_one_says_so(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(1), topics=1)
    monkeypatch.setattr("streamlease.streams.entries.message_rows.MAX_MESSAGE_BYTES", 0)
    letter = await dead(client, 0)
    assert letter.facts["payload"] == "unreadable"
    assert "larger than" in letter.facts["unreadable"]


async def test_a_defect_while_a_dead_letter_is_written_is_told_and_does_not_end_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    monkeypatch.setattr(writer, "AGAIN_SECONDS", 0.01)
    whole = DeadLetters.write
    broken = True

    async def breaks(self: DeadLetters, poisoned: Poisoned) -> tuple[StreamId, int]:
        if broken:
            raise ValueError("nobody foresaw it")
        return await whole(self, poisoned)

    monkeypatch.setattr(DeadLetters, "write", breaks)
    once = GroupOptions(max_failures=1)
    async with client.subscribe(SUB, start="earliest", options=once) as reader:
        async with asyncio.timeout(30):
            batch = await anext(reader)
        failing = asyncio.create_task(batch.fail(0, "no"))
        described: dict[str, Any] = {}

        async def look() -> None:
            (described["stream"],) = (await client.command(SHARED, DescribeGroup()))["streams"]

        async with asyncio.timeout(30):
            while not (described.get("stream") or {}).get("failure", {}).get("refused"):
                await look()
        assert "ValueError: nobody foresaw it" in described["stream"]["failure"]["refused"]
        broken = False
        assert await failing == "passed"
        assert await take(reader, 2) == [1, 2]
