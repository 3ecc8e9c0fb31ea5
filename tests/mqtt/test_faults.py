"""Bridges, brokers and Redis killed under load: nothing is lost, and what comes twice is counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.admin.command import until
from tests.conftest import MakeServer
from tests.mqtt.bridges import BridgeProcess, Bridges, arrived, in_order, twice
from tests.mqtt.broker import Broker
from tests.mqtt.conftest import MakeBroker

pytestmark = pytest.mark.chaos
WINDOW = 20
TOPICS = 5
LAST = b"%0100d" % 100
"""Comes after all others, and is easy to tell from what else the broker saves."""
both = pytest.mark.parametrize("version", ["5", "3.1.1"])


@contextmanager
def publishing(broker: Broker, count: int) -> Iterator[None]:
    """Messages 0, 1, 2, ... to some topics; at the end the broker has all of them."""

    def work() -> None:
        with broker.client() as client:
            for first in range(0, count, 50):
                client.publish_all((f"s/{n % TOPICS}", b"%d" % n) for n in range(first, first + 50))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def enough(bridge: BridgeProcess) -> bool:
    """Whether it has done so much that it can be killed."""
    return bridge.count("brought_total") > 200


@both
async def test_a_killed_bridge_loses_nothing(broker: Broker, bridges: Bridges, version: str) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "3")
    words = (
        broker.url,
        "--filter",
        "s/#",
        "--client-id",
        "b",
        "--window",
        str(WINDOW),
        "--protocol",
        version,
    )
    bridge = bridges.start(*words)
    kills = 3
    with publishing(broker, 3000):
        for _ in range(kills):
            until(partial(enough, bridge))
            bridge.kill()
            bridge = bridges.start(*words)
    found = await arrived(bridges.url, 3000)
    assert twice(found) <= kills * WINDOW
    for payloads in in_order(found).values():
        assert payloads == sorted(payloads, key=int)
    until(lambda: bridge.count("in_hand") == 0)


@both
async def test_a_killed_redis_loses_nothing(
    broker: Broker, bridges: Bridges, make_redis_server: MakeServer, version: str
) -> None:
    server = make_redis_server(persistent=True)
    bridges.command.environment["STREAMLEASE_REDIS_URL"] = server.url
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "3", "--durability", "fsync")
    words = (
        broker.url,
        "--filter",
        "s/#",
        "--client-id",
        "b",
        "--window",
        str(WINDOW),
        "--protocol",
        version,
    )
    bridge = bridges.start(*words)
    with publishing(broker, 2000):
        for more in (1, 2):
            until(lambda more=more: bridge.count("brought_total") > more * 300)
            server.restart()
    found = await arrived(server.url, 2000)
    assert twice(found) == 0
    for payloads in in_order(found).values():
        assert payloads == sorted(payloads, key=int)
    assert not bridge.over


@both
async def test_a_killed_broker_sends_again_and_is_recognised(
    make_broker: MakeBroker, bridges: Bridges, make_redis_server: MakeServer, version: str
) -> None:
    broker, server = make_broker(careful=True), make_redis_server()
    bridges.command.environment["STREAMLEASE_REDIS_URL"] = server.url
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "3")
    bridge = bridges.start(
        broker.url, "--filter", "s/#", "--client-id", "b", "--window", str(WINDOW), "--protocol", version
    )
    server.pause()
    with broker.client() as client:
        client.publish_all((f"s/{n % TOPICS}", b"%d" % n) for n in range(100))
    until(lambda: bridge.count("in_hand") >= WINDOW)
    with broker.client() as client:
        client.publish("s/0", LAST)
    until(lambda: broker.has_saved(LAST))  # the broker writes down what it has said yes to a moment later
    broker.restart()
    until(lambda: bridge.count("connections_total") == 2)
    server.resume()
    found = await arrived(server.url, 101)
    assert twice(found) == 0
    assert bridge.count("again_total", known="yes") >= WINDOW
    for payloads in in_order(found).values():
        assert payloads == sorted(payloads, key=int)


@pytest.mark.parametrize(("version", "most"), [("5", 2 * WINDOW), ("3.1.1", 2 * WINDOW + 1)])
async def test_memory_is_bounded_while_redis_is_away(
    make_broker: MakeBroker, bridges: Bridges, make_redis_server: MakeServer, version: str, most: int
) -> None:
    """This broker has no limit of its own in MQTT 3.1.1: what is not read waits there."""
    broker = make_broker("allow_anonymous true", "max_inflight_messages 0")
    server = make_redis_server()
    bridges.command.environment["STREAMLEASE_REDIS_URL"] = server.url
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    bridge = bridges.start(
        broker.url, "--filter", "s/#", "--client-id", "b", "--window", str(WINDOW), "--protocol", version
    )
    server.pause()
    body = b"x" * 10_000
    with broker.client() as client:
        client.publish_all(("s/a", b"%d " % n + body) for n in range(1000))
        held = until(lambda: count if (count := bridge.count("in_hand")) >= WINDOW else 0)
    assert held <= most
    assert bridge.count("in_hand_bytes") <= most * (len(body) + 300)
    server.resume()
    found = await arrived(server.url, 1000)
    assert twice(found) == 0


async def test_a_killed_bridge_sends_again_what_was_not_committed(broker: Broker, bridges: Bridges) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "2")
    words = (broker.url, "--out", "$shared/g/s/#", "--from", "earliest", "--client-id", "b")
    bridge = bridges.start(*words)
    with broker.client("listener") as client:
        client.subscribe("s/#")
        bridges.command.ok("publish", "s/a", text="\n".join(str(n) for n in range(500)))
        seen = [int(client.take(1)[0].payload)]
        bridge.kill()
        bridge = bridges.start(*words)
        bridges.command.ok("publish", "s/a", text="\n".join(str(n) for n in range(500, 600)))
        while len(set(seen)) < 600:
            number = int(client.take(1)[0].payload)
            if number not in seen:
                seen.append(number)
    assert seen == list(range(600))


async def test_a_broker_that_was_away_gets_what_it_missed(make_broker: MakeBroker, bridges: Bridges) -> None:
    broker = make_broker()
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    bridge = bridges.start(broker.url, "--out", "$shared/g/s/#", "--from", "earliest", "--client-id", "b")
    broker.kill()
    until(lambda: not bridge.connected())
    bridges.command.ok("publish", "s/a", text="\n".join(str(n) for n in range(50)))
    broker.start()
    with broker.client("listener") as client:
        client.subscribe("s/#")
        until(lambda: bridge.count("sent_total") == 50)
    assert "the bridge tries again" in bridge.said


async def test_the_second_of_one_name_ends_the_first(broker: Broker, bridges: Bridges) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    words = (broker.url, "--filter", "s/#", "--client-id", "b")
    first = bridges.start(*words)
    second = bridges.start(*words)
    until(lambda: first.over)
    assert first.end() == 1
    assert first.said.splitlines()[-1].startswith("error: another ")
    with broker.client() as client:
        client.publish("s/a", b"1")
    await arrived(bridges.url, 1)
    assert not second.over
