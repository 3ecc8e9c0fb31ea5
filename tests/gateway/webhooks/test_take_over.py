"""Several gateways: webhooks are spread over them, and move when one is killed, stands still, or ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlease.registry.webhooks.webhook_records import SLOTS
from tests.admin.command import Command, lines_of
from tests.gateway.conftest import Client
from tests.gateway.http_client import HttpClient
from tests.gateway.webhooks.conftest import publish, subscribe
from tests.gateway.webhooks.receiver import Receiver
from tests.gateway.webhooks.test_webhooks import check_whole

WEBHOOKS = 24
pytestmark = pytest.mark.cluster


class Gateway:
    """One process."""

    def __init__(self, command: Command) -> None:
        self.process = command.start("gateway", "--port", "0", "--allow-private-callbacks")
        (said,) = lines_of(self.process, 1)
        self.http = HttpClient(int(said.rstrip("/").rpartition(":")[2]))

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def slots(self) -> int:
        """How many slots it has, by its metrics."""
        for line in (await self.http.get("/metrics")).body.decode().splitlines():
            if line.startswith("streamlease_webhook_slots "):
                return int(float(line.split()[1]))
        raise AssertionError("the metric is not there")


@pytest.fixture
async def gateways(client: Client, embedded_redis_url: str, tmp_path: Path) -> AsyncIterator[list[Gateway]]:
    await client.create_space("s", ["a/#"], streams=4, shard_by="key")
    command = Command(tmp_path, embedded_redis_url)
    started = [await asyncio.to_thread(Gateway, command) for _ in range(2)]
    try:
        yield started
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.kill()  # which also ends what stands still
            one.process.wait()
            assert one.process.stdout is not None
            one.process.stdout.close()


@asynccontextmanager
async def flood(http: HttpClient) -> AsyncIterator[dict[str, Any]]:
    """Publishes without an end; in the end it is known how many there are."""
    state: dict[str, Any] = {"count": 0, "goes_on": True}

    async def work() -> None:
        while state["goes_on"]:
            await publish(http, 10, start=state["count"])
            state["count"] += 10

    task = asyncio.create_task(work())
    try:
        yield state
    finally:
        state["goes_on"] = False
        await task


async def spread(gateways: list[Gateway]) -> None:
    """Wait until each has half of the slots."""
    has: list[int] = []
    try:
        async with asyncio.timeout(30):
            while has != [SLOTS // len(gateways)] * len(gateways):
                has = [await one.slots() for one in gateways]
    except TimeoutError:
        raise AssertionError(f"the gateways have {has} slots") from None


def check_repeats(receiver: Receiver, id: str) -> int:
    """Each delivery begins at the end of the last acknowledged one, or repeats it: once at most in a row."""
    repeated, previous, last = 0, None, None
    for one in receiver.deliveries:
        if one.body["subscription"] != id:
            continue
        if last is not None and one.body["previous"] != last.body["next"]:
            assert one.body["previous"] == last.body["previous"], (id, previous)
            repeated += 1
        last = one
    return repeated


@pytest.mark.parametrize("place", [0, 1])
async def test_a_gateway_that_is_killed_leaves_its_webhooks_to_the_other(
    gateways: list[Gateway], receiver: Receiver, place: int
) -> None:
    """The first one also leads the group."""
    first = gateways[0].http
    ids = [f"h{number}" for number in range(WEBHOOKS)]
    for id in ids:
        await subscribe(first, receiver, id=id, since="earliest")
    await spread(gateways)
    killed, left = gateways[place], gateways[1 - place]
    async with flood(left.http) as state:
        await receiver.until(lambda: all(len(receiver.acknowledged[id]) > 50 for id in ids))
        killed.signal(signal.SIGKILL)
        until = state["count"] + 100
        await receiver.until(lambda: all(len(receiver.payloads(id)) > until for id in ids), 90)
    await publish(left.http, 1, start=state["count"])
    count = state["count"] + 1
    newest = str(count - 1)
    await receiver.until(lambda: all(newest in receiver.payloads(id)[-300:] for id in ids), 90)
    for id in ids:
        repeated = check_repeats(receiver, id)
        assert repeated <= 1
        once = list({(m["stream"], m["offset"]): m for m in receiver.acknowledged[id]}.values())
        check_whole(once, count)
    assert await left.slots() == SLOTS


async def test_a_gateway_that_stood_still_repeats_nothing_when_it_goes_on(
    gateways: list[Gateway], receiver: Receiver
) -> None:
    """Longer than its session: another one has its webhooks by then."""
    ids = [f"h{number}" for number in range(WEBHOOKS)]
    for id in ids:
        await subscribe(gateways[0].http, receiver, id=id, since="earliest")
    await spread(gateways)
    stopped, left = gateways[1], gateways[0]
    async with flood(left.http) as state:
        await receiver.until(lambda: all(len(receiver.acknowledged[id]) > 50 for id in ids))
        stopped.signal(signal.SIGSTOP)
        until = state["count"] + 100
        await receiver.until(lambda: all(len(receiver.payloads(id)) > until for id in ids), 90)
        seen = len(receiver.deliveries)
        stopped.signal(signal.SIGCONT)
        await receiver.until(lambda: len(receiver.deliveries) > seen + 500)
    await finished(left.http, receiver, ids, state["count"])
    for id in ids:
        assert check_repeats(receiver, id) <= 1
        check_whole(once(receiver, id), state["count"])


async def test_a_gateway_that_ends_hands_over_and_nothing_comes_twice(
    gateways: list[Gateway], receiver: Receiver
) -> None:
    ids = [f"h{number}" for number in range(WEBHOOKS)]
    for id in ids:
        await subscribe(gateways[0].http, receiver, id=id, since="earliest")
    await spread(gateways)
    ending, left = gateways[1], gateways[0]
    async with flood(left.http) as state:
        await receiver.until(lambda: all(len(receiver.acknowledged[id]) > 50 for id in ids))
        ending.signal(signal.SIGTERM)
        assert await asyncio.to_thread(ending.process.wait, 30) == 0
        until = state["count"] + 100
        await receiver.until(lambda: all(len(receiver.payloads(id)) > until for id in ids), 90)
    await finished(left.http, receiver, ids, state["count"])
    for id in ids:
        assert check_repeats(receiver, id) == 0
        check_whole(receiver.acknowledged[id], state["count"])


async def finished(http: HttpClient, receiver: Receiver, ids: list[str], count: int) -> None:
    """Wait until all webhooks have all messages."""
    newest = str(count - 1)
    await receiver.until(lambda: all(newest in receiver.payloads(id)[-300:] for id in ids), 90)
    await receiver.until(lambda: all(len(once(receiver, id)) >= count for id in ids), 60)


def once(receiver: Receiver, id: str) -> list[Any]:
    """What was acknowledged, each message in the place where it came first."""
    return list({(m["stream"], m["offset"]): m for m in receiver.acknowledged[id]}.values())
