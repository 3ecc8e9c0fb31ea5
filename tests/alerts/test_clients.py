"""Alerts of publishers and gateways: a client asks too often, and Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.error
import urllib.request
from pathlib import Path

import streamlease
from streamlease.agent.client import connect
from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.publish.publisher import Publisher
from tests.admin.command import Command
from tests.alerts.prometheus import Prometheus
from tests.conftest import MakeServer
from tests.gateway.test_gateway_command import serving


def asked(request: urllib.request.Request) -> int:
    """The status of the answer."""
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def post(url: str) -> int:
    return asked(urllib.request.Request(f"{url}/v1/topics/a/1", data=b"x", method="POST"))


def post_until(over: threading.Event, url: str) -> set[int]:
    """Post until it is over; the statuses of the answers."""
    seen = set()
    while not over.wait(0.005):
        seen.add(post(url))
    return seen


async def test_alerts_of_clients(
    make_redis_server: MakeServer, prometheus: Prometheus, tmp_path: Path
) -> None:
    server = make_redis_server()
    command = Command(tmp_path, server.url)
    command.ok("space", "create", "a", "--topics", "a/#")
    with serving(command, "--max-rate", "5") as url:
        ports = {"test": streamlease.serve_metrics(0), "gateway": int(url.rpartition(":")[2])}
        await asyncio.to_thread(lambda: prometheus.watch(**ports))
        fires = threading.Event()
        async with asyncio.TaskGroup() as work:
            posts = work.create_task(asyncio.to_thread(post_until, fires, url))
            try:
                await asyncio.to_thread(prometheus.until_fires, "StreamleaseGatewayRefuses", limit="rate")
            finally:
                fires.set()
        assert {201, 429} <= posts.result()
        async with connect(server.url) as client:
            publisher = client.publisher(delivery_timeout=1.0)
            await publisher.send("a/1", b"x")
            server.kill()
            over = asyncio.Event()
            publishing = asyncio.create_task(publish_on(publisher, url, over))
            try:
                await asyncio.to_thread(prometheus.until_fires, "StreamleaseGatewayFails")
                await asyncio.to_thread(prometheus.until_fires, "StreamleasePublishingFails")
            finally:
                server.start()
                over.set()
                await publishing
                with contextlib.suppress(StreamleaseError):
                    await publisher.close()


async def publish_on(publisher: Publisher, url: str, over: asyncio.Event) -> None:
    """Publish, and ask a gateway for messages, again and again; whatever becomes of it."""
    while not over.is_set():
        with contextlib.suppress(StreamleaseError):
            await publisher.send("a/1", b"x")
        await asyncio.to_thread(asked, urllib.request.Request(f"{url}/v1/messages?filter=a/%23"))
        await asyncio.sleep(0.1)
