"""More is killed under load: members of a shared filter, brokers while they take messages, Redis while groups
go out. Nothing is lost; what comes twice is counted.

A Mosquitto acknowledges a message before it has saved it, so one that is killed forgets some that it took.
The publisher here is one that knows: it sends a batch again unless the broker has saved since.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
from contextlib import suppress
from functools import partial

import pytest

from streamlease.agent.client import connect
from tests.admin.command import until
from tests.conftest import MakeServer
from tests.mqtt.bridges import Bridges, arrived, in_order, twice
from tests.mqtt.broker import Broker
from tests.mqtt.conftest import MakeBroker
from tests.mqtt.test_faults import TOPICS, WINDOW, both, enough, publishing

pytestmark = pytest.mark.chaos


@both
async def test_killed_members_of_a_shared_filter_lose_nothing(
    broker: Broker, bridges: Bridges, version: str
) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "3")
    words = (broker.url, "--filter", "$share/g/s/#", "--window", str(WINDOW), "--protocol", version)
    names = ("b0", "b1", "b2")
    members = {name: bridges.start(*words, "--client-id", name) for name in names}
    kills = 0
    with publishing(broker, 3000):
        for name in names:
            until(lambda name=name: members[name].count("brought_total") > 100)
            members[name].kill()
            kills += 1
            members[name] = bridges.start(*words, "--client-id", name)
    found = await arrived(bridges.url, 3000)
    assert twice(found) <= kills * WINDOW
    until(lambda: all(one.count("in_hand") == 0 for one in members.values()))


@both
async def test_a_broker_that_is_killed_again_and_again_under_load(
    make_broker: MakeBroker, bridges: Bridges, version: str
) -> None:
    broker = make_broker(careful=True)
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "3")
    words = (broker.url, "--filter", "s/#", "--client-id", "b", "--window", str(WINDOW))
    bridge = bridges.start(*words, "--protocol", version)
    batches, sent_again, at_work = 16, 0, threading.Event()

    def publish(first: int) -> None:
        """One batch, until the broker has saved what it took."""
        nonlocal sent_again
        for attempt in itertools.count():
            sent_again += 50 if attempt else 0
            with (
                suppress(OSError, AssertionError, RuntimeError, ValueError),
                broker.client(prepare=lambda one: one.max_inflight_messages_set(50)) as client,
            ):
                process, saved = broker.pid, broker.saved()
                at_work.set()
                client.publish_all((f"s/{n % TOPICS}", b"%d" % n) for n in range(first, first + 50))
                until(partial(has_saved_or_gone, saved, process), 20)
                if broker.pid == process:
                    return

    def has_saved_or_gone(saved: int, process: int) -> bool:
        return broker.saved() > saved or broker.pid != process

    def work() -> None:
        for batch in range(batches):
            publish(50 * batch)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(3):
        before = bridge.count("brought_total")
        at_work.clear()
        until(lambda before=before: bridge.count("brought_total") > before + 60)
        until(at_work.is_set)
        broker.restart()
        until(bridge.ready)
    thread.join(120)
    assert not thread.is_alive()
    found = await arrived(bridges.url, 50 * batches)
    assert twice(found) <= sent_again + 3 * WINDOW
    assert not bridge.over


@both
async def test_a_group_goes_out_while_redis_is_killed(
    broker: Broker, bridges: Bridges, make_redis_server: MakeServer, version: str
) -> None:
    server = make_redis_server(persistent=True)
    bridges.command.environment["STREAMLEASE_REDIS_URL"] = server.url
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "2", "--durability", "fsync")
    words = ("--out", "$shared/g/s/#", "--from", "earliest", "--client-id", "b", "--protocol", version)
    bridge = bridges.start(broker.url, *words, "--window", str(WINDOW))
    with broker.client("listener") as client:
        client.subscribe("s/#")
        seen: list[int] = []
        for part in range(3):
            numbers = range(500 * part, 500 * part + 500)
            bridges.command.ok("publish", "s/a", text="\n".join(map(str, numbers)))
            seen += [int(one.payload) for one in client.take(100, 60)]
            server.restart()
        while len(set(seen)) < 1500:
            seen.append(int(client.take(1, 60)[0].payload))
    assert list(dict.fromkeys(seen)) == list(range(1500))
    assert not bridge.over


@both
async def test_a_group_goes_out_while_the_broker_is_restarted(
    make_broker: MakeBroker, bridges: Bridges, version: str
) -> None:
    broker = make_broker()
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "2")
    words = ("--out", "$shared/g/s/#", "--from", "earliest", "--client-id", "b", "--protocol", version)
    bridge = bridges.start(broker.url, *words, "--window", str(WINDOW))
    with broker.client("listener", "3.1.1", clean_session=False) as client:
        client.subscribe("s/#")
        seen: list[int] = []
        for part in range(3):
            numbers = range(500 * part, 500 * part + 500)
            bridges.command.ok("publish", "s/a", text="\n".join(map(str, numbers)))
            seen += [int(one.payload) for one in client.take(100)]
            broker.stop()
            broker.start()
            until(bridge.ready)
        while len(set(seen)) < 1500:
            seen.append(int(client.take(1, 60)[0].payload))
    assert set(seen) == set(range(1500))
    assert bridge.count("sent_total") <= 1500 + 3 * WINDOW  # the broker sends its listeners more again
    assert not bridge.over


TOOK = re.compile(r"Received PUBLISH from b \(d\d, q1, r\d, m(\d+), '([^']+)'")
ACKNOWLEDGED = re.compile(r"Sending PUBACK to b \(m(\d+),")


def acknowledged(broker: Broker) -> set[str]:
    """The topics of the messages that the broker has acknowledged to the bridge, in any of its lives."""
    found: set[str] = set()
    taken: dict[str, str] = {}
    for line in (broker.directory / "broker.log").read_text(errors="replace").splitlines():
        if took := TOOK.search(line):
            taken[took[1]] = took[2]
        elif (done := ACKNOWLEDGED.search(line)) and done[1] in taken:
            found.add(taken[done[1]])
    return found


@both
async def test_a_group_goes_out_while_the_broker_is_killed(
    make_broker: MakeBroker, bridges: Bridges, version: str
) -> None:
    """What a killed broker forgets is lost there. So its log is asked: it had acknowledged every message."""
    broker = make_broker("allow_anonymous true", "log_type all", "log_dest stderr", "log_timestamp false")
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "2")
    async with connect(bridges.url) as client, client.publisher() as publisher:
        for number in range(3000):
            await publisher.submit(f"s/{number}", b"%d" % number)
    words = ("--out", "$shared/g/s/#", "--from", "earliest", "--client-id", "b", "--protocol", version)
    bridge = bridges.start(broker.url, *words, "--window", str(WINDOW))
    for part in range(1, 4):
        until(lambda wanted=400 * part: len(acknowledged(broker)) > wanted)
        assert len(acknowledged(broker)) < 3000, "it is killed while there is work"
        broker.restart()
    wanted = {f"s/{number}" for number in range(3000)}
    until(lambda: acknowledged(broker) == wanted)
    assert bridge.count("sent_total") <= 3000 + 3 * WINDOW
    assert not bridge.over


async def test_a_bridge_that_stands_still_is_replaced_and_writes_nothing_more(
    broker: Broker, bridges: Bridges
) -> None:
    """As where Kubernetes takes a node for dead whose pods still run."""
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--streams", "3")
    words = (broker.url, "--filter", "s/#", "--client-id", "b", "--window", str(WINDOW))
    first = bridges.start(*words)
    with publishing(broker, 2000):
        until(lambda: enough(first))
        os.kill(first.pid, signal.SIGSTOP)
        second = bridges.start(*words)
        until(lambda: enough(second))
        os.kill(first.pid, signal.SIGCONT)
        until(lambda: first.over)
    found = await arrived(bridges.url, 2000)
    assert twice(found) <= WINDOW
    for payloads in in_order(found).values():
        assert payloads == sorted(payloads, key=int)
    assert first.end() == 1
    assert not second.over
