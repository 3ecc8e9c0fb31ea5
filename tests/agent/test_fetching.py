"""Reading ahead: how much, in which order, with how few exchanges, and without any news being pushed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent import fetching
from streamlease.agent.client import Client
from streamlease.agent.deadlines import growing_pause
from streamlease.agent.dividing import FIRST_ENTRIES, AsItCame, News
from streamlease.agent.fetching import FEWEST_STREAMS, MOST_STREAMS, ROUND_BYTES, Fetching
from streamlease.agent.settling import Settling
from streamlease.borrower.book import ConsumerBook, Held
from streamlease.borrower.lease import StreamEvent
from streamlease.protocol.errors import (
    ArchiveUnavailable,
    HistoryTruncated,
    StoreUnavailable,
    StreamleaseError,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.registry.commits import GroupCommits
from streamlease.streams.log import many as reading
from streamlease.streams.log import tails as tails_module
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.many import Found, read_all
from streamlease.streams.log.ranges import CHUNK_BYTES, FIRST_COUNT, MOST_FIRST_COUNT, RangeReader
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.cluster_slots import Answer
from streamlease.streams.redis.connection import AsyncRedis, Command, ask, connect, exchange_behind
from streamlease.streams.rows.shared_rows import Rows
from streamlease.streams.tasks import Supervisor
from tests.agent.helpers import SUB, in_order, publish, take
from tests.awake import within
from tests.streams.helpers import append, cluster_of, rows, until

STREAMS = [StreamId("s", 0, shard) for shard in range(5)]


class Rig:
    """A fetching whose streams have as many messages as `ends` says; notes from where it reads."""

    def __init__(
        self, *, most_waiting: int = 3, max_batch: int = 10, redis: Any = None, rest: float = 0.0
    ) -> None:
        self.ends = {str(stream): 5 for stream in STREAMS}
        self.now = 0.0
        self.bytes = 100
        """What a read of a stream brings."""
        book = ConsumerBook()
        self.held = book.streams
        for stream in STREAMS:
            self.held[str(stream)] = Held.begin(0, str(stream), 1, 0)
        self.read: list[tuple[int, int]] = []
        tails: Any = SimpleNamespace(next_of=lambda stream: self.ends[str(stream)])
        self.told: list[StreamleaseError] = []
        self.tasks = Supervisor("a rig", lambda _, error: self.told.append(error))
        settling = Settling(book, SUB, GroupCommits(redis, "g/a/#"), self.tasks)
        self.fetching = Fetching(
            redis, AsItCame(tails, "a/#", max_batch), book, settling, SUB, lambda: None, self.tasks,
            max_batch=max_batch, most_waiting=most_waiting, schema=None, clock=lambda: self.now,
            rest=rest,
        )  # fmt: skip
        self.waiting = self.fetching.waiting
        self.fetching._read = self.reads  # type: ignore[method-assign]
        self.hear()

    def hear(self, *streams: str) -> None:
        """The ends of these streams moved; without any, those of all."""
        for stream in streams or self.held:
            self.fetching.look_at(self.held[stream])

    async def reads(self, news: Sequence[News]) -> AsyncGenerator[list[tuple[News, Found, int]]]:
        self.read = [(one.stream.shard, one.start) for one in news]
        for one in news:
            topics = ["a/0"] * min(10, one.end - one.start)
            yield [(one, [Rows(pa.record_batch({"topic": topics}))], self.bytes)]

    async def round(self) -> list[tuple[int, int]]:
        self.read = []
        assert await self.fetching.round() == bool(self.read)
        return self.read

    def hand_out(self) -> list[tuple[int, int, int]]:
        """All that waits: stream, start and end."""
        taken = []
        while (batch := self.fetching.take()) is not None:
            taken.append((batch.stream.shard, batch.start, batch.end))
        return taken


async def test_a_stream_that_found_no_room_is_read_first_in_the_next_round() -> None:
    rig = Rig(most_waiting=1)
    assert await rig.round() == [(0, 0), (1, 0)], "ten messages may wait"
    assert await rig.round() == []
    assert rig.hand_out() == [(0, 0, 5), (1, 0, 5)]
    rig.ends = dict.fromkeys(rig.ends, 9)
    rig.hear()
    assert await rig.round() == [(2, 0), (3, 0)]
    rig.hand_out()
    assert await rig.round() == [(4, 0), (0, 5)]


async def test_nothing_is_read_until_half_of_what_may_wait_is_handed_out() -> None:
    rig = Rig(most_waiting=2)
    rig.ends = {"s.0.0": 20, **dict.fromkeys([str(stream) for stream in STREAMS[1:]], 0)}
    assert [await rig.round() for _ in range(2)] == [[(0, 0)], [(0, 10)]]
    rig.ends["s.0.1"] = 1
    rig.hear("s.0.1")
    assert not rig.fetching.wants_round
    assert await rig.round() == []
    assert rig.fetching.take() is not None
    assert rig.fetching.wants_round
    assert await rig.round() == [(1, 0)]


async def test_the_next_round_waits_until_most_of_what_was_read_is_handed_out() -> None:
    rig = Rig(most_waiting=100, rest=3600.0)
    assert len(await rig.round()) == len(STREAMS)
    rig.ends = dict.fromkeys(rig.ends, 6)
    rig.hear()
    for left in range(len(STREAMS) - 1, 1, -1):
        assert rig.fetching.take() is not None
        assert not rig.fetching.wants_round, f"{left} batches wait"
        assert 3000.0 < round(rig.fetching.pause(5000.0), 6) <= 3600.0
    assert rig.fetching.take() is not None
    assert rig.fetching.wants_round
    assert rig.fetching.pause(5000.0) == 5000.0
    assert len(await rig.round()) == len(STREAMS) - 1, "the last one waits still"


async def test_a_round_does_not_wait_for_who_takes_nothing() -> None:
    rig = Rig(most_waiting=100, rest=3600.0)
    await rig.round()
    rig.waiting.void(rig.held["s.0.1"])
    rig.ends["s.0.1"] = 6
    rig.hear("s.0.1")
    assert not rig.fetching.wants_round
    rig.fetching._rests_until -= 3600.0  # the time has come
    assert rig.fetching.wants_round
    assert await rig.round() == [(1, 5)]


async def test_a_round_reads_more_streams_if_those_before_had_little() -> None:
    streams = [StreamId("s", 0, shard) for shard in range(2 * MOST_STREAMS)]
    rig = Rig(most_waiting=1000)
    for stream in streams:
        rig.held[str(stream)] = Held.begin(0, str(stream), 1, 0)
    rig.ends = dict.fromkeys(rig.held, 1)
    rig.hear()
    read = [len(await rig.round()) for _ in range(4)]
    assert read == [FEWEST_STREAMS, 4 * FEWEST_STREAMS, MOST_STREAMS, 2 * MOST_STREAMS - sum(read[:3])]
    rig.hand_out()
    rig.bytes, rig.ends = ROUND_BYTES, dict.fromkeys(rig.held, 2)
    rig.hear()
    assert [len(await rig.round()) for _ in range(2)] == [MOST_STREAMS, FEWEST_STREAMS]


async def test_a_round_that_asks_for_more_entries_reads_fewer_streams() -> None:
    """Entries may have any size: no more are asked for than of streams of which nothing is known."""
    rig = Rig(most_waiting=100)
    rig.ends = dict.fromkeys(rig.ends, 500)
    rig.fetching._at_a_time = 4
    rig.fetching._usual.saw([(2 * FIRST_ENTRIES, 100)])
    assert [stream for stream, _ in await rig.round()] == [0, 1]
    for held in rig.held.values():
        held.entries = 2 * FIRST_ENTRIES  # by its own entries
    rig.fetching._at_a_time = 4
    assert [stream for stream, _ in await rig.round()] == [2, 3, 4, 0]


async def test_what_waits_is_bounded_in_bytes() -> None:
    rig = Rig(most_waiting=4)
    rig.bytes = 3 * CHUNK_BYTES
    rig.ends = {"s.0.0": 100, **dict.fromkeys([str(stream) for stream in STREAMS[1:]], 0)}
    assert await rig.round() == [(0, 0)]
    assert await rig.round() == []
    assert rig.hand_out() == [(0, 0, 10)]
    assert await rig.round() == [(0, 10)]


async def test_streams_take_turns() -> None:
    rig = Rig(most_waiting=100)
    rig.ends = {"s.0.0": 20, "s.0.1": 15, **dict.fromkeys([str(stream) for stream in STREAMS[2:]], 0)}
    assert [await rig.round() for _ in range(3)] == [[(0, 0), (1, 0)], [(0, 10), (1, 10)], []]
    assert rig.hand_out() == [(0, 0, 10), (1, 0, 10), (0, 10, 20), (1, 10, 15)]


async def test_what_comes_while_a_batch_waits_makes_the_next_one_larger() -> None:
    rig = Rig(most_waiting=100)
    await rig.round()
    rig.ends["s.0.0"] = 6
    rig.hear("s.0.0")
    assert await rig.round() == []
    rig.ends["s.0.0"] = 8
    batch = rig.fetching.take()
    assert batch is not None
    assert (batch.stream.shard, batch.end) == (0, 5)
    assert await rig.round() == [(0, 5)]
    assert rig.hand_out()[-1] == (0, 5, 8)


async def test_a_backlog_is_read_ahead() -> None:
    rig = Rig(most_waiting=100)
    rig.ends = {"s.0.0": 35, **dict.fromkeys([str(stream) for stream in STREAMS[1:]], 0)}
    assert [await rig.round() for _ in range(3)] == [[(0, 0)], [(0, 10)], [(0, 20)]]
    assert not rig.fetching._not_before, "who is behind does not wait for more"
    assert [await rig.round() for _ in range(2)] == [[(0, 30)], []]
    assert rig.fetching._not_before


async def test_a_stream_without_news_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(most_waiting=100)
    await rig.round()
    rig.hand_out()
    await rig.round()
    looked: list[str] = []

    def next_of(stream: StreamId) -> int:
        looked.append(str(stream))
        return rig.ends[str(stream)]

    monkeypatch.setattr(rig.fetching._dividing, "next_of", next_of)
    assert await rig.round() == []
    assert looked == []
    rig.ends["s.0.3"] = 7
    rig.hear("s.0.3")
    assert await rig.round() == [(3, 5)]
    assert {*looked} == {"s.0.3"}


async def test_streams_that_may_not_be_read_are_passed_over() -> None:
    rig = Rig(most_waiting=100)
    rig.held[str(STREAMS[0])].lease.move(StreamEvent.ENDED)
    rig.held[str(STREAMS[1])].lease.move(StreamEvent.REVOKE)
    rig.held[str(STREAMS[2])].fail(0, "f", "bad")
    rig.held[str(STREAMS[3])].retry_at = 0.5
    assert await rig.round() == [(4, 0)]


async def test_streams_whose_wait_is_over_come_in_the_order_in_which_they_were_put_off() -> None:
    rig = Rig(most_waiting=100)
    rig.fetching._news.clear()
    order = [3, 0, 4, 1, 2]
    for shard in order:
        rig.held[str(STREAMS[shard])].retry_at = 0.5
        rig.hear(str(STREAMS[shard]))
    assert await rig.round() == []
    for held in rig.held.values():
        held.retry_at = 0.0
    assert await rig.round() == [(shard, 0) for shard in order]


async def test_a_server_of_a_cluster_that_does_not_answer_delays_only_its_own_streams() -> None:
    rig = Rig(most_waiting=100, redis=cluster_of(STREAMS[0]))
    answers, whole = asyncio.Event(), rig.reads

    async def reads(news: Sequence[News]) -> AsyncGenerator[list[tuple[News, Found, int]]]:
        if news[0].stream == STREAMS[0]:
            await answers.wait()
        async for found in whole(news):
            yield found

    rig.fetching._read = reads  # type: ignore[method-assign]
    async with within(10):
        for end in (10, 15, 20):
            await rig.fetching.round()
            assert {shard for shard, _, _ in rig.hand_out()} == {one.shard for one in STREAMS[1:]}
            assert rig.held[str(STREAMS[1])].position == end - 5
            rig.ends = dict.fromkeys(rig.ends, end)
            rig.hear()
        answers.set()
        while not rig.waiting.batches:
            await rig.fetching.round()
    assert rig.held[str(STREAMS[0])].position == 5, "it was asked once"
    assert not rig.told
    await rig.tasks.close()


def test_a_pause_grows_up_to_its_most_however_long_nothing_is_read() -> None:
    assert [growing_pause(failures) for failures in (0, 1, 5, 6, 5000)] == [0.2, 0.4, 6.4, 10.0, 10.0]


async def test_an_archive_that_is_silent_is_asked_less_and_less_often_and_delays_only_its_streams() -> None:
    rig = Rig(most_waiting=100)
    silent = str(STREAMS[0])

    async def reads(news: Sequence[News]) -> AsyncGenerator[list[tuple[News, Found, int]]]:
        rig.read += [(one.stream.shard, one.start) for one in news if str(one.stream) == silent]
        for one in news:
            if str(one.stream) == silent and rig.now < 40:
                yield [(one, ArchiveUnavailable("it does not answer"), 0)]
            else:
                async for found in rig.reads([one]):
                    yield found

    rig.fetching._read = reads  # type: ignore[method-assign]
    asked = []
    await rig.fetching.round()
    assert [shard for shard, _, _ in rig.hand_out()] == [1, 2, 3, 4]
    while not rig.held[silent].position:
        asked.append(rig.fetching.pause(60.0))
        assert not await rig.fetching.round()
        rig.now += asked[-1]
        await rig.fetching.round()
    assert asked == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0])
    rig.hand_out()
    rig.now = 0.0
    rig.ends[silent] += 1
    rig.hear(silent)
    await rig.fetching.round()
    assert rig.fetching.pause(60.0) == pytest.approx(0.2), "it begins anew once it was read"


async def test_a_stream_of_a_cluster_that_cannot_be_read_on_is_told_to_the_owner() -> None:
    rig = Rig(most_waiting=100, redis=cluster_of(STREAMS[0]))

    async def reads(news: Sequence[News]) -> AsyncGenerator[list[tuple[News, Found, int]]]:
        for one in news:
            yield [(one, HistoryTruncated(str(one.stream), 0, 3), 0)]

    rig.fetching._read = reads  # type: ignore[method-assign]
    await rig.fetching.round()
    await until(lambda: len(rig.told) == 2)  # one for each server
    assert all(isinstance(error, HistoryTruncated) for error in rig.told)


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    redis = connect(embedded_redis_url)
    yield redis
    await redis.aclose()


@pytest.fixture
async def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands each exchange of `read_all` had."""
    sizes: list[int] = []

    async def count(server: AsyncRedis, before: Any, commands: list[Command], behind: Any) -> list[Answer]:
        sizes.append(len(commands))
        return await exchange_behind(server, before, commands, behind)

    monkeypatch.setattr(reading, "exchange_behind", count)
    return sizes


async def test_all_streams_of_a_round_are_read_in_one_exchange(redis: AsyncRedis, counted: list[int]) -> None:
    log = AsyncLog(redis)
    await log.open(STREAMS)
    for shard, stream in enumerate(STREAMS):
        await log.append(append(stream, 0, rows(0, shard)) if shard else append(stream, 0, rows(0, 1)))
    found = await read_all(redis, [RangeReader(stream, 0, max(1, stream.shard)) for stream in STREAMS])
    assert [[batch.num_rows for batch in one] for one in found if isinstance(one, list)] == [
        [1], [1], [2], [3], [4],
    ]  # fmt: skip
    assert counted == [10]


async def test_readers_that_want_other_columns_share_no_batch(redis: AsyncRedis) -> None:
    log = AsyncLog(redis)
    await log.open(STREAMS)
    for stream in STREAMS:
        await log.append(append(stream, 0, rows(0, 3)))
    few, all_columns = frozenset({"topic", "offset"}), None
    wants = [few, all_columns, few, all_columns, few]
    readers = [RangeReader(stream, 0, 3, columns=one) for stream, one in zip(STREAMS, wants, strict=True)]
    for stream, one, found in zip(STREAMS, wants, await read_all(redis, readers), strict=True):
        assert isinstance(found, list)
        assert [batch["offset"].to_pylist() for batch in found] == [[0, 1, 2]]
        assert ("stream" in found[0].schema.names) is (one is all_columns)
        if one is all_columns:
            assert found[0]["stream"].to_pylist() == [str(stream)] * 3


async def test_the_error_of_one_stream_is_not_another_one_s(redis: AsyncRedis, counted: list[int]) -> None:
    log = AsyncLog(redis)
    await log.open(STREAMS[:3])
    for stream in STREAMS[:3]:
        await log.append(append(stream, 0, rows(0, 5)))
    await redis.hset(stream_meta(STREAMS[1]), "floor", 3)  # type: ignore[misc]
    readers = [RangeReader(stream, 1, 5) for stream in STREAMS[:4]]
    first, truncated, third, unknown = await read_all(redis, readers)
    assert isinstance(truncated, HistoryTruncated)
    assert isinstance(unknown, UnknownSpace)
    assert isinstance(first, list)
    assert isinstance(third, list)
    assert first[0]["offset"].to_pylist() == third[0]["offset"].to_pylist() == [1, 2, 3, 4]


async def test_a_server_that_does_not_answer_is_every_stream_s_error() -> None:
    gone = connect("redis://127.0.0.1:1")
    outcomes = await read_all(gone, [RangeReader(stream, 0, 5) for stream in STREAMS])
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 5
    await gone.aclose()


async def test_the_next_read_asks_for_as_many_entries_as_it_needs(redis: AsyncRedis) -> None:
    log = AsyncLog(redis)
    await log.open(STREAMS[:3])
    for sequence in range(3):
        await log.append(append(STREAMS[0], sequence, rows(0, 100)))
        await log.append(append(STREAMS[1], sequence, rows(0, 1)))
    large, single, empty = (RangeReader(stream, 0, 200) for stream in STREAMS[:3])
    await read_all(redis, [large, single, empty])
    assert [large.entries_for(messages) for messages in (1, 150, 100_000)] == [1, 2, MOST_FIRST_COUNT]
    assert [single.entries_for(messages) for messages in (1, 10, 1000)] == [1, 10, MOST_FIRST_COUNT]
    assert empty.entries_for(1000) == FIRST_COUNT
    again = RangeReader(STREAMS[0], 150, 250, count=large.entries_for(100))
    assert again.commands[-1][-2:] == ("COUNT", 1)
    (found,) = await read_all(redis, [again])
    assert isinstance(found, list)
    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == list(range(150, 250))


async def test_a_step_asks_for_no_more_than_is_still_wanted(redis: AsyncRedis) -> None:
    log = AsyncLog(redis)
    await log.open(STREAMS[:1])
    for sequence in range(6):
        await log.append(append(STREAMS[0], sequence, rows(0, 100)))
    reader = RangeReader(STREAMS[0], 0, 600, enough=350, count=1)
    asked = []
    while not reader.done:
        asked.append(reader.commands[-1][-1])
        reader.feed(await ask(redis, reader.commands))
    assert (asked, reader.position) == ([1, 3], 400)


async def test_nothing_is_lost_where_nothing_is_pushed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails_module, "Tails", partial(Tails, push=False, poll_interval=0.02))
    await client.create_space("s", ["a/#"], streams=4)
    got: list[int] = []
    async with client.subscribe(SUB, start="earliest", max_batch=7) as reader:
        for first in range(0, 300, 100):
            publishing = asyncio.create_task(publish(client, range(first, first + 100)))
            got += await take(reader, 100)
            await publishing
    assert sorted(got) == list(range(300))
    assert in_order(got)


async def test_an_entry_is_read_once_and_handed_out_in_even_pieces(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    async with client.publisher() as publisher:
        await publisher.submit_many("a/x", [b"%d" % number for number in range(1050)])
    steps: list[int] = []

    class Counted(RangeReader):
        @property
        def commands(self) -> list[Command]:
            steps.append(self.position)
            return super().commands

    monkeypatch.setattr(fetching, "RangeReader", Counted)
    async with client.subscribe(SUB, start="earliest", max_batch=100) as reader:
        sizes = [len(await anext(reader)) for _ in range(11)]
    assert sum(sizes) == 1050
    assert {*sizes} == {95, 96}
    assert steps == [0]


async def test_a_stream_is_asked_for_as_many_entries_at_first_as_did_for_those_before(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one step is enough for streams with a few small entries each, but for the first of them."""
    streams = [StreamId("s", 0, shard) for shard in range(6 * FEWEST_STREAMS)]
    await client.create_space("s", ["a/#"], streams=len(streams))
    log = AsyncLog(client.redis)
    for stream in streams:
        for sequence in range(FIRST_COUNT + 6):
            await log.append(append(stream, sequence, rows(0, 8, "a/x")))
    steps: Counter[StreamId] = Counter()

    class Counted(RangeReader):
        @property
        def commands(self) -> list[Command]:
            steps[self.stream] += 1
            return super().commands

    monkeypatch.setattr(fetching, "RangeReader", Counted)
    left = len(streams) * (FIRST_COUNT + 6) * 8
    async with client.subscribe(SUB, start="earliest") as reader:
        while left:
            left -= len(await anext(reader))
    twice = [stream for stream, often in steps.items() if often > 1]
    assert len(steps) == len(streams)
    assert 0 < len(twice) <= FEWEST_STREAMS


async def test_a_server_of_a_cluster_that_fails_is_not_an_error_of_other_streams(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await AsyncLog(redis).open(STREAMS)
    for stream in STREAMS:
        await AsyncLog(redis).append(append(stream, 0, rows(0, 3)))
    whole, gone = reading.exchange_behind, StoreUnavailable("it is gone")

    async def partly(client: Any, *commands: Any) -> list[Answer]:
        answers = await whole(client, *commands)
        return [Answer(gone, ()) if n < 2 else answer for n, answer in enumerate(answers)]

    monkeypatch.setattr(reading, "exchange_behind", partly)
    first, *others = await read_all(redis, [RangeReader(stream, 0, 3) for stream in STREAMS])
    assert first is gone
    assert all(isinstance(one, list) and sum(batch.num_rows for batch in one) == 3 for one in others)
