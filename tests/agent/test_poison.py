"""Messages that cannot be processed, from end to end on real servers."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.agent import blocking
from streamlease.agent.batch import Batch
from streamlease.agent.client import Client
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.errors import Fenced, InvalidInput, InvalidOption, SpaceConflict, UnknownSpace
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.dead_letters import DeadLetter, DeadLetters, Poisoned
from tests.agent.helpers import SUB, publish, take

SHARED = SharedSubscription.parse(SUB)
TWICE = GroupOptions(max_failures=2)
STREAM = StreamId("s", 0, 0)


async def letters(client: Client, options: GroupOptions = TWICE) -> list[DeadLetter]:
    return await DeadLetters(client.redis).of(SHARED, options)


async def following(reader: SharedReader) -> Batch:
    async with asyncio.timeout(30):
        return await anext(reader)


def poisoned(offset: int, options: GroupOptions = TWICE) -> Poisoned:
    return Poisoned(SHARED, options, STREAM, offset, 4, 2, "b1", "ValueError: no")


@pytest.mark.slow
async def test_a_message_that_fails_twice_is_a_dead_letter_and_the_rest_goes_on_in_order(
    client: Client,
) -> None:
    await client.create_space("s", ["a/#"])
    async with client.publisher() as publisher:
        for number in range(10):
            await publisher.send(
                "a/x", str(number), key=b"k", headers={"h": b"v"}, timestamp=1_000_000 + number
            )
    async with client.subscribe(SUB, start="earliest", options=TWICE) as reader:
        batch = await following(reader)
        assert await batch.fail(4, ValueError("no")) == "retry"
        again = await following(reader)
        assert again.messages[0].offset == 4
        with pytest.raises(InvalidInput, match="drop the batch"):
            await batch.commit()
        with pytest.raises(InvalidInput, match="drop the batch"):
            await batch.fail(5, "late")
        assert await again.fail(4, ValueError("no")) == "passed"
        (letter,) = await letters(client)
        assert await take(reader, 5) == [5, 6, 7, 8, 9]
    message = letter.message
    assert (message.topic, message.key, message.payload) == ("$dead/g/a/x", b"k", b"4")
    assert letter.original == (("h", b"v"),)
    assert message.timestamp.timestamp() == 1.000004
    assert letter.facts | {"borrower": ""} == {
        "group": SHARED.id,
        "stream": "s.0.0",
        "offset": "4",
        "lease-epoch": "1",
        "failures": "2",
        "cause": "ValueError: no",
        "borrower": "",
        "topic": "a/x",
    }


@pytest.mark.slow
async def test_failures_count_across_consumers(client: Client, second: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    async with client.subscribe(SUB, start="earliest", options=TWICE) as reader:
        assert await (await following(reader)).fail(0, "first") == "retry"
    async with second.subscribe(SUB) as reader:
        assert await (await following(reader)).fail(0, "second") == "passed"
        assert await take(reader, 2) == [1, 2]
    (letter,) = await letters(client)
    assert letter.facts["cause"] == "second"


async def test_what_cannot_have_failed_is_refused(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(10), topics=1)
    async with client.subscribe(SUB, start="earliest") as reader:
        batch = await following(reader)
        with pytest.raises(InvalidOption, match="offset is 99: this batch has offsets 0 to"):
            await batch.fail(99, "x")
        await batch.commit(batch.start + 1)
        with pytest.raises(InvalidOption, match=r"offset 0 of stream s\.0\.0 is committed"):
            await batch.fail(0, "x")
    with pytest.raises(Fenced):
        await batch.fail(1, "x")


async def test_a_stopped_stream_is_nobodys_and_the_others_go_on(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, range(40))
    options = GroupOptions(max_failures=1, on_poison="stop")
    async with client.subscribe(SUB, start="earliest", options=options, max_batch=5) as reader:
        batch = await following(reader)
        assert await batch.fail(batch.messages[0].offset, "stop") == "stopped"
        other = await following(reader)
        assert other.stream != batch.stream
        await other.commit()
        async with asyncio.timeout(30):
            while str(batch.stream) in reader.streams:  # noqa: ASYNC110 (a condition of any kind)
                await asyncio.sleep(0.01)
    assert await letters(client, options) == []


async def test_the_blocking_twin_reports_failures_too(client: Client, real_redis_url: str) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)

    def consume() -> list[bytes]:
        once = GroupOptions(max_failures=1)
        with (
            blocking.connect(real_redis_url) as twin,
            twin.subscribe(SUB, start="earliest", options=once) as subscription,
        ):
            batch = subscription.poll(30)
            assert batch is not None
            assert batch.fail(batch.start, "no") == "passed"
            left = subscription.poll(30)
            assert left is not None
            left.commit()
            return [message.payload for message in left.messages]

    assert (await asyncio.to_thread(consume))[0] == b"1"


# -- the dead letters themselves -----------------------------------------------------------------------------


async def test_a_dead_letter_is_written_once_whoever_writes_it(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(10), topics=1)
    first = await DeadLetters(client.redis).write(poisoned(3))
    assert await DeadLetters(client.redis).write(poisoned(3)) == first
    later = await DeadLetters(client.redis).write(poisoned(7))
    # A group that was reset comes to a lower offset again, and to one that is a dead letter already.
    assert await DeadLetters(client.redis).write(poisoned(3)) == first
    lower = await DeadLetters(client.redis).write(poisoned(2))
    assert await DeadLetters(client.redis).write(poisoned(2)) == lower
    assert await DeadLetters(client.redis).write(poisoned(7)) == later
    assert [letter.facts["offset"] for letter in await letters(client)] == ["3", "7", "2"]


async def test_a_new_generation_of_the_dead_letters_adds_none_twice(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await client.create_space("dead", ["$dead/g/#"])
    await publish(client, range(10), topics=1)
    first = await DeadLetters(client.redis).write(poisoned(3))
    await client.spaces.generations.alter("dead", streams=3)
    assert await DeadLetters(client.redis).write(poisoned(3)) == first
    await DeadLetters(client.redis).write(poisoned(4))
    assert [letter.facts["offset"] for letter in await letters(client)] == ["3", "4"]


async def test_the_space_of_dead_letters_may_be_of_ones_own(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3), topics=1)
    own = GroupOptions(dead_letters="errors/g")
    with pytest.raises(UnknownSpace):
        await DeadLetters(client.redis).write(poisoned(1, own))
    await client.create_space("errors", ["errors/#"])
    stream, _ = await DeadLetters(client.redis).write(poisoned(1, own))
    assert stream.space == "errors"
    (letter,) = await letters(client, own)
    assert letter.message.topic == "errors/g/a/0"
    await DeadLetters(client.redis).write(poisoned(2))
    with pytest.raises(SpaceConflict):
        await client.create_space("another", ["$dead/#"])


async def test_a_lost_original_leaves_a_letter_that_says_so(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(10), topics=1)
    await client.redis.hset("sl:{s.0.0}:meta", mapping={"floor": 5})
    await DeadLetters(client.redis).write(poisoned(1))
    (letter,) = await letters(client)
    assert letter.facts["payload"] == "lost"


async def test_typed_columns_survive_and_come_back(client: Client) -> None:
    await client.create_space("s", ["a/#"], schema={"columns": [{"name": "n", "type": "int64"}]})
    async with client.publisher() as publisher:
        await publisher.send("a/0", {"n": 41})
        await publisher.send("a/0", {"n": 42})
    dead = DeadLetters(client.redis)
    await dead.write(poisoned(1))
    (letter,) = await letters(client)
    assert letter.facts["payload"] == "arrow"
    stream, offset = await dead.replay(SHARED, letter, "me")
    assert offset == 2
    async with client.history("a/#", since={str(stream): 1}) as history:
        batch = await anext(history)
    assert batch.messages[0].values == {"n": 42}


async def test_a_replay_publishes_the_original_once(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    async with client.publisher() as publisher:
        await publisher.send("a/x", "p", key=b"k", headers=[("h", b"1"), ("h", b"2")], timestamp=77)
    dead = DeadLetters(client.redis)
    await dead.write(poisoned(0))
    (letter,) = await letters(client)
    assert letter.replayed is None
    where = await dead.replay(SHARED, letter, "me")
    assert await dead.replay(SHARED, letter, "me") == where == (STREAM, 1)
    (marked,) = await letters(client)
    assert marked.replayed is not None
    assert (marked.replayed["by"], marked.replayed["offset"]) == ("me", 1)
    async with client.history("a/#") as history:
        one, two = (await anext(history)).messages
    assert (two.topic, two.key, two.payload, two.headers) == (one.topic, one.key, one.payload, one.headers)
    assert two.timestamp == one.timestamp
