"""A slot of continuous mode without Spark: order, what is committed and when, groups, a stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.batch import Batch
from streamlease.agent.client import connect
from streamlease.borrower.book import Held
from streamlease.protocol.errors import Fenced
from streamlease.protocol.ids import StreamId
from streamlease.spark import working
from streamlease.spark.committing import Commits
from streamlease.spark.slot import Slot, SlotProgress, host
from streamlease.spark.working import FunctionThread, Outcome
from streamlease.streams.rows.shared_rows import Rows
from tests.agent.helpers import SUB, publish, until

STREAM = StreamId("s", 0, 0)
SECONDS = 60.0


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(count))})


@dataclass
class Owner:
    """In place of the reader: notes what is committed, and answers when it is told to."""

    asked: list[tuple[str, int]] = field(default_factory=list)
    answers: list[asyncio.Future[None]] = field(default_factory=list)

    async def commit(self, held: Held, end: int, received: Any) -> None:
        self.asked.append((held.stream, end))
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]

    def batch(self, held: Held, start: int, end: int) -> Batch:
        return Batch(self, held, StreamId.parse(held.stream), start, end, Rows(rows(end - start)))  # type: ignore[arg-type]


def lease(shard: int = 0) -> Held:
    return Held.begin(0, f"s.0.{shard}", 1, 0)


async def test_what_is_done_while_a_commit_is_on_its_way_goes_into_one_more() -> None:
    owner, held = Owner(), lease()
    commits = Commits(1000)
    commits.done(owner.batch(held, 0, 1))
    await until(lambda: len(owner.answers) == 1)
    for start in range(1, 5):
        commits.done(owner.batch(held, start, start + 1))
    other = lease(1)
    commits.done(owner.batch(other, 0, 3))
    await until(lambda: len(owner.answers) == 2)
    assert owner.asked == [("s.0.0", 1), ("s.0.1", 3)], "a stream does not wait for another one's commit"
    owner.answers[0].set_result(None)
    await until(lambda: len(owner.answers) == 3)
    assert owner.asked[-1] == ("s.0.0", 5)
    assert (commits.messages, commits.batches) == (1, 1)
    for answer in owner.answers[1:]:
        answer.set_result(None)
    await commits.finish()
    assert (commits.messages, commits.batches) == (8, 6)


async def test_the_end_commits_all_that_is_done() -> None:
    owner, held = Owner(), lease()
    commits = Commits(1000)
    commits.done(owner.batch(held, 0, 1))
    await until(lambda: len(owner.answers) == 1)
    commits.done(owner.batch(held, 1, 2))
    ending = asyncio.create_task(commits.finish())
    owner.answers[0].set_result(None)
    await until(lambda: len(owner.answers) == 2)
    assert not ending.done()
    owner.answers[1].set_result(None)
    await ending
    assert owner.asked == [("s.0.0", 1), ("s.0.0", 2)]


async def test_a_refused_commit_counts_nothing_and_leaves_room(caplog: pytest.LogCaptureFixture) -> None:
    owner, held = Owner(), lease()
    commits = Commits(2)
    commits.done(owner.batch(held, 0, 2))
    waiting = asyncio.create_task(commits.room())
    await until(lambda: len(owner.answers) == 1)
    assert not waiting.done()
    owner.answers[0].set_exception(Fenced("s.0.0 was taken away"))
    await waiting
    await commits.finish()
    assert commits.messages == 0
    assert "offsets 0 to 2 of s.0.0 may come again" in caplog.text


async def test_a_stream_that_comes_back_under_another_lease_is_committed_for_itself() -> None:
    owner, old, new = Owner(), lease(), lease()
    commits = Commits(1000)
    commits.done(owner.batch(old, 5, 6))
    commits.done(owner.batch(new, 2, 4))
    await until(lambda: len(owner.answers) == 2)
    assert owner.asked == [("s.0.0", 6), ("s.0.0", 4)]
    owner.answers[0].set_exception(Fenced("s.0.0 was taken away"))
    owner.answers[1].set_result(None)
    await commits.finish()
    assert commits.messages == 2


Make = Callable[[Callable[[pa.RecordBatch], object]], FunctionThread]


@pytest.fixture
async def make_thread() -> AsyncIterator[Make]:
    made: list[FunctionThread] = []

    def make(function: Callable[[pa.RecordBatch], object]) -> FunctionThread:
        made.append(FunctionThread(function))
        return made[-1]

    yield make
    for thread in made:
        thread.close()


async def test_all_batches_are_handled_in_order_by_one_thread(make_thread: Make) -> None:
    seen: list[tuple[int, threading.Thread]] = []
    thread = make_thread(lambda batch: seen.append((batch.num_rows, threading.current_thread())))
    done = 0
    while done < 40:
        outcome = await thread.call([rows(number) for number in range(done, 40)])
        assert outcome.error is None
        done += outcome.done
    assert [number for number, _ in seen] == list(range(40))
    (one,) = {one for _, one in seen}
    assert one is not threading.main_thread()


async def test_what_is_behind_a_failure_is_not_begun(make_thread: Make) -> None:
    error = ZeroDivisionError()
    seen: list[int] = []

    def function(batch: pa.RecordBatch) -> None:
        if batch.num_rows == 1:
            raise error
        seen.append(batch.num_rows)

    assert await make_thread(function).call([rows(0), rows(1), rows(2)]) == Outcome(1, error)
    assert seen == [0]


async def test_groups_grow_while_the_function_is_quick(
    make_thread: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "GROUP_SECONDS", 3600.0)
    thread = make_thread(lambda batch: None)
    sizes = []
    for _ in range(6):
        sizes.append(thread.batches)
        assert await thread.call([rows(1)] * sizes[-1]) == Outcome(sizes[-1])
    assert sizes == [1, 2, 4, 8, 16, 16]


async def test_a_slow_function_gets_one_batch_at_a_time(
    make_thread: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "GROUP_SECONDS", 0.0)
    thread = make_thread(lambda batch: None)
    thread.batches = 16
    assert await thread.call([rows(1)] * 3) == Outcome(1), "what it has not begun comes back"
    assert thread.batches == 1


async def test_after_a_halt_nothing_is_begun(make_thread: Make) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def function(batch: pa.RecordBatch) -> None:
        begun.set()
        assert go_on.wait(SECONDS)

    thread = make_thread(function)
    calling = asyncio.create_task(thread.call([rows(1), rows(1)]))
    await asyncio.to_thread(begun.wait, SECONDS)
    thread.halt()
    go_on.set()
    assert await calling == Outcome(1)
    assert await thread.call([rows(1)]) == Outcome(0)


class Driver:
    """The other end of a slot's line, and the slot in a thread of its own."""

    def __init__(self, url: str, function: Callable[[pa.RecordBatch], object]) -> None:
        self.listener = Listener(("127.0.0.1", 0), authkey=b"secret")
        slot = Slot(url, SUB, "c", "earliest", 100, 10.0, True)
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._host, args=(slot, function), daemon=True)
        self.thread.start()
        self.line: Connection = self.listener.accept()

    def _host(self, slot: Slot, function: Callable[[pa.RecordBatch], object]) -> None:
        try:
            host(slot, 0, function, self.listener.address, b"secret")  # type: ignore[arg-type]
        except Exception as error:
            self.error = error

    def end(self) -> SlotProgress:
        """What it told last, once it has ended."""
        told = b""
        try:
            while True:
                told = self.line.recv_bytes()
        except (EOFError, OSError):
            self.thread.join(SECONDS)
            assert not self.thread.is_alive()
            self.listener.close()
            return SlotProgress.parse(told)


Place = tuple[str, int]


def places(batch: pa.RecordBatch) -> list[Place]:
    return list(zip(batch["stream"].to_pylist(), batch["offset"].to_pylist(), strict=True))


async def rest_of(url: str, count: int) -> list[Place]:
    """The next `count` messages that the group has not committed."""
    got: list[Place] = []
    async with connect(url) as client, client.subscribe(SUB) as reader, asyncio.timeout(SECONDS):
        while len(got) < count:
            batch = await anext(reader)
            got += places(batch.to_arrow())
            await batch.commit()
    return got


def expect_in_order(seen: list[Place]) -> None:
    for stream in {stream for stream, _ in seen}:
        offsets = [offset for one, offset in seen if one == stream]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


async def test_a_stop_in_the_middle_loses_and_repeats_nothing(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Place] = []
    enough, halted, go_on = threading.Event(), threading.Event(), threading.Event()
    halt = FunctionThread.halt

    def note(thread: FunctionThread) -> None:
        halt(thread)
        halted.set()

    monkeypatch.setattr(FunctionThread, "halt", note)

    def function(batch: pa.RecordBatch) -> None:
        seen.extend(places(batch))
        if len(seen) > 30:
            enough.set()
            assert go_on.wait(SECONDS)

    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"], streams=4)
        driver = await asyncio.to_thread(Driver, embedded_redis_url, function)
        await publish(client, range(20))
        await publish(client, range(20, 200))
    assert await asyncio.to_thread(enough.wait, SECONDS)
    driver.line.send_bytes(b"stop")
    assert await asyncio.to_thread(halted.wait, SECONDS)
    at_hand = len(seen)
    go_on.set()
    told = await asyncio.to_thread(driver.end)
    assert driver.error is None
    assert at_hand == len(seen) == told.messages < 200
    seen += await rest_of(embedded_redis_url, 200 - len(seen))
    expect_in_order(seen)
    assert len(set(seen)) == len(seen) == 200


async def test_what_the_function_did_not_do_is_not_committed(embedded_redis_url: str) -> None:
    def function(batch: pa.RecordBatch) -> None:
        if b"77" in batch["payload"].to_pylist():
            raise ZeroDivisionError("77 is not liked")

    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        await publish(client, range(100))
    driver = await asyncio.to_thread(Driver, embedded_redis_url, function)
    told = await asyncio.to_thread(driver.end)
    assert isinstance(driver.error, ZeroDivisionError)
    rest = await rest_of(embedded_redis_url, 100 - told.messages)
    assert [offset for _, offset in rest] == list(range(told.messages, 100))
    assert told.messages <= 77, "the batch that failed comes again"
