"""Tasks of publishers, tails and slots of Spark that end by a defect: their owners say so, nothing hangs."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from streamlease.agent import blocking
from streamlease.agent.client import Client
from streamlease.agent.membership import agent
from streamlease.agent.membership.agent import Agent
from streamlease.protocol.errors import Indefinite, TaskFailed
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import NotLeader
from streamlease.spark.committing import Commits
from streamlease.streams.log import tails as tails_module
from streamlease.streams.log.tails import Tails
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.publish.sending.sender import Sender
from streamlease.testing.memory.memory_connection import connect_redis
from streamlease.testing.memory.memory_server import MemoryServer
from tests.agent.helpers import until
from tests.awake import within
from tests.streams.helpers import append, rows

STREAM = StreamId("s", 0, 0)


async def test_a_publisher_that_cannot_send_any_more_says_so(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"])
    async with client.publisher() as publisher:
        await (await publisher.submit("a/x", b""))
        monkeypatch.setattr(Sender, "_next_round", lambda sender: 1 // 0)
        async with within(10):
            found = await asyncio.gather(
                *(publisher.send("a/x", b"") for _ in range(5)),
                publisher.send_many("a/y", [b"", b""]),
                return_exceptions=True,
            )
            assert {type(one) for one in found} == {TaskFailed}
            assert "sending ended by a defect (ZeroDivisionError" in str(found[0])
            for _ in range(2):
                with pytest.raises(TaskFailed):
                    await publisher.send("a/x", b"")
                with pytest.raises(TaskFailed):
                    await publisher.submit("a/z", b"")
            await publisher.flush()
    assert (await client.next_offsets([STREAM]))[STREAM] == 1


async def test_what_was_on_its_way_is_indefinite(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.create_space("s", ["a/#"])

    async def cancelled(sender: Sender) -> None:
        raise asyncio.CancelledError

    async with client.publisher() as publisher:
        monkeypatch.setattr(Sender, "_deliver", cancelled)
        async with within(10):
            with pytest.raises(Indefinite, match="written, or it was not"):
                await publisher.send("a/x", b"")
            with pytest.raises(TaskFailed):
                await publisher.send("a/x", b"")


def test_the_blocking_publisher_says_so_too(real_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"])
        with client.publisher() as publisher:
            publisher.send("a/x", b"")

            async def cancelled(*_: object) -> None:
                raise asyncio.CancelledError

            with monkeypatch.context() as patched:
                patched.setattr(Publisher, "submit", cancelled)
                publisher.submit("a/x", b"")  # is left in the queue
                deadline = time.monotonic() + 30
                while publisher._error is None:
                    assert time.monotonic() < deadline
                with pytest.raises(TaskFailed, match="taking over what was submitted"):
                    publisher.submit("a/x", b"")
            publisher.submit("a/x", b"")
            publisher.flush()


async def test_tails_go_on_whatever_ends_them(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails_module, "LONGEST_WAIT", 0.01)
    await client.create_space("s", ["a/#"])
    whole, broken = Tails._poll, True

    async def breaks(tails: Tails) -> None:
        if broken:
            raise asyncio.CancelledError
        await whole(tails)

    monkeypatch.setattr(Tails, "_poll", breaks)
    async with Tails(client.redis, push=False, poll_interval=0.01) as watched:
        tails = watched.watch()
        tails.set_streams([STREAM])
        await until(lambda: isinstance(tails.error, TaskFailed))
        broken = False
        await watched._log.append(append(STREAM, 0, rows(0, 3, "a/x")))
        await until(lambda: tails.next_of(STREAM) == 3 and tails.error is None)


async def test_commits_that_end_by_a_defect_hold_nobody_up() -> None:
    async def breaks() -> None:
        raise LookupError("nobody foresaw it")

    batch: Any = SimpleNamespace(held=1, turn=0, start=0, end=5, stream=STREAM, commit=breaks)
    commits = Commits(5)

    class Sized(SimpleNamespace):
        def __len__(self) -> int:
            return 5

    batch = Sized(**vars(batch))
    commits.done(batch)
    with pytest.raises(TaskFailed, match="committing ended by a defect"):
        async with within(10):
            while True:
                await commits.room()
                await asyncio.sleep(0)
    async with within(10):
        await commits.finish()


class Ticked:
    """Counts nothing; says that it was called."""

    def __init__(self, calls: list[int], number: int) -> None:
        self._calls = calls
        self._number = number

    def tick(self, now: int) -> None:
        self._calls.append(self._number)


async def test_sessions_are_ticked_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in one that depends on where they lie in memory: the simulation repeats a run exactly."""
    monkeypatch.setattr(agent, "TICK_SECONDS", 0)
    one, calls = Agent(connect_redis(MemoryServer())), list[int]()
    sessions = [Ticked(calls, number) for number in range(100)]
    for session in sessions:
        one.add_ticker(session.tick)
    one.remove_ticker(sessions[0].tick)
    await one._tick()
    assert calls == list(range(1, 100))


async def test_a_closing_agent_delivers_nothing_its_own_host_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host says good-bye for the leaders; a borrower would look for the next one."""
    one, heard = Agent(connect_redis(MemoryServer())), list[object]()
    await one.start()
    gone = NotLeader(group="g/a", borrower="b", term=1)
    one.mail.register("b", heard.append)
    one.mail.post(one.id, gone)
    await until(lambda: heard == [gone])
    close = one.leaders.close

    async def say_goodbye() -> None:
        one.mail.post(one.id, gone)
        await asyncio.sleep(0)  # the end of a host takes many turns of the event loop
        await asyncio.sleep(0)
        await close()

    monkeypatch.setattr(one.leaders, "close", say_goodbye)
    await one.close()
    assert heard == [gone]
