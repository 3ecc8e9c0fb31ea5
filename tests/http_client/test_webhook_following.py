"""The client of the gateway follows by callbacks, which are dropped, doubled and late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamlease import http
from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient
from tests.http_client.callback_server import CallbackServer, callbacks
from tests.http_client.faulty_proxy import Faults, between
from tests.http_client.other_programs import EXAMPLES, NODE, SECONDS, started
from tests.http_client.test_following import QUICK, check, publish, take, truth

MODES: dict[str, dict[str, Any]] = {"callbacks only": {"pull": False}, "both": {}}
FAULTS = {
    "honest": Faults(),
    "dropped": Faults(drop=0.3),
    "doubled": Faults(double=0.5, no_answer=0.2),
    "late": Faults(hold=0.3),
    "delayed": Faults(delay=0.5, seconds=0.05),
}


@pytest.fixture
async def hooks(client: Client) -> AsyncIterator[HttpClient]:
    """A gateway that may call this machine."""
    await client.create_space("s", ["a/#"], streams=3)
    async with running(client, webhooks=WebhookSettings(allow_private=True)) as http:
        yield http


@pytest.fixture
async def server() -> AsyncIterator[CallbackServer]:
    async with callbacks() as one:
        yield one


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("faults", FAULTS)
async def test_the_same_messages_whatever_becomes_of_callbacks(
    client: Client, hooks: HttpClient, server: CallbackServer, mode: str, faults: str
) -> None:
    await publish(client, 0, 30)
    async with (
        between(server.port, FAULTS[faults], seed=8, callbacks=True) as proxy,
        http.connect(f"http://127.0.0.1:{hooks.port}") as service,
    ):
        hook = http.Webhook(f"{proxy.url}/hook", "secret")
        options = {"quiet": QUICK, "limit": 10, **MODES[mode]}
        async with service.follow("a/wanted/+", "earliest", webhook=hook, **options) as pages:
            server.follower = pages
            found, first, wanted = await take(pages, 20), 30, FAULTS[faults]

            def all_happened() -> bool:
                """On a busy machine that pulls as well, few messages come by a callback."""
                return all(proxy.done[kind] for kind in proxy.done if getattr(wanted, kind))

            def was_noticed() -> bool:
                """On a busy machine silence may be noticed before another callback shows that one is lost."""
                counts = pages.counts
                if faults in ("dropped", "late"):
                    return counts.gaps > 0 or (mode == "both" and counts.failed_subscriptions > 0)
                if faults == "doubled":
                    return counts.doubled > 0 or (mode == "both" and counts.rejected > 0)
                return True

            while first < 90 or (first < 1200 and not (all_happened() and was_noticed())):
                await publish(client, first, first + 6)
                found += await take(pages, 4)
                first += 6
            server.follower = None
        check(found, await truth(client))
        assert 204 in server.statuses
        assert all_happened(), proxy.done
        assert was_noticed(), pages.counts
        there = (await hooks.get("/v1/subscriptions")).json()["subscriptions"]
        assert there == [], "its last subscription ended with it"


async def test_callbacks_for_an_old_subscription_are_refused(
    client: Client, hooks: HttpClient, server: CallbackServer
) -> None:
    """The gateway learns that by 410, and suspends what nobody wants any more."""
    async with http.connect(f"http://127.0.0.1:{hooks.port}") as service:
        hook = http.Webhook(f"http://127.0.0.1:{server.port}/", "secret")
        old = {"filter": "a/#", "callback": hook.callback, "secret": hook.secret, "id": "old"}
        assert (await hooks.post("/v1/subscriptions", json.dumps(old))).status == 201
        async with service.follow("a/#", "earliest", webhook=hook, quiet=QUICK) as pages:
            server.follower = pages
            await publish(client, 0, 3)
            found = await take(pages, 3)
            check(found, sorted(found))

            async def state() -> Any:
                return (await hooks.get("/v1/subscriptions/old")).json()["state"]

            async with asyncio.timeout(30):
                while await state() != "suspended":
                    pass
            assert pages.counts.rejected


async def test_the_receiver_in_typescript_takes_what_a_gateway_delivers(
    client: Client, hooks: HttpClient, tmp_path: Path
) -> None:
    async with started(tmp_path, NODE, EXAMPLES / "gateway.mts", "receive", "0", "secret", "20") as process:
        assert process.stderr is not None
        said = (await asyncio.wait_for(process.stderr.readline(), SECONDS)).decode()
        wanted = {
            "filter": "a/wanted/+",
            "callback": said.split()[-1],
            "secret": "secret",
            "since": "earliest",
        }
        assert (await hooks.post("/v1/subscriptions", json.dumps(wanted))).status == 201
        await publish(client, 0, 30)
        out, error = await asyncio.wait_for(process.communicate(), SECONDS)
        assert process.returncode == 0, error.decode()
    found = [json.loads(line) for line in out.splitlines()]
    check([(message["stream"], message["offset"]) for message in found], await truth(client))
