"""Servers that are killed, stopped or restarted in the middle, and a Redis that is: real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import streamlease
from streamlease.protocol.errors import Indefinite
from tests.conftest import MakeServer
from tests.services.load import Load, until
from tests.services.models import Score, Scored

LEASE_MS = 2000
PROMPT_SECONDS = 8.0
"""Far below the time-outs of the calls, far above the lease, on a busy machine."""

Client = streamlease.Client
StartServer = Callable[[str, str], Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
def ran_file(tmp_path: Path) -> Path:
    """Where the servers write down what they ran."""
    file = tmp_path / "ran"
    file.touch()
    return file


@pytest.fixture
async def start_server(ran_file: Path) -> AsyncIterator[StartServer]:
    """Starts processes that serve; all end with the test."""
    started: list[asyncio.subprocess.Process] = []

    async def start(url: str, name: str) -> asyncio.subprocess.Process:
        words = (
            sys.executable,
            "-m",
            "tests.services.server_program",
            url,
            name,
            str(LEASE_MS),
            str(ran_file),
        )
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"serves\n"
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


def _ran(file: Path) -> Counter[int]:
    return Counter(map(int, file.read_text().split()))


@pytest.mark.slow
async def test_a_call_of_a_server_that_is_killed_is_indefinite_soon(
    real_redis_url: str, start_server: StartServer, ran_file: Path
) -> None:
    killed = await start_server(real_redis_url, "killed")
    async with streamlease.connect(real_redis_url) as client:
        stuck = asyncio.ensure_future(client.call("scorer", Score(x=-1), answer=Scored, wait=5, timeout=600))
        await until(lambda: _ran(ran_file)[-1])
        await start_server(real_redis_url, "other")
        load = Load(client)
        loading = asyncio.ensure_future(load.run())
        await load.until_answered_by("killed", "other")
        killed.send_signal(signal.SIGKILL)
        with pytest.raises(
            Indefinite, match="its server has died, or was cut off; it was done, or it was not"
        ):
            async with asyncio.timeout(PROMPT_SECONDS):
                await stuck
        lost = len(load.indefinite)
        await load.until_answered_by("other")
        load.end()
        await loading
        assert len(load.indefinite) - lost <= 20, (
            "at most those that were under way: nobody is sent there any more"
        )
        load.judge(_ran(ran_file))


@pytest.mark.slow
async def test_a_server_that_stood_still_past_its_lease_serves_again_and_begins_nothing_old(
    real_redis_url: str, start_server: StartServer, ran_file: Path
) -> None:
    stopped = await start_server(real_redis_url, "stopped")
    await start_server(real_redis_url, "other")
    async with streamlease.connect(real_redis_url) as client:
        load = Load(client)
        loading = asyncio.ensure_future(load.run())
        await load.until_answered_by("stopped", "other")
        os.kill(stopped.pid, signal.SIGSTOP)
        await until(lambda: load.indefinite)
        lost = {*load.indefinite}
        ran = _ran(ran_file)
        await load.until_answered_by("other")
        os.kill(stopped.pid, signal.SIGCONT)
        await load.until_answered_by("stopped", "other")
        load.end()
        await loading
        load.judge(_ran(ran_file))
        late = [x for x in lost if _ran(ran_file)[x] and not ran[x]]
        assert len(late) <= 1, (
            "begun behind their end; one may have been about to begin when the process stopped"
        )


@pytest.mark.parametrize("persistent", [True, False], ids=["its data is there", "its data is lost"])
async def test_calls_go_on_when_redis_is_restarted(
    make_redis_server: MakeServer, start_server: StartServer, ran_file: Path, persistent: bool
) -> None:
    server = make_redis_server(persistent=persistent)
    for name in ("one", "other"):
        await start_server(server.url, name)
    async with streamlease.connect(server.url) as client:
        load = Load(client)
        loading = asyncio.ensure_future(load.run())
        await load.until_answered_by("one", "other")
        server.restart()
        await load.until_answered_by("one", "other")
        load.end()
        async with asyncio.timeout(30):
            await loading
        load.judge(_ran(ran_file))


@pytest.mark.slow
async def test_a_redis_that_stands_still_ends_no_call(
    make_redis_server: MakeServer, start_server: StartServer, ran_file: Path
) -> None:
    server = make_redis_server()
    await start_server(server.url, "one")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(streamlease.connect(server.url))
        load = Load(client)
        loading = asyncio.ensure_future(load.run())
        await load.until_answered_by("one")
        server.pause()
        await asyncio.sleep(LEASE_MS / 2000)  # for less than the lease
        server.resume()
        await load.until_answered_by("one")
        load.end()
        await loading
        load.judge(_ran(ran_file))
        assert not load.indefinite
