"""A message that failed waits before it is handed out again, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from streamlease.agent.batch import ReadAhead
from streamlease.agent.client import Client
from streamlease.agent.dividing import News
from streamlease.agent.subscription import SharedReader
from streamlease.borrower.events import FailureAnswered, StreamGranted
from streamlease.protocol.group_options import MAX_RETRY_DELAY_MS, GroupOptions
from streamlease.protocol.messages import Verdict
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.log.many import Outcome
from tests.agent.helpers import SUB, publish, resting_tails, take

SHARED = SharedSubscription.parse("$shared/g/#")
S0, S1 = "s.0.0", "s.0.1"


class Reader(SharedReader):
    """A reader with a clock of its own, which notes from where it fetches; each stream has ten messages."""

    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(None, resting_tails(), SHARED, max_batch=2, buffered_batches=4, clock=self._time)  # type: ignore[arg-type]
        self._dividing.next_of = lambda stream: 10  # type: ignore[method-assign]
        self._fetching._read = self._noted  # type: ignore[method-assign]
        session: Any = SimpleNamespace(
            new_failure=lambda: "f", slots=[SimpleNamespace(step=lambda event: None)]
        )
        self._settling.session = session
        self.fetches: list[tuple[str, int]] = []

    def _time(self) -> float:
        return self.now

    async def _noted(self, reading: Sequence[News]) -> AsyncGenerator[list[tuple[News, Outcome, int]]]:
        """In place of reading."""
        for news in reading:
            self.fetches.append((str(news.stream), news.start))
            news.held.position = news.end
            yield [(news, [], 0)]

    async def fetched(self) -> list[tuple[str, int]]:
        """What one round fetches."""
        self.fetches = []
        await self._fetch_round()
        return self.fetches

    async def fails(self, stream: str, offset: int, verdict: Verdict, retry_after_ms: int) -> None:
        """A message fails and the leader answers."""
        told = asyncio.create_task(self._settling.fail(self.book.streams[stream], offset, "no"))
        await asyncio.sleep(0)
        self.answered(0, FailureAnswered(stream, 1, offset, "f", verdict, retry_after_ms))
        assert await told == verdict


@pytest.fixture
async def reader() -> Reader:
    reader = Reader()
    for stream in (S0, S1):
        reader.granted(0, StreamGranted(stream, 1, 0, None, None))
    assert await reader.fetched() == [(S0, 0), (S1, 0)]
    return reader


async def test_a_failed_message_is_fetched_again_after_its_delay(reader: Reader) -> None:
    await reader.fails(S0, 4, "retry", 1500)
    reader.book.streams[S1].position = 7
    reader._fetching.look_at(reader.book.streams[S1])
    assert reader._fetching.pause(1.0) == 1.0
    assert await reader.fetched() == [(S1, 7)], "the other stream goes on"
    reader.now += 1.25
    assert (await reader.fetched(), reader._fetching.pause(1.0)) == ([], 0.25)
    reader.now += 0.25
    assert reader._fetching.pause(1.0) == 0.0
    assert await reader.fetched() == [(S0, 4)]
    assert reader._fetching.pause(1.0) == 1.0


async def test_a_wait_that_is_over_while_there_is_no_room_keeps_nobody_awake(reader: Reader) -> None:
    await reader.fails(S0, 4, "retry", 1500)
    reader._fetching.waiting = ReadAhead(0, 0, 0)
    reader._fetching.waiting.batches = 1
    reader.now += 2.0
    assert await reader.fetched() == []
    assert reader._fetching.pause(1.0) == 1.0


async def test_a_dead_letter_lets_the_stream_go_on_at_once(reader: Reader) -> None:
    await reader.fails(S0, 4, "passed", 0)
    assert await reader.fetched() == [(S0, 5)]


async def test_a_stream_that_comes_with_a_delay_waits_for_it(reader: Reader) -> None:
    reader.granted(0, StreamGranted(S0, 5, 4, None, None, None, 2000))
    assert await reader.fetched() == []
    reader.now += 2.0
    assert await reader.fetched() == [(S0, 4)]


async def test_a_stream_that_waits_is_given_back_at_once_and_the_others_go_on(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, range(40))
    slowly = GroupOptions(retry_delay_ms=MAX_RETRY_DELAY_MS, max_retry_delay_ms=MAX_RETRY_DELAY_MS)
    async with client.subscribe(SUB, start="earliest", options=slowly) as reader:
        async with asyncio.timeout(60):
            batch = await anext(reader)
        failed = {message.payload for message in batch.messages}
        assert await batch.fail(batch.start, "no") == "retry"
        others = await take(reader, 40 - len(failed))
        assert {str(number).encode() for number in others} & failed == set()
