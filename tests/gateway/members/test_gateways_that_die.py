"""Real gateway processes behind a plain load balancer: killed, stopped, ended; the session goes on."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import streamlease
from streamlease.admin.facts.group import describe
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys
from streamlease.streams import tasks
from tests.admin.command import Command, Process, finish, lines_of
from tests.gateway.http_client import HttpClient
from tests.gateway.members.member_client import Member

Client = streamlease.Client
SHARED = SharedSubscription.parse("$shared/g/a/#")
MESSAGES = 400
TIMEOUT = 10

Started = tuple[Process, HttpClient]
Start = Callable[[], Awaitable[Started]]


@pytest.fixture
async def start(tmp_path: Path, embedded_redis_url: str) -> AsyncIterator[Start]:
    """Starts a gateway as a process."""
    command = Command(tmp_path, embedded_redis_url)
    processes: list[Process] = []

    async def begin() -> Started:
        process = command.start("gateway", "--port", "0")
        processes.append(process)
        (said,) = await asyncio.to_thread(lines_of, process, 1)
        return process, HttpClient(int(said.rstrip("/").rpartition(":")[2]))

    yield begin
    for process in processes:
        process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(finish, process)


class Beside:
    """A Python consumer of the same group, with the leader in its process."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int]] = []
        self.streams: Callable[[], list[str]] = list

    @asynccontextmanager
    async def consuming(self, client: Client) -> AsyncIterator[None]:
        async with client.subscribe(str(SHARED), start="earliest", name="beside") as batches:
            self.streams = lambda: batches.streams
            task = asyncio.ensure_future(self._consume(batches))
            try:
                yield
            finally:
                await tasks.stop([task])

    async def _consume(self, batches: Any) -> None:
        async for batch in batches:
            self.got += [(one.stream, one.offset) for one in batch.messages]
            await batch.commit()


async def owners(client: Client) -> dict[str, str | None]:
    return {one.stream: one.owner for one in (await describe(client, SHARED)).streams}


async def balanced(client: Client) -> dict[str, str | None]:
    """Who has which stream, once both have as many."""
    async with asyncio.timeout(20):
        while True:
            found = await owners(client)
            if sorted([*found.values()].count(name) for name in {*found.values()}) == [4, 4]:
                return found
            await asyncio.sleep(0.05)


async def journal(client: Client) -> list[dict[str, Any]]:
    """All records of the group, as its leaders wrote them."""
    entries = await client.redis.execute_command("XRANGE", keys.journal(SHARED.id), "-", "+")
    return [record for _, fields in entries for record in json.loads(fields[b"r"])]


async def publish(client: Client, first: int, last: int) -> None:
    async with client.publisher() as publisher:
        for number in range(first, last):
            await publisher.submit(f"a/{number % 50}", str(number).encode())


async def kill(process: Process) -> None:
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait, 20)


async def stop(process: Process) -> None:
    process.send_signal(signal.SIGSTOP)


async def end(process: Process) -> None:
    assert (await asyncio.to_thread(finish, process)).code == 0


@pytest.mark.parametrize("go", [kill, stop, end])
async def test_a_session_goes_on_at_another_gateway_without_a_rebalance(
    client: Client, start: Start, go: Callable[[Process], Awaitable[None]]
) -> None:
    await client.create_space("s", ["a/#"], streams=8)
    beside = Beside()
    first, second = await start(), await start()
    async with beside.consuming(client):
        member = await Member([first[1], second[1]], "g").join("a/#", session_timeout=TIMEOUT)
        before = await balanced(client)
        await publish(client, 0, MESSAGES // 2)
        for _ in range(4):
            await member.done(await member.fetch(max=10))
        in_hand = await member.fetch(max=20)
        assert in_hand["messages"]
        known, moves = len(await journal(client)), (await describe(client, SHARED)).moves

        await go(first[0])
        if go is stop:
            member.send_to([second[1]])
        await member.done(in_hand)  # fetched of the one, committed at the other
        await publish(client, MESSAGES // 2, MESSAGES)
        async with asyncio.timeout(30):
            while len(beside.got) + len(member.got) < MESSAGES:
                await member.done(await member.fetch(max=50, wait=1))

        records = (await journal(client))[known:]
        assert not [one for one in records if one["type"] == "released"]
        assert await owners(client) == before
        assert (await describe(client, SHARED)).moves == moves
        assert len({*beside.got, *member.got}) == len(beside.got) + len(member.got) == MESSAGES
        if go is stop:
            await came_again(member, first, second)
        await member.leave()
    assert all(one.owner is None or one.lag == 0 for one in (await describe(client, SHARED)).streams)


async def came_again(member: Member, stopped: Started, other: Started) -> None:
    """The gateway that stood still passes on what it is asked, and takes nothing back."""
    stopped[0].send_signal(signal.SIGCONT)
    member.send_to([stopped[1], other[1]])
    for _ in range(4):
        assert not (await member.fetch(wait=0))["messages"]


async def test_who_waits_at_a_gateway_that_ends_is_told(client: Client, start: Start) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    (ending, first), (_, second) = await start(), await start()
    member = await Member([first], "g").join("a/#", session_timeout=TIMEOUT)
    path = f"{member.base}/{member.id}/messages?wait=50"
    passed_on = asyncio.ensure_future(second.get(path))
    since = asyncio.ensure_future(first.get("/v1/messages", filter="a/#", wait=50))
    await asyncio.wait({passed_on, since}, timeout=1)
    await end(ending)
    told = await since
    assert (told.status, told.json()["type"].rpartition("/")[2]) == (503, "gateway-ends")
    await publish(client, 0, 1)
    assert len((await passed_on).json()["messages"]) == 1  # it went on where the session did


async def test_gateways_are_killed_again_and_again_at_work(client: Client, start: Start) -> None:
    await client.create_space("s", ["a/#"], streams=8)
    beside, count = Beside(), 1500
    async with beside.consuming(client):
        await asyncio.wait_for(has(beside.streams), 20)
        gateways = [await start() for _ in range(3)]
        members = [Member([http for _, http in gateways], "g") for _ in range(2)]
        for member in members:
            await member.join("a/#", session_timeout=TIMEOUT)
        await asyncio.wait_for(has(lambda: len(beside.streams()) < 4), 20)
        known = len(await journal(client))
        publishing = asyncio.ensure_future(publish(client, 0, count))

        def missing() -> int:
            return count - sum(len({*one.got}) for one in (beside, *members))

        async def work(member: Member) -> None:
            while missing():
                await member.done(await member.fetch(max=20, wait=1))

        working = [asyncio.ensure_future(work(member)) for member in members]
        for turn in range(4):
            reached = count * (turn + 1) // 6
            await asyncio.wait_for(has(lambda reached=reached: count - missing() >= reached), 30)
            await kill(gateways[turn % 3][0])
            gateways[turn % 3] = await start()
            for member in members:
                member.send_to([http for _, http in gateways])
        await asyncio.wait_for(asyncio.gather(publishing, *working), 60)
        got = [*beside.got, *members[0].got, *members[1].got]
        assert len({*got}) == len(got) == count
        assert not [one for one in (await journal(client))[known:] if one["type"] == "released"]


async def has(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110 (any condition)
        await asyncio.sleep(0.02)
