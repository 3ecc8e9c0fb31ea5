"""Publishers as processes beside a real keeper: killed, back under their names, doubled, and silent."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import streamlease
from streamlease.admin.facts.epochs import SpaceEpochs
from streamlease.agent.client import Client
from streamlease.agent.epochs.epoch_items import EpochBatch
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.stored import read_bounds, read_fold
from streamlease.streams.redis.connection import ask, connect

PROGRAM = Path(__file__).with_name("publishing_program.py")
ROWS = 300


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    """A space with epochs that a host keeps."""
    redis = connect(embedded_redis_url)
    async with streamlease.connect(embedded_redis_url, embedded=False) as made:
        await made.create_space("clicks", ["clicks/#"], streams=3, epochs=1, epochs_timeout=20)
        host = LeaderHost(redis, HostConfig(name="host"))
        await host.start()
        yield made
        await host.close()
    await redis.aclose()


@contextlib.asynccontextmanager
async def publishing(client: Client, name: str, until: int, rows: int = ROWS) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), client.url, name, str(until), str(rows), stdout=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: Process, wanted: str) -> None:
    """Wait until the process says it."""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while line := (await process.stdout.readline()).decode():
            if line.startswith(wanted):
                return
    raise AssertionError(f"it ended without {wanted!r}")


async def completed(client: Client, epoch: int) -> None:
    """Wait until `epoch` is completed."""
    number = 0
    async with asyncio.timeout(60):
        while True:
            for bound in await read_bounds(client.redis, "clicks", number):
                number = bound.number
                if all(one > (epoch,) for one in bound.lower):
                    return
            await asyncio.sleep(0.02)


async def whole(client: Client) -> dict[int, Counter[str]]:
    """The messages of each epoch, as an atomic reader sees them."""
    found: dict[int, Counter[str]] = {}
    async with client.history("clicks/#", epochs="atomic") as items:
        async for item in items:
            if isinstance(item, EpochBatch):
                (epoch,) = item.epoch
                assert epoch not in found, "an epoch is handed out once"
                found[epoch] = Counter(message.payload.decode() for message in item.messages)
    return found


def all_of(name: str, epoch: int, rows: int = ROWS) -> Counter[str]:
    return Counter(f"{name} {epoch} {number}" for number in range(rows))


async def nothing_staged(client: Client) -> None:
    """Wait until all that was staged is moved or dropped."""
    streams = (await client.spaces.get("clicks")).streams()
    async with asyncio.timeout(20):
        while any(await ask(client.redis, [("HVALS", keys.staged_epochs(stream)) for stream in streams])):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_killed_publisher_goes_on_under_its_name(client: Client) -> None:
    """Killed right after a line, and in the middle of an epoch: each epoch comes once, and whole."""
    async with publishing(client, "other", 12, 10) as other:
        for moment in ("end 1", "begin 4", "end 5", "begin 7"):
            async with publishing(client, "p", 12) as process:
                await said(process, moment)
                process.send_signal(signal.SIGKILL)
        async with publishing(client, "p", 12) as process:
            assert await process.wait() == 0
        assert await other.wait() == 0
    await completed(client, 11)
    found = await whole(client)
    assert found == {epoch: all_of("p", epoch) + all_of("other", epoch, 10) for epoch in range(12)}
    await nothing_staged(client)


@pytest.mark.slow
async def test_two_processes_under_one_name(client: Client) -> None:
    """The one that came first is fenced; what it had not given up is nobody's, and each epoch is whole."""
    async with publishing(client, "p", 1000) as first:
        await said(first, "end 2")
        async with publishing(client, "p", 8) as second:
            await said(first, "fenced publisher p of space clicks is not there any more")
            assert await first.wait() == 3
            assert await second.wait() == 0
    (last,) = [one - 1 for (one,) in (await read_fold(client.redis, "clicks", 1)).lower]
    await completed(client, last)
    found = await whole(client)
    assert found == {epoch: all_of("p", epoch) for epoch in range(last + 1)} and last >= 7
    await nothing_staged(client)


@pytest.mark.slow
async def test_a_publisher_that_stays_away_is_given_up(client: Client) -> None:
    await client.spaces.delete("clicks")
    await client.create_space("clicks", ["clicks/#"], streams=3, epochs=1, epochs_timeout=1)
    async with client.epoch_publisher("clicks", "other") as other:
        for epoch in range(6):
            await other.send("clicks/a", f"other {epoch} 0".encode(), epoch=epoch)
        async with publishing(client, "p", 1000) as process:
            await said(process, "end 2")
            process.send_signal(signal.SIGKILL)
        await other.advance(6)
        await completed(client, 5)
    found = await whole(client)
    for epoch in range(6):
        mine = Counter({what: count for what, count in found[epoch].items() if what.startswith("p ")})
        assert found[epoch] - mine == all_of("other", epoch, 1)
        assert mine in (all_of("p", epoch), Counter()), "all that it sent in an epoch, or nothing"
    assert all(all_of("p", epoch) <= found[epoch] for epoch in range(3)), "it had given these up"
    await nothing_staged(client)


@pytest.mark.slow
async def test_a_publisher_that_was_stopped_for_too_long_is_fenced(client: Client) -> None:
    await client.spaces.delete("clicks")
    await client.create_space("clicks", ["clicks/#"], streams=3, epochs=1, epochs_timeout=3)
    async with publishing(client, "p", 100_000) as process:
        await said(process, "end 2")
        process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(60):
            while (await read_fold(client.redis, "clicks", 1)).present:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        held = (await read_fold(client.redis, "clicks", 1)).lower
        process.send_signal(signal.SIGCONT)
        await said(process, "fenced publisher p of space clicks is not there any more")
        assert await process.wait() == 3
    assert (await read_fold(client.redis, "clicks", 1)).lower == held, "it gave up nothing any more"
    (last,) = [one - 1 for (one,) in held]
    await completed(client, last)
    assert await whole(client) == {epoch: all_of("p", epoch) for epoch in range(last + 1)}
    await nothing_staged(client)


async def abort(client: Client, name: str) -> str:
    """``streamlease epochs abort``; what it said."""
    words = ("epochs", "abort", "clicks", name, "--yes", "--redis", client.url)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streamlease.admin", *words, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said
    return said.decode()


async def silent_for(client: Client, name: str, seconds: float) -> None:
    """Wait until a publisher that still counts as being there was silent for so long."""
    space = await client.spaces.get("clicks")
    async with asyncio.timeout(60):
        while True:
            (seen,) = [
                one for one in (await SpaceEpochs.read(client.redis, space)).publishers if one.name == name
            ]
            if (seen.silent_seconds or 0) >= seconds:
                return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_where_losses_wait_only_an_operator_gives_a_publisher_up(client: Client) -> None:
    """Killed and long past the time-out, it holds what it held, and goes on; killed again, it is aborted."""
    await client.spaces.delete("clicks")
    await client.create_space(
        "clicks", ["clicks/#"], streams=3, epochs=1, epochs_timeout=0.5, epochs_on_loss="wait"
    )
    async with client.epoch_publisher("clicks", "other") as other:
        for epoch in (0, 2, 1000):
            await other.send("clicks/a", f"other {epoch} 0".encode(), epoch=epoch)

        async def killed(moment: str) -> int:
            """Kill it then; the first epoch that it holds."""
            async with publishing(client, "p", 1000) as process:
                await said(process, moment)
                process.send_signal(signal.SIGKILL)
                await process.wait()
            # The keeper looks ten times in the time-out, and would have given it up long ago.
            await silent_for(client, "p", 3.0)
            await other.advance(1001)
            fold = await read_fold(client.redis, "clicks", 1)
            ((held,),) = fold.frontier_of("p")
            assert fold.lower == ((held,),), "it holds the frontier back"
            await completed(client, held - 1)
            return held

        first = await killed("begin 2")
        second = await killed(f"begin {first + 2}")
        assert second > first, "it went on where it was"
        assert "publisher p of space clicks is given up" in await abort(client, "p")
        await completed(client, 1000)
    found = await whole(client)
    assert found.pop(1000) == all_of("other", 1000, 1)
    others = {epoch: all_of("other", epoch, 1) for epoch in (0, 2)}
    assert found == {epoch: all_of("p", epoch) + others.get(epoch, Counter()) for epoch in range(second)}
    await nothing_staged(client)
