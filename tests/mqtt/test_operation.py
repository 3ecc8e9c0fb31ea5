"""A bridge in operation: its probes, its state in words, and its end by SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
from urllib.parse import urlsplit

import pytest

from tests.admin.command import until
from tests.conftest import MakeServer
from tests.mqtt.bridges import Bridges, arrived, in_order, twice
from tests.mqtt.broker import Broker
from tests.mqtt.refusing_broker import RefusingBroker
from tests.mqtt.test_faults import WINDOW, enough, publishing

WORDS = ("--filter", "s/#", "--client-id", "b", "--window", str(WINDOW))


def test_it_is_ready_while_broker_and_redis_are_there(
    broker: Broker, bridges: Bridges, make_redis_server: MakeServer
) -> None:
    server = make_redis_server()
    bridges.command.environment["STREAMLEASE_REDIS_URL"] = server.url
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    bridge = bridges.start(broker.url, *WORDS)
    until(bridge.ready)
    assert bridge.state() == "bridging"
    broker.kill()
    until(lambda: not bridge.ready())
    until(lambda: "cannot be reached (Connection refused)" in bridge.state())
    assert bridge.probe("/healthz") == (200, {"live": True})
    broker.start()
    until(bridge.ready)
    server.pause()
    until(lambda: not bridge.ready())
    assert "Redis" in bridge.state() or "redis" in bridge.state()
    assert bridge.probe("/healthz")[0] == 200
    server.resume()
    until(bridge.ready)


def test_before_the_broker_takes_it_it_is_alive_and_not_ready(bridges: Bridges) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    with RefusingBroker("5", 0x88) as broker:
        bridge = bridges.start(broker.url, *WORDS, ready=False)
        until(lambda: "refuses the connection now (Server unavailable)" in bridge.state())
        assert not bridge.ready()
        assert bridge.probe("/healthz")[0] == 200
        broker.connect = 0
        until(bridge.ready)
        bridge.kill()


def test_probes_answer_what_is_asked_and_nothing_else(broker: Broker, bridges: Bridges) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    bridge = bridges.start(broker.url, *WORDS)
    assert bridge.probe("/else") == (404, {"error": "use /healthz, /readyz or /metrics"})
    port = urlsplit(bridge.metrics_url).port or 0
    for request, begin in (
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 "),
        (b"nonsense\r\n\r\n", b""),
        (b"GET /" + b"x" * 100_000, b""),
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
            one.sendall(request)
            answer = b""
            try:
                while part := one.recv(65_536):
                    answer += part
            except ConnectionResetError:
                pass
        assert answer[:13] == begin
    assert bridge.probe("/healthz")[0] == 200


@pytest.mark.chaos
async def test_sigterm_under_load_loses_nothing_and_repeats_nothing(broker: Broker, bridges: Bridges) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "3")
    bridge = bridges.start(broker.url, *WORDS)
    with publishing(broker, 2000):
        for _ in range(3):
            until(lambda bridge=bridge: enough(bridge))
            assert bridge.end() == 0, bridge.said
            assert "the bridge ends, with " in bridge.said
            bridge = bridges.start(broker.url, *WORDS)
    found = await arrived(bridges.url, 2000)
    assert twice(found) == 0
    for payloads in in_order(found).values():
        assert payloads == sorted(payloads, key=int)


async def test_a_bridge_that_ends_says_so_and_waits_for_redis_for_a_while(
    broker: Broker, bridges: Bridges, make_redis_server: MakeServer
) -> None:
    server = make_redis_server()
    bridges.command.environment["STREAMLEASE_REDIS_URL"] = server.url
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    bridge = bridges.start(broker.url, *WORDS)
    until(bridge.ready)
    server.pause()
    with broker.client() as client:
        client.publish_all(("s/a", b"%d" % n) for n in range(10))
    until(lambda: bridge.count("in_hand") == 10)
    os.kill(bridge.pid, signal.SIGTERM)
    until(lambda: bridge.state().startswith("ending: what was taken is written"))
    assert not bridge.ready()
    server.resume()
    until(lambda: bridge.over)
    assert bridge.end() == 0
    assert twice(await arrived(server.url, 10)) == 0
