"""The loop around a query's machine, on a loop of virtual time, with a server in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.protocol.errors import InvalidInput, StreamleaseError, TaskFailed
from streamlease.spark.core import query_events as q
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_states import QueryState
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.async_query import AsyncQuery
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.timelines.loops import Process, Timeline

GROUP = "$shared/g/t/#"
OPTIONS = SourceOptions.parse({"redis": "redis://memory", "subscribe": GROUP, "startingOffsets": "earliest"})


class Stage:
    """A server in memory, and a query in a process of virtual time."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.server = MemoryServer(lambda: 1_000_000.0 + timeline.now)
        self.process = timeline.process("query")
        self.query = self.make()

    def make(self) -> AsyncQuery:
        return AsyncQuery(OPTIONS, connect=lambda: connect(self.server, embedded=True), token=lambda: "one")

    def run(
        self, work: Coroutine[Any, Any, Any], seconds: float = 60.0, process: Process | None = None
    ) -> Any:
        """What `work` returns, or raises, within so many seconds of virtual time."""
        found: list[Any] = []

        async def known() -> None:
            try:
                found.append(await work)
            except StreamleaseError as error:
                found.append(error)

        (process or self.process).start(known())
        self.timeline.run(self.timeline.now + seconds, lambda: bool(found))
        assert found, "no answer"
        if isinstance(found[0], StreamleaseError):
            raise found[0]
        return found[0]

    def publish(self, messages: int, streams: int = 2) -> None:
        async def publish() -> None:
            client: Client = connect(self.server, embedded=False)
            await client.create_space("s", ["t/#"], streams=streams)
            async with client.publisher() as publisher:
                for number in range(messages):
                    await publisher.send(f"t/{number}", b"x")
            await client.close()

        self.run(publish(), process=self.timeline.process("publisher"))

    def next_cut(self, start: CutOffset) -> CutOffset:
        """The next cut that has something."""
        for _ in range(1000):
            found: CutOffset = self.run(self.query.next_cut(start, Limits()))
            if found != start:
                return found
        raise AssertionError("no cut")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Timeline() as timeline:
        yield Stage(timeline)


def test_a_query_consumes_in_virtual_time_and_leaves(stage: Stage) -> None:
    stage.publish(10)
    first = stage.next_cut(stage.query.initial())
    assert stage.run(stage.query.ranges_of(first)) == first.ranges
    messages, cut = first.ranges.messages, first
    while messages < 10:
        cut = stage.next_cut(cut)
        messages += cut.ranges.messages
    assert messages == 10
    assert stage.run(stage.query.next_cut(cut, Limits())) == cut
    stage.run(stage.query.stop())
    assert stage.query.machine.state is QueryState.ENDED
    stage.run(stage.query.stop())


def test_a_query_begins_with_rows_also_where_its_leader_comes_late(stage: Stage) -> None:
    """Spark makes a micro-batch of the first answer, whatever it is."""
    stage.publish(10)
    stage.query = AsyncQuery(OPTIONS, connect=lambda: connect(stage.server, embedded=False))

    async def lead() -> None:
        await asyncio.sleep(0.5)
        async with connect(stage.server, embedded=False) as client:
            host = LeaderHost(client.redis, HostConfig(name="late"), pid=1)
            await host.start()
            await asyncio.Event().wait()

    stage.timeline.process("host").start(lead())
    start = stage.query.initial()
    first = stage.run(stage.query.next_cut(start, Limits()))
    assert first.ranges.messages == 10
    assert stage.timeline.now > 0.5


@pytest.mark.parametrize("seconds", [0.2, 2.5])
def test_a_query_begins_with_the_first_streams_that_another_one_hands_over(
    stage: Stage, seconds: float
) -> None:
    """All are in the open cut of another query, and come when that is finished."""
    stage.publish(100, streams=8)
    cut = stage.next_cut(stage.query.initial())
    stage.publish(100, streams=8)
    other, began = stage.query, stage.timeline.now

    async def finish() -> None:
        await asyncio.sleep(seconds)
        await other.next_cut(cut, Limits())

    stage.process.start(finish())
    newcomer = AsyncQuery(OPTIONS, connect=lambda: connect(stage.server, embedded=False))

    async def begin() -> tuple[CutOffset, float]:
        return await newcomer.next_cut(newcomer.initial(), Limits()), stage.timeline.now - began

    first, after = stage.run(begin(), process=stage.timeline.process("newcomer"))
    assert first.ranges.messages > 0
    assert seconds <= after < seconds + 0.1


def test_a_query_on_quiet_topics_begins_without_a_wait(stage: Stage) -> None:
    stage.publish(0)
    start = stage.query.initial()
    assert stage.run(stage.query.next_cut(start, Limits())) == start
    assert stage.timeline.now < 0.5


def test_the_next_process_of_a_query_that_was_killed_reads_the_same_cut(stage: Stage) -> None:
    stage.publish(10)
    cut = stage.next_cut(stage.query.initial())
    stage.process.kill()
    stage.process, stage.query = stage.timeline.process("again"), stage.make()
    assert stage.run(stage.query.ranges_of(cut), 120.0) == cut.ranges
    stage.run(stage.query.stop())


def test_a_defect_in_what_is_found_out_ends_the_query_and_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.publish(1)
    cut = stage.next_cut(stage.query.initial())

    async def breaks(what: q.Wanted) -> Any:
        raise LookupError("nobody foresaw it")

    stage.query.machine._losses.went_on({cut.ranges[0].stream: 0})
    monkeypatch.setattr(stage.query.finder, "found", breaks)
    with pytest.raises(TaskFailed, match="finding out ended by a defect"):
        stage.next_cut(stage.query.initial())
    with pytest.raises(TaskFailed):
        stage.next_cut(stage.query.initial())
    stage.run(stage.query.stop())


def test_spark_waits_for_one_answer_at_a_time(stage: Stage) -> None:
    stage.publish(1)

    start = stage.query.initial()

    async def twice() -> list[Any]:
        await stage.query.begin(start, finished=True)
        asked = [stage.query.next_cut(start, Limits()) for _ in range(2)]
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second = stage.run(twice())
    assert isinstance(first, CutOffset)
    assert isinstance(second, InvalidInput)
    assert "wait for the answer" in str(second)
    stage.run(stage.query.stop())


def test_who_waits_no_more_makes_room_for_the_next(stage: Stage) -> None:
    start = stage.query.initial()

    async def interrupted() -> CutOffset:
        await stage.query.begin(start, finished=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await stage.query.next_cut(start, Limits())
        return await stage.query.next_cut(start, Limits())

    stage.publish(0)
    assert stage.run(interrupted()) == start
    stage.run(stage.query.stop())
