"""Consumers of a group as processes, which also lead it and keep the space: killed, followed by others."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path

import pytest

import streamlease
from streamlease.agent.client import Client
from streamlease.protocol.errors import UnknownSpace
from streamlease.registry.commits import committed
from streamlease.streams.epochs.stored import read_joined, read_newest

PUBLISHER = Path(__file__).with_name("publishing_program.py")
EPOCHS = 40
ROWS = 60


class Sharing:
    """The consumers, and what they said, in the order in which it was heard."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.processes: list[Process] = []
        self.parts: dict[tuple[str, int], tuple[int, list[str]]] = {}
        self.committed: set[tuple[str, int]] = set()
        self.wrong: list[str] = []
        self._reading: list[asyncio.Task[None]] = []

    async def add(self) -> None:
        """One consumer more."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.epochs.sharing_program", self._url, stdout=PIPE
        )
        self.processes.append(process)
        self._reading.append(asyncio.create_task(self._read(process)))

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if not line.endswith(b"\n"):
                return  # it was killed as it wrote
            said = json.loads(line)
            if "committed" in said:
                stream, start = said["committed"]
                self.committed.add((stream, start))
                continue
            place = said["stream"], said["start"]
            if place in self.committed:
                self.wrong.append(f"{place} was committed, and came again")
            if not said["whole"]:
                self.wrong.append(f"{place} is not whole")
            part = said["epoch"], said["texts"]
            if self.parts.setdefault(place, part) != part:
                self.wrong.append(f"{place} is another part than before")

    async def kill(self, process: Process) -> None:
        """End it, and hear all that it said."""
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await self._reading[self.processes.index(process)]

    async def close(self) -> None:
        """End all."""
        for process in self.processes:
            if process.returncode is None:
                await self.kill(process)


async def until_parts(sharing: Sharing, count: int) -> None:
    async with asyncio.timeout(90):
        while len(sharing.parts) < count:  # noqa: ASYNC110 (read by other tasks)
            await asyncio.sleep(0.02)


async def all_is_committed(client: Client) -> None:
    """Wait until the newest boundary completes the last epoch, and the group is there."""
    async with asyncio.timeout(90):
        while True:
            try:
                bound = await read_newest(client.redis, "clicks")
            except UnknownSpace:
                bound = None
            if bound is not None and all(one >= (EPOCHS,) for one in bound.lower):
                ends = {
                    str(one): end for one, end in (await read_joined(client.redis, "clicks")).ends.items()
                }
                if await committed(client.redis, "g/clicks/#", [*ends]) == ends:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_consumers_are_killed_with_the_leader_and_the_keeper_in_them(embedded_redis_url: str) -> None:
    async with streamlease.connect(embedded_redis_url, embedded=False) as client:
        await client.create_space("clicks", ["clicks/#"], streams=4, epochs=1, epochs_timeout=60)
        sharing = Sharing(embedded_redis_url)
        publisher = await asyncio.create_subprocess_exec(
            sys.executable, str(PUBLISHER), embedded_redis_url, "p", str(EPOCHS), str(ROWS), stdout=PIPE
        )
        try:
            await sharing.add()
            await sharing.add()
            for number in range(3):
                await until_parts(sharing, 20 * (number + 1))
                await sharing.kill(sharing.processes[number])  # the oldest leads, and keeps
                await sharing.add()
            await all_is_committed(client)
        finally:
            if publisher.returncode is None:
                publisher.kill()
            await publisher.wait()
            await sharing.close()
    assert sharing.wrong == []
    found: Counter[str] = Counter()
    for _, texts in sharing.parts.values():
        found.update(texts)
    assert found == Counter(f"p {epoch} {number}" for epoch in range(EPOCHS) for number in range(ROWS))
