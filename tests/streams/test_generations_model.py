"""Any sequence of publishing, altering, crashes in the middle and lost answers keeps every promise."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from streamlease.protocol.errors import Indefinite, SpaceConflict, StoreUnavailable
from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.publisher import Publisher, Receipt
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import Space, SpaceStore
from tests.servers import Kind
from tests.streams.helpers import Proxy, let_the_loop_see_it
from tests.streams.test_generations import crash_after

pytestmark = pytest.mark.thorough

PUBLISHERS = 3
TOPICS = [f"s/{number}" for number in range(7)]
HOW = st.sampled_from(["nothing", "half", "all"])
WHO, TOPIC = st.integers(0, PUBLISHERS - 1), st.sampled_from(TOPICS)


class Model(RuleBasedStateMachine):
    """Several publishers, each behind a line of its own that can lose answers; and operators that crash."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.sent: dict[tuple[int, str], int] = defaultdict(int)
        self.futures: list[tuple[int, str, int, Receipt]] = []
        self.settled: dict[tuple[int, str], int] = defaultdict(int)
        self.floors: dict[tuple[int, str, int], dict[tuple[int, str], int]] = {}
        """For a message: how many of each publisher and topic were acknowledged when it was submitted."""
        self.run(self.begin())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    async def begin(self) -> None:
        self.redis: AsyncRedis = connect(self.url)
        await self.redis.flushall()
        port = int(self.url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
        self.proxies = [await Proxy(port).__aenter__() for _ in range(PUBLISHERS)]
        self.clients = [connect(proxy.url) for proxy in self.proxies]
        self.publishers = [Publisher(client, max_batch_messages=3) for client in self.clients]
        self.spaces = SpaceStore(self.redis)

    @initialize(streams=st.integers(1, 6))
    def create(self, streams: int) -> None:
        self.run(self.spaces.create("s", ["s/#"], streams=streams))

    @rule(who=WHO, topics=st.lists(TOPIC, min_size=1, max_size=8))
    def submit(self, who: int, topics: list[str]) -> None:
        async def work() -> None:
            for topic in topics:
                number = self.number(who, topic, 1)
                future = await self.publishers[who].submit(topic, f"{who} {number}")
                self.futures.append((who, topic, number, future))

        self.run(work())

    @rule(who=WHO, topics=st.lists(TOPIC, min_size=1, max_size=8))
    def submit_batch(self, who: int, topics: list[str]) -> None:
        payloads = [f"{who} {self.number(who, topic, 1)}" for topic in topics]
        batch = pa.record_batch({"topic": topics, "payload": [text.encode() for text in payloads]})
        self.run(self.publishers[who].submit_batch("topic", batch))

    @rule(who=WHO)
    def flush(self, who: int) -> None:
        self.run(self.publishers[who].flush())
        for topic in TOPICS:
            self.settled[who, topic] = self.sent[who, topic]

    @rule(who=WHO, times=st.integers(1, 2))
    def lose_answers(self, who: int, times: int) -> None:
        self.proxies[who].lose(b"EVALSHA", times)

    @rule(streams=st.integers(1, 6))
    def alter(self, streams: int) -> None:
        self.run(self.spaces.generations.alter("s", streams=streams, rotate=True))

    @rule(
        streams=st.integers(1, 6),
        exchanges=st.integers(0, 8),
        how=st.sampled_from(["nothing", "half", "all"]),
    )
    def alter_and_crash(self, streams: int, exchanges: int, how: str) -> None:
        async def work() -> None:
            with pytest.MonkeyPatch.context() as patch, crash_after(exchanges, how, patch, self.redis):
                try:
                    await SpaceStore(self.redis).generations.alter("s", streams=streams, rotate=True)
                except (StoreUnavailable, Indefinite):
                    return

        self.run(work())

    @rule(two=st.tuples(st.integers(1, 6), st.integers(1, 6)))
    def rivals(self, two: tuple[int, int]) -> None:
        async def work() -> None:
            both = [
                SpaceStore(client).generations.alter("s", streams=n)
                for client, n in zip(self.clients, two, strict=False)
            ]
            for outcome in await asyncio.gather(*both, return_exceptions=True):
                assert isinstance(outcome, Space | SpaceConflict | StoreUnavailable | Indefinite), outcome

        self.run(work())

    @rule(turns=st.integers(1, 30))
    def let_time_pass(self, turns: int) -> None:
        async def work() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(work())

    def number(self, who: int, topic: str, count: int) -> int:
        number = self.sent[who, topic]
        self.sent[who, topic] += count
        self.floors[who, topic, number] = {
            (other, topic): self.settled[other, topic] for other in range(PUBLISHERS) if other != who
        }
        return number

    @invariant()
    def buffers_are_bounded(self) -> None:
        assert all(0 <= publisher.buffered_bytes < 1 << 20 for publisher in self.publishers)

    def teardown(self) -> None:
        try:
            self.run(self.end())
        finally:
            self.loop.close()

    async def end(self) -> None:
        try:
            for publisher in self.publishers:
                await publisher.close()
                assert publisher.buffered_bytes == 0
            if await self.redis.hlen("sl:{spaces}:defs"):
                await self.check(await self.spaces.get("s"))
        finally:
            for client in (*self.clients, self.redis):
                await client.aclose()
            for proxy in self.proxies:
                await proxy.__aexit__()
            await let_the_loop_see_it()

    async def check(self, space: Space) -> None:
        found: dict[str, list[Message]] = defaultdict(list)
        for stream in sorted(space.streams()):
            for batch in await AsyncLog(self.redis).read(stream, 0):
                for message in to_messages(batch):
                    found[message.topic].append(message)
        places = {}
        for topic, messages in found.items():
            seen: dict[tuple[int, str], int] = defaultdict(int)
            for message in messages:
                who, number = map(int, message.payload.split())
                assert number == seen[who, topic], "lost, twice, or out of order"
                seen[who, topic] += 1
                places[who, topic, number] = (message.stream, message.offset)
                for other, floor in self.floors[who, topic, number].items():
                    assert seen[other] >= floor, "it overtook a message that was acknowledged before"
        assert len(places) == sum(self.sent.values())
        for who, topic, number, future in self.futures:
            stream, offset = future.result()
            assert places[who, topic, number] == (str(stream), offset)


def test_any_course_keeps_the_order_and_loses_nothing(redis_url: str, request: pytest.FixtureRequest) -> None:
    fake = request.node.callspec.params["redis_url"] is Kind.FAKE  # its Lua is slower by fifty times
    Model.url = redis_url
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=3 if fake else 50,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink would take minutes
        ),
    )
