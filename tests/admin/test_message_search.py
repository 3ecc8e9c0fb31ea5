"""Messages found by topic, key, text, time and offset, over many streams, in pieces."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from streamlease.admin.messages import message_search
from streamlease.admin.messages.message_search import MessageQuestion, cursor_text, find, parse_cursor
from streamlease.agent.client import Client, connect
from streamlease.protocol.errors import InvalidInput, InvalidOption, InvalidTopic, UnknownSpace
from streamlease.streams.archive.upkeep_steps import retire
from streamlease.streams.entries.delivered import Message
from streamlease.streams.log.keys import stream_log
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import connect_blocking
from tests.archive.helpers import archive, archiver, publish, space_of, trim_all

MANY = 400


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    async with connect(embedded_redis_url, embedded=False) as client:
        await client.create_space("calls", ["calls/#"], streams=7)
        rolls = random.Random(7)
        async with client.publisher() as publisher:
            for number in range(MANY):
                await publisher.send(
                    f"calls/{number % 11}/in",
                    f"call number {number} of {'Ana' if number % 50 == 0 else 'Ben'}",
                    key=f"k{number % 13}",
                    headers={"host": f"h{rolls.randrange(3)}"},
                )
        yield client


async def all_of(client: Client, question: MessageQuestion) -> list[Message]:
    """Everything, page by page."""
    messages: list[Message] = []
    while True:
        found = await find(client, question)
        messages += found.messages
        assert len(found.messages) <= question.limit
        if found.done:
            return messages
        question = replace(question, cursor=parse_cursor(cursor_text(found.cursor)))


def numbers(messages: list[Message]) -> list[int]:
    return [int(one.payload.split()[2]) for one in messages]


@pytest.mark.parametrize("limit", [1, 37, 1000])
async def test_all_streams_are_one_list_in_the_order_of_append_times(client: Client, limit: int) -> None:
    if limit > 1:
        assert numbers(await all_of(client, MessageQuestion("calls", limit=limit))) == [*range(MANY)][::-1]
        assert numbers(await all_of(client, MessageQuestion("calls", "oldest", limit=limit))) == [
            *range(MANY)
        ]
    else:
        assert numbers((await find(client, MessageQuestion("calls", limit=1))).messages) == [MANY - 1]
        assert numbers((await find(client, MessageQuestion("calls", "oldest", limit=1))).messages) == [0]


@pytest.mark.parametrize(
    ("wanted", "numbers_of"),
    [
        ({"filter": "calls/3/+"}, lambda n: n % 11 == 3),
        ({"filter": "calls/3/in"}, lambda n: n % 11 == 3),
        ({"key": b"k5"}, lambda n: n % 13 == 5),
        ({"filter": "calls/3/in", "key": b"k5"}, lambda n: n % 11 == 3 and n % 13 == 5),
        ({"text": "ANA"}, lambda n: n % 50 == 0),
        ({"text": "k12"}, lambda n: n % 13 == 12),
        ({"text": "calls/7"}, lambda n: n % 11 == 7),
        ({"text": "of nobody"}, lambda n: False),
    ],
)
async def test_what_is_wanted(client: Client, wanted: dict[str, Any], numbers_of: Any) -> None:
    expected = [n for n in range(MANY) if numbers_of(n)]
    assert numbers(await all_of(client, MessageQuestion("calls", "oldest", limit=23, **wanted))) == expected
    assert numbers(await all_of(client, MessageQuestion("calls", limit=23, **wanted))) == expected[::-1]


async def test_a_time_and_an_offset_are_where_it_begins(client: Client) -> None:
    everything = await all_of(client, MessageQuestion("calls", "oldest", limit=1000))
    for place in (0, 1, 200, MANY - 1):
        moment = everything[place].append_timestamp_us
        before = [one for one in everything if one.append_timestamp_us <= moment]
        after = [one for one in everything if one.append_timestamp_us >= moment]
        assert await all_of(client, MessageQuestion("calls", "oldest", moment=moment, limit=50)) == after
        newest = await all_of(client, MessageQuestion("calls", moment=moment, limit=50))
        assert sorted(newest) == sorted(before)
    stream = everything[0].stream
    own = [one for one in everything if one.stream == stream]
    middle = len(own) // 2
    question = MessageQuestion("calls", "oldest", stream=stream, offset=middle, limit=7)
    assert await all_of(client, question) == own[middle:]
    assert await all_of(client, replace(question, order="newest")) == own[:middle][::-1]
    assert (await find(client, replace(question, offset=10_000))).messages == []


async def test_a_time_is_looked_for_in_the_archive_too(embedded_redis_url: str, tmp_path: Path) -> None:
    """Most of each stream is in files alone, the newest in memory; also where the oldest was retired."""
    async with connect(embedded_redis_url, embedded=False) as client:
        space = await space_of(client, str(tmp_path / "archive"), streams=3)
        with closing(connect_blocking(embedded_redis_url)) as blocking:
            for first in (0, 100, 200):
                await publish(client, first, 100)
                await asyncio.to_thread(archive, blocking, space)
            await trim_all(client, space)
            await publish(client, 300, 50)
            await search_all_times(client)
            worker, states = archiver(blocking, space), await AsyncLog(client.redis).states(space.streams())
            retired = await asyncio.to_thread(
                retire, worker, {stream: state.next // 2 for stream, state in states.items()}
            )
            assert retired
            await search_all_times(client)


async def search_all_times(client: Client) -> None:
    oldest = MessageQuestion("flights", "oldest", limit=1000)
    everything = await all_of(client, oldest)
    times = sorted({one.append_timestamp_us for one in everything})
    assert [one.append_timestamp_us for one in everything] == sorted(
        one.append_timestamp_us for one in everything
    )
    for time in (*times[:: max(1, len(times) // 8)], times[0] - 1, times[-1]):
        for order in ("oldest", "newest"):
            wanted = [
                (one.stream, one.offset)
                for one in everything
                if (one.append_timestamp_us >= time if order == "oldest" else one.append_timestamp_us <= time)
            ]
            found = await all_of(client, replace(oldest, order=order, moment=time))
            assert sorted((one.stream, one.offset) for one in found) == sorted(wanted), (order, time)


async def test_a_question_that_matches_little_ends_within_its_bounds_and_goes_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "MOST_MESSAGES", 60)
    monkeypatch.setattr(message_search, "FIRST_PIECE", 8)
    question, answers = MessageQuestion("calls", text="number 0 of"), 0
    found = await find(client, question)
    while not found.done:
        answers += 1
        assert found.messages == []
        assert found.reached is not None
        assert 60 <= found.looked < 60 + 7 * message_search.LARGEST_PIECE
        found = await find(client, replace(question, cursor=found.cursor))
    assert (numbers(found.messages), answers > 0) == ([0], True)


async def test_what_cannot_be_read_is_told_and_passed_over(client: Client, embedded_redis_url: str) -> None:
    space = await client.spaces.get("calls")
    stream = space.streams()[0]
    states = await AsyncLog(client.redis).states([stream])
    with redis.Redis.from_url(embedded_redis_url) as store:
        entries: Any = store.xrange(stream_log(stream), count=2)
        store.xdel(stream_log(stream), entries[1][0])
    for order in ("newest", "oldest"):
        question = MessageQuestion("calls", order, stream=str(stream), limit=1000)
        found = await find(client, question)
        assert len(found.messages) == states[stream].next - 1
        assert (found.done, len(found.notes), "were lost" in found.notes[0]) == (True, 1, True)


async def test_a_stream_whose_entries_redis_lost_is_told_of_until_a_time_too(
    client: Client, embedded_redis_url: str
) -> None:
    newest = (await find(client, MessageQuestion("calls", limit=1))).messages[0]
    space = await client.spaces.get("calls")
    with redis.Redis.from_url(embedded_redis_url) as store:
        store.delete(stream_log(space.streams()[0]))
    found = await find(client, MessageQuestion("calls", moment=newest.append_timestamp_us, limit=1000))
    assert (found.done, "were lost" in " ".join(found.notes)) == (True, True)


async def test_typed_columns_are_searched_and_returned(client: Client) -> None:
    schema = pa.schema([("city", pa.string()), ("flights", pa.int64())])
    await client.create_space("typed", ["typed/#"], schema=schema)
    async with client.publisher() as publisher:
        await publisher.send("typed/a", {"city": "Genève", "flights": 3})
        await publisher.send("typed/a", {"city": "Oslo", "flights": 4})
    found = await find(client, MessageQuestion("typed", text="genève"))
    assert [one.values for one in found.messages] == [{"city": "Genève", "flights": 3}]


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (MessageQuestion("nothing"), UnknownSpace),
        (MessageQuestion("calls", filter="a/#/b"), InvalidTopic),
        (MessageQuestion("calls", stream="calls.0.99"), InvalidInput),
        (MessageQuestion("calls", offset=3), InvalidOption),
    ],
)
async def test_bad_questions(client: Client, question: MessageQuestion, error: type[Exception]) -> None:
    with pytest.raises(error):
        await find(client, question)


@pytest.mark.parametrize("text", ["", "x", "####", "eJyrVgIAAKcAVA=="])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is none"):
        parse_cursor(text)
