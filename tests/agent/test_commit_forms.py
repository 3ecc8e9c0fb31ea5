"""The three forms of a commit, on real servers: awaited, gathered in the background, automatic."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

import pytest

from streamlease.agent import blocking
from streamlease.agent.client import Client, connect
from streamlease.agent.loop import LoopThread
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.errors import Fenced, Indefinite, InvalidOption
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.commits import committed
from tests.agent.helpers import SECONDS, SUB, in_order, publish, take, until
from tests.awake import awake
from tests.conftest import MakeServer

GROUP = SharedSubscription.parse(SUB).id


async def soon(reader: SharedReader, count: int) -> list[int]:
    """The numbers of the next `count` messages or a few more, committed without a wait."""
    got: list[int] = []
    async with asyncio.timeout(SECONDS):
        while len(got) < count:
            batch = await anext(reader)
            got.extend(batch.to_arrow().column("payload").cast("string").cast("int64").to_pylist())
            batch.commit_soon()
    return got


async def durable(client: Client, streams: int) -> int:
    """How many messages of space s are committed, as Redis has it."""
    return sum((await committed(client.redis, GROUP, [f"s.0.{n}" for n in range(streams)])).values())


async def test_what_a_flush_has_confirmed_is_in_redis_and_the_next_one_goes_on_behind(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, range(2000))
    async with client.subscribe(SUB, start="earliest", max_batch=10) as reader:
        first = await soon(reader, 1000)
        await reader.flush()
        assert await durable(client, 4) == len(first)
        rest = await soon(reader, 2000 - len(first))
    assert sorted(first + rest) == list(range(2000))
    assert in_order(first + rest)
    assert await durable(client, 4) == 2000  # the end has flushed


async def test_auto_commit_repeats_nothing_after_an_orderly_end(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, range(2000))
    got: list[int] = []
    for most in (700, 2000):
        async with client.subscribe(SUB, start="earliest", max_batch=10, auto_commit=True) as reader:
            async for batch in reader:
                got += [int(message.payload) for message in batch.messages]
                if len(got) >= most:
                    break
    assert sorted(got) == list(range(2000))
    assert in_order(got)


async def test_auto_commit_leaves_out_the_batch_whose_body_raised(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(100), topics=1)
    with pytest.raises(ZeroDivisionError):
        async with client.subscribe(SUB, start="earliest", max_batch=10, auto_commit=True) as reader:
            async for batch in reader:
                if batch.start == 30:
                    raise ZeroDivisionError
    assert await durable(client, 1) == 30
    async with client.subscribe(SUB) as reader:
        assert await take(reader, 70) == list(range(30, 100))


async def test_auto_commit_may_be_helped_by_hand(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(20), topics=1)
    async with client.subscribe(SUB, start="earliest", max_batch=10, auto_commit=True) as reader:
        batch = await anext(reader)
        await batch.commit(3)
        assert await durable(client, 1) == 3
        await anext(reader)
        await reader.flush()
        assert await durable(client, 1) == 10
    assert await durable(client, 1) == 20


@pytest.mark.slow
async def test_consumers_that_gather_hand_over_without_loss_or_repetition(
    client: Client, second: Client
) -> None:
    await client.create_space("s", ["a/#"], streams=8)
    got: list[int] = []

    async def automatically(reader: SharedReader) -> None:
        async for batch in reader:
            got.extend(int(message.payload) for message in batch.messages)

    async def by_hand(reader: SharedReader) -> None:
        async for batch in reader:
            got.extend(int(message.payload) for message in batch.messages)
            batch.commit_soon()

    async with client.subscribe(SUB, start="earliest", max_batch=5, auto_commit=True) as one:
        working = asyncio.create_task(automatically(one))
        publishing = asyncio.create_task(publish(client, range(20_000)))
        for _ in range(2):
            async with second.subscribe(SUB, max_batch=5) as reader:
                other = asyncio.create_task(by_hand(reader))
                await until(lambda reader=reader: len(one.streams) == len(reader.streams) == 4)  # type: ignore[misc]
            await other
            await until(lambda: len(one.streams) == 8)
        await publishing
        await until(lambda: len(got) >= 20_000)
        await one.flush()
        assert await durable(client, 8) == 20_000
        working.cancel()
    assert sorted(got) == list(range(20_000))


async def test_a_commit_after_the_end_is_refused_at_once(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(10), topics=1)
    async with client.subscribe(SUB, start="earliest") as reader:
        batch = await anext(reader)
    with awake() as clock, pytest.raises(Fenced, match="taken away before the commit"):
        await batch.commit()
    assert clock.seconds < 5
    with pytest.raises(Fenced, match="taken away before the commit"):
        batch.commit_soon()


# -- crashes -------------------------------------------------------------------------------------------------

CONSUME = """
import asyncio, sys
import streamlease

async def main(url, stop_at):
    async with (
        streamlease.connect(url) as client,
        client.subscribe("$shared/g/a/#", start="earliest", max_batch=10, auto_commit=True,
                         name="n", session_timeout=2.0) as batches,
    ):
        done = 0
        async for batch in batches:
            numbers = [int(message.payload) for message in batch.messages]
            print("began", *numbers, flush=True)
            if done >= stop_at:
                await asyncio.sleep(1000)
            await asyncio.sleep(0.001)
            done += len(numbers)
            print("done", *numbers, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


class Killed:
    """A process that consumes with auto-commit, until it is killed with SIGKILL."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.began: list[list[int]] = []
        self.done: list[list[int]] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, url: str, stop_at: int) -> Killed:
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", CONSUME, url, f"{stop_at}", stdout=pipe
            )
        )

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word, *numbers = line.split()
            if line.endswith(b"\n"):
                (self.began if word == b"began" else self.done).append([int(number) for number in numbers])

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading


@pytest.mark.slow
async def test_kill_9_with_auto_commit_repeats_the_batch_at_work_and_loses_nothing(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, range(1000))
    killed = await Killed.start(client.url, 500)
    try:
        await until(lambda: sum(map(len, killed.done)) >= 500 and len(killed.began) > len(killed.done))
        async with asyncio.timeout(SECONDS):  # the loop came back behind all but the last
            while await durable(client, 4) < sum(map(len, killed.done)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await durable(client, 4) == sum(map(len, killed.done))
    finally:
        await killed.kill()
    done = {number for batch in killed.done for number in batch}
    async with client.subscribe(SUB, name="n") as reader:
        rest = await take(reader, 1000 - len(done))
    assert set(killed.began[-1]) <= set(rest)
    assert sorted(rest) == sorted(set(range(1000)) - done)


@pytest.mark.slow
async def test_kill_9_at_any_time_with_auto_commit_loses_nothing(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, range(5000))
    done: set[int] = set()
    repeated = 0
    for round_ in range(2):
        killed = await Killed.start(client.url, 5000)
        try:
            await until(lambda: len(killed.done) >= 10 + 17 * round_)  # noqa: B023
        finally:
            await killed.kill()
        for batch in killed.done:
            repeated += sum(number in done for number in batch)
            done.update(batch)
        assert await durable(client, 4) <= len(done), "a batch is committed that was not done"
    async with client.subscribe(SUB, name="n") as reader:
        rest = await take(reader, 5000 - await durable(client, 4))
    assert done | set(rest) == set(range(5000))
    assert len(done & set(rest)) + repeated <= 2 * 4 * 20, "more came again than was under way"


# -- Redis away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("downtime", ["restart", "pause"])
@pytest.mark.slow
async def test_what_was_entered_while_redis_is_away_is_durable_when_it_is_back(
    make_redis_server: MakeServer, downtime: str
) -> None:
    server = make_redis_server(persistent=True)
    async with connect(server.url) as client:
        await client.create_space("s", ["a/#"], streams=4)
        await publish(client, range(500))
        async with client.subscribe(SUB, start="earliest", max_batch=20) as reader:
            got = await soon(reader, 100)
            await reader.flush()
            if downtime == "restart":
                server.kill()
            else:
                server.pause()
            batches = reader.at_once(5)
            assert batches != []
            for batch in batches:
                got += [int(message.payload) for message in batch.messages]
                batch.commit_soon()
            flush = asyncio.create_task(reader.flush())
            await asyncio.sleep(1.0)  # the downtime itself
            assert not flush.done()
            if downtime == "restart":
                server.restart()
            else:
                server.resume()
            await flush
            assert await durable(client, 4) == len(got)
            got += await soon(reader, 500 - len(got))
        assert sorted(got) == list(range(500))


@pytest.mark.parametrize("auto_commit", [False, True])
@pytest.mark.slow
async def test_closing_while_redis_is_away_ends_and_tells_what_is_not_confirmed(
    make_redis_server: MakeServer, *, auto_commit: bool
) -> None:
    server = make_redis_server()
    async with connect(server.url) as client:
        await client.create_space("s", ["a/#"])
        await publish(client, range(10), topics=1)
        with pytest.raises(Indefinite, match=r"s\.0\.0 up to offset 10 within 5 s"):
            async with asyncio.timeout(20):
                async with client.subscribe(SUB, start="earliest", auto_commit=auto_commit) as reader:
                    batch = await anext(reader)
                    server.kill()
                    if not auto_commit:
                        batch.commit_soon()


@pytest.mark.slow
async def test_who_waits_for_a_commit_when_the_subscription_ends_is_told_that_nobody_knows(
    make_redis_server: MakeServer,
) -> None:
    server = make_redis_server()
    async with connect(server.url) as client, asyncio.timeout(30):
        await client.create_space("s", ["a/#"])
        await publish(client, range(10), topics=1)
        async with client.subscribe(SUB, start="earliest") as reader:
            batch = await anext(reader)
            server.kill()
            commit = asyncio.create_task(batch.commit())
            await asyncio.sleep(0)
        with pytest.raises(Indefinite, match=r"ended before the commit of s\.0\.0 was confirmed"):
            await commit


@pytest.mark.slow
async def test_an_error_of_the_body_is_not_hidden_and_a_client_closes_all(
    make_redis_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlease.agent.subscription.CLOSE_SECONDS", 0.2)
    server = make_redis_server()
    client = connect(server.url)
    async with asyncio.timeout(60):
        await client.__aenter__()
        await client.create_space("s", ["a/#"])
        await publish(client, range(10), topics=1)
        left = await client.subscribe(SUB, start="earliest").__aenter__()
        other = await client.subscribe("$shared/h/a/#", start="earliest").__aenter__()
        with pytest.raises(ZeroDivisionError):
            async with client.subscribe("$shared/i/a/#", start="earliest") as reader:
                batches = [await anext(one) for one in (left, other, reader)]
                server.kill()
                for batch in batches:
                    batch.commit_soon()
                raise ZeroDivisionError
        with pytest.raises(Indefinite):
            await client.close()
    assert not left._tasks
    assert not other._tasks
    assert client._agent is None


# -- blocking ------------------------------------------------------------------------------------------------


def numbers(batch: blocking.Batch) -> list[int]:
    return [int(message.payload) for message in batch.messages]


def next_of(subscription: blocking.Subscription) -> blocking.Batch:
    batch = subscription.poll(SECONDS)
    assert batch is not None
    return batch


def filled(client: blocking.Client, count: int) -> None:
    client.create_space("s", ["a/#"], streams=2)
    with client.publisher() as publisher:
        for number in range(count):
            publisher.submit(f"a/{number % 8}", str(number))


def test_the_blocking_client_gathers_and_flushes(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        filled(client, 300)
        got: list[int] = []
        with client.subscribe(SUB, start="earliest", max_batch=10) as subscription:
            for batch in subscription:
                got += numbers(batch)
                with pytest.raises(InvalidOption):
                    batch.commit_soon(batch.end + 1)
                batch.commit_soon()
                if len(got) >= 200:
                    break
            subscription.flush()
            reader = subscription._open()
            assert sum(held.acknowledged for held in reader.book.streams.values()) == len(got)
            batch = next_of(subscription)
            got += numbers(batch)
            batch.commit_soon()
        with client.subscribe(SUB) as subscription:
            while len(got) < 300:
                batch = next_of(subscription)
                got += numbers(batch)
        assert sorted(got) == list(range(300))


def test_the_blocking_client_commits_by_itself(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        filled(client, 300)
        got: list[int] = []
        with client.subscribe(SUB, start="earliest", max_batch=10, auto_commit=True) as subscription:
            for batch in subscription:
                got += numbers(batch)
                if len(got) >= 100:
                    break
        with (
            pytest.raises(ZeroDivisionError),
            client.subscribe(SUB, max_batch=10, auto_commit=True) as subscription,
        ):
            got += numbers(next_of(subscription))
            next_of(subscription)  # at work when the body raises
            raise ZeroDivisionError
        with client.subscribe(SUB, auto_commit=True) as subscription:
            while len(got) < 300:
                got += numbers(next_of(subscription))
        assert sorted(got) == list(range(300))


def test_a_batch_that_came_to_an_interrupted_call_is_neither_lost_nor_done(
    real_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.connect(real_redis_url) as client:
        filled(client, 100)
        call = LoopThread.call

        def interrupted(loop: LoopThread, work: object, seconds: float | None = None) -> None:
            """Ctrl-C, when the work is just done."""
            monkeypatch.undo()
            call(loop, work, seconds)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        got: list[int] = []
        with client.subscribe(SUB, start="earliest", max_batch=10, auto_commit=True) as subscription:
            for attempt in range(3):
                monkeypatch.setattr(LoopThread, "call", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    subscription.poll()
                if attempt < 2:
                    got += numbers(next_of(subscription))
        with client.subscribe(SUB) as subscription:
            while len(got) < 100:
                batch = subscription.poll(5)
                assert batch is not None, "what nobody saw is committed"
                got += numbers(batch)
        assert sorted(got) == list(range(100))
