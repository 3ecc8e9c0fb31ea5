"""Any course of an inbox, an import, kills, new generations and new columns brings in each message once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.imports.inbox import InboxMover
from streamlease.streams.imports.redis_streams import Mapping, PlainReader
from streamlease.streams.imports.transfer import Transfer
from streamlease.streams.log.keys import inbox_mover, inbox_refused, space_inbox
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis import connection
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import SpaceStore
from tests.streams.schema_change import alter_schema

N = {"name": "n", "type": "int64", "nullable": False}
MORE = {"name": "more", "type": "string"}
TOPICS = 3
NONSENSE = [
    {"payload": "1"},
    {"topic": "x/y", "payload": "{}"},
    {"topic": "s/1", "payload": '{"n": "much"}'},
    {"topic": "s/1", "payload": "["},
]
STEPS = st.none() | st.integers(0, 12)


class Killed(BaseException):
    """The process is dead. No error handler of its own hears of it."""


@contextmanager
def killed_after(exchanges: int | None) -> Iterator[None]:
    """Let so many exchanges with Redis pass; the next one is done, and its answer is never heard."""
    real, done = connection.exchange_one, 0

    async def exchange(client: AsyncRedis, commands: Sequence[Any]) -> list[Any]:
        nonlocal done
        done += 1
        if exchanges is not None and done > exchanges:
            if done == exchanges + 1:
                await real(client, commands)
            raise Killed
        return await real(client, commands)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection, "exchange_one", exchange)
        yield


class Sources(RuleBasedStateMachine):
    """A typed space that is fed by an inbox and by an import; each run of either may be killed anywhere."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.redis: AsyncRedis = connect(self.url)
        self.spaces = SpaceStore(self.redis)
        self.sent = {"inbox": 0, "plain": 0}
        self.bad = 0
        self.wide = False
        self.run(self.redis.flushall())
        self.run(self.spaces.create("s", ["s/#"], schema={"columns": [N]}))

    def run(self, work: Coroutine[Any, Any, Any], kill: int | None = None) -> Any:
        with killed_after(kill):
            try:
                return self.loop.run_until_complete(asyncio.wait_for(work, 60))
            except Killed:
                return None

    @rule(count=st.integers(1, 8))
    def put_into_the_inbox(self, count: int) -> None:
        for _ in range(count):
            number = self.sent["inbox"]
            payload = json.dumps({"n": number, **({"more": "x"} if self.wide else {})})
            fields = {"topic": f"s/{number % TOPICS}", "payload": payload}
            self.run(self.redis.xadd(space_inbox("s"), fields))
            self.sent["inbox"] += 1

    @rule(fields=st.sampled_from(NONSENSE))
    def put_nonsense_into_the_inbox(self, fields: dict[str, str]) -> None:
        self.run(self.redis.xadd(space_inbox("s"), fields))
        self.bad += 1

    @rule(count=st.integers(1, 8))
    def add_to_the_stream_that_is_imported(self, count: int) -> None:
        for _ in range(count):
            number = self.sent["plain"]
            self.run(self.redis.xadd("plain", {"t": f"s/{number % TOPICS}", "n": str(number)}))
            self.sent["plain"] += 1

    @rule(kill=STEPS)
    def move_the_inbox(self, kill: int | None) -> None:
        self.run(self.redis.delete(inbox_mover("s")))  # the mark of a dead mover expires
        self.run(InboxMover(self.redis, "host").round(), kill)

    @rule(kill=STEPS)
    def import_the_stream(self, kill: int | None) -> None:
        self.run(self.imported(), kill)

    async def imported(self) -> None:
        reader = PlainReader(self.redis, "plain", (-1, -1))
        transfer, mapping = Transfer(self.redis, "redis:plain"), Mapping(topic_field="t", typed=True)
        while entries := await reader.next():
            await transfer.put([mapping.item("plain", entry) for entry in entries])

    @rule(streams=st.integers(1, 4), kill=STEPS)
    def alter(self, streams: int, kill: int | None) -> None:
        self.run(SpaceStore(self.redis).generations.alter("s", streams=streams), kill)

    @precondition(lambda self: not self.wide)
    @rule(kill=STEPS)
    def add_a_column(self, kill: int | None) -> None:
        self.run(alter_schema(SpaceStore(self.redis), "s", {"columns": [N, MORE]}), kill)
        self.wide = len(self.run(self.spaces.get("s")).schemas) == 2

    async def everything(self) -> list[Message]:
        found: list[Message] = []
        for stream in sorted((await self.spaces.get("s")).streams()):
            for batch in await AsyncLog(self.redis).read(stream, 0):
                found += to_messages(batch)
        return found

    def teardown(self) -> None:
        self.move_the_inbox(None)
        self.import_the_stream(None)
        found = self.run(self.everything())
        for source, count in self.sent.items():
            mine = [m for m in found if bool(m.headers) is (source == "plain")]
            for topic in range(TOPICS):
                numbers = [m.values["n"] for m in mine if m.topic == f"s/{topic}"]
                assert numbers == list(range(topic, count, TOPICS)), f"{source}, topic {topic}"
        assert self.run(self.redis.xlen(space_inbox("s"))) == 0
        assert self.run(self.redis.xlen(inbox_refused("s"))) == self.bad
        self.run(self.redis.aclose())
        self.loop.close()


def test_sources_behave_as_their_model(embedded_redis_url: str) -> None:
    Sources.url = embedded_redis_url
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Sources,
        settings=settings(
            max_examples=15,
            stateful_step_count=14,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        ),
    )
