"""``streamlease bridge mqtt`` with a real broker and a real Redis: what comes in, and what goes out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from streamlease.agent.client import connect
from tests.admin.command import until
from tests.mqtt.bridges import Bridges, arrived, contents, in_order, twice
from tests.mqtt.broker import Broker
from tests.mqtt.conftest import MakeBroker
from tests.mqtt.named_broker import NamedBroker

AnyBroker = Broker | NamedBroker
both = pytest.mark.parametrize("version", ["5", "3.1.1"])


@pytest.fixture
def broker(make_broker: MakeBroker) -> AnyBroker:
    """The one that the environment names, see ``named_broker``; or a Mosquitto of the test's own."""
    return NamedBroker.of_environment() or make_broker()


@pytest.fixture
def bridges(tmp_path: Path, embedded_redis_url: str, broker: AnyBroker) -> Iterator[Bridges]:
    """Makes bridges on an empty Redis, and ends them, and their sessions where the broker goes on."""
    made = Bridges(tmp_path, embedded_redis_url)
    if isinstance(broker, NamedBroker):
        made.command.environment |= broker.environment
    yield made
    made.end()
    if isinstance(broker, NamedBroker):
        broker.forget(made.client_ids | {"listener"})


def space(bridges: Bridges, name: str, *words: str) -> None:
    bridges.command.ok("space", "create", name, *words)


@both
async def test_messages_come_in_once_and_in_order(broker: AnyBroker, bridges: Bridges, version: str) -> None:
    space(bridges, "sensors", "--topics", "sensors/#", "--streams", "3")
    bridge = bridges.start(broker.url, "--filter", "sensors/#", "--client-id", "b", "--protocol", version)
    with broker.client() as client:
        client.publish_all((f"sensors/{n % 5}", b"%d" % n) for n in range(500))
    found = await arrived(bridges.url, 500)
    assert twice(found) == 0
    for payloads in in_order(found).values():
        assert payloads == sorted(payloads, key=int)
    address = broker.url.removeprefix("mqtt://").encode()
    assert all(message.headers == (("mqtt-broker", address),) for message in found)
    until(lambda: bridge.count("brought_total") == 500)
    assert bridge.count("in_hand") == 0
    assert bridge.end() == 0


@both
async def test_what_comes_while_the_bridge_is_away_waits_at_the_broker(
    broker: AnyBroker, bridges: Bridges, version: str
) -> None:
    space(bridges, "s", "--topics", "s/#")
    words = (broker.url, "--filter", "s/#", "--client-id", "b", "--protocol", version)
    assert bridges.start(*words).end() == 0
    with broker.client() as client:
        client.publish_all(("s/a", b"%d" % n) for n in range(50))
    bridges.start(*words)
    found = await arrived(bridges.url, 50)
    assert [int(one.payload) for one in found] == list(range(50))


async def test_properties_are_headers(broker: AnyBroker, bridges: Bridges) -> None:
    space(bridges, "s", "--topics", "s/#")
    with broker.client() as client:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = [("unit", "°C"), ("unit", "K")]
        properties.ContentType = "text/plain"
        properties.ResponseTopic = "answers/1"
        properties.CorrelationData = b"\x00\xff"
        client.publish("s/a", "21", retain=True, properties=properties)
        client.publish("s/a", b"", retain=False)
        bridges.start(broker.url, "--filter", "s/#", "--client-id", "b")
        client.publish("s/b", b"live")
        found = await arrived(bridges.url, 2)
    kept = {one.payload: one.headers[1:] for one in found}
    assert kept == {
        b"live": (),
        b"21": (
            ("mqtt-retained", b"true"),
            ("mqtt-content-type", b"text/plain"),
            ("mqtt-response-topic", b"answers/1"),
            ("mqtt-correlation-data", b"\x00\xff"),
            ("unit", "°C".encode()),
            ("unit", b"K"),
        ),
    }


@both
async def test_a_retained_message_comes_once_whatever_is_restarted(
    broker: AnyBroker, bridges: Bridges, version: str
) -> None:
    space(bridges, "s", "--topics", "s/#")
    words = (broker.url, "--filter", "s/#", "--client-id", "b", "--protocol", version)
    with broker.client() as client:
        client.publish("s/a", b"kept", retain=True)
        bridge = bridges.start(*words)
        await arrived(bridges.url, 1)
        until(lambda: bridge.count("in_hand") == 0)
        bridge.end()
    bridges.start(*words)
    with broker.client() as client:
        client.publish("s/b", b"last")
    assert sorted(one.payload for one in await arrived(bridges.url, 2)) == [b"kept", b"last"]


async def test_filters_that_are_not_named_any_more_are_left(broker: AnyBroker, bridges: Bridges) -> None:
    space(bridges, "s", "--topics", "a/#", "b/#", "c/#")
    bridges.start(broker.url, "--filter", "a/#", "--filter", "b/#", "--client-id", "b").end()
    with broker.client() as client:
        client.publish("a/1", b"waits")
        bridges.start(broker.url, "--filter", "b/#", "--filter", "c/#", "--client-id", "b")
        for topic in ("a/1", "b/1", "c/1"):
            client.publish(topic, topic)
        found = await arrived(bridges.url, 3)
    assert sorted(one.payload for one in found) == [b"b/1", b"c/1", b"waits"]


async def test_qos_0_is_told_and_marked(broker: AnyBroker, bridges: Bridges) -> None:
    space(bridges, "s", "--topics", "s/#")
    bridge = bridges.start(broker.url, "--filter", "s/#", "--client-id", "b")
    with broker.client() as client:
        for n in range(3):
            client.publish("s/a", b"%d" % n, qos=0)
    found = await arrived(bridges.url, 3)
    assert {dict(one.headers)["mqtt-qos"] for one in found} == {b"0"}
    assert bridge.said.count("topic 's/a' comes at QoS 0") == 1
    assert bridge.count("received_total", qos="0") == 3


async def test_columns_come_from_json(
    broker: AnyBroker, bridges: Bridges, tmp_path_factory: pytest.TempPathFactory
) -> None:
    schema = tmp_path_factory.mktemp("schema") / "schema.json"
    schema.write_text(
        json.dumps({"columns": [{"name": "n", "type": "int64"}, {"name": "w", "type": "string"}]})
    )
    space(bridges, "s", "--topics", "s/#", "--schema", str(schema))
    bridge = bridges.start(broker.url, "--filter", "s/#", "--client-id", "b", "--unfit", "drop")
    with broker.client() as client:
        for payload in ('{"n": 7, "w": "x"}', "no json", "[1]", '{"n": "seven"}', '{"n": 8, "w": null}'):
            client.publish("s/a", payload)
    until(lambda: bridge.count("brought_total") == 2)
    assert [one.values for one in await contents(bridges.url)] == [{"n": 7, "w": "x"}, {"n": 8, "w": None}]
    assert bridge.count("dropped_total", error="SchemaMismatch") == 3


@both
async def test_a_group_goes_out_and_is_committed(broker: AnyBroker, bridges: Bridges, version: str) -> None:
    space(bridges, "s", "--topics", "s/#", "--streams", "3")
    with broker.client("listener") as client:
        client.subscribe("s/#")
        words = ("--out", "$shared/g/s/#", "--from", "earliest", "--client-id", "b", "--protocol", version)
        bridge = bridges.start(broker.url, *words)
        lines = "\n".join(str(n) for n in range(100))
        bridges.command.ok("publish", "s/a", text=lines)
        came = [one.payload.decode() for one in client.take(100)]
        assert came == lines.split()
        assert bridge.end() == 0
        described = bridges.command("group", "describe", "$shared/g/s/#", "--json").document
        assert sum(one["lag"] for one in described["streams"]) == 0
        bridges.start(broker.url, *words)
        bridges.command.ok("publish", "s/b", text="last")
        assert client.take(1)[0].payload == b"last"


async def test_headers_go_out_as_properties(broker: AnyBroker, bridges: Bridges) -> None:
    space(bridges, "s", "--topics", "s/#")
    with broker.client("listener") as client:
        client.subscribe("s/#")
        bridges.start(broker.url, "--out", "$shared/g/s/#", "--from", "earliest", "--client-id", "b")
        async with connect(bridges.url) as own, own.publisher() as publisher:
            headers = [("unit", "K"), ("raw", b"\xff"), ("mqtt-content-type", "text/plain")]
            await publisher.send("s/a", b"21", key="sensor-1", headers=headers)
        (message,) = client.take(1)
    assert message.properties.ContentType == "text/plain"
    pairs = dict(message.properties.UserProperty)
    assert len(pairs.pop("streamlease-from")) > 5
    assert pairs == {"streamlease-key": "sensor-1", "unit": "K"}


@both
async def test_columns_go_out_as_json_and_come_in_again(
    broker: AnyBroker, bridges: Bridges, tmp_path_factory: pytest.TempPathFactory, version: str
) -> None:
    schema = tmp_path_factory.mktemp("schema") / "schema.json"
    kinds = {"n": "int64", "x": "float64", "at": "timestamp[us, UTC]", "raw": "binary", "d": "decimal(9, 2)"}
    schema.write_text(json.dumps({"columns": [{"name": name, "type": type} for name, type in kinds.items()]}))
    for name in ("s", "t"):
        space(bridges, name, "--topics", f"{name}/#", "--schema", str(schema))
    at = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    values = {"n": 7, "x": None, "at": at, "raw": b"\x00\xff", "d": Decimal("1.10")}
    words = (broker.url, "--protocol", version)
    with broker.client("listener") as client:
        client.subscribe("s/#")
        out = bridges.start(*words, "--out", "$shared/g/s/#", "--from", "earliest", "--client-id", "out")
        bridges.start(*words, "--filter", "t/#", "--client-id", "in")
        async with connect(bridges.url) as own, own.publisher() as publisher:
            await publisher.send("s/a", values)
        (came,) = client.take(1)
        assert set(json.loads(came.payload)) == set(values)
        client.publish("t/a", came.payload)
    if version == "5":
        assert came.properties.ContentType == "application/json"
    (again,) = await arrived(bridges.url, 1, "t/#")
    assert again.values == values
    until(lambda: out.count("sent_total") == 1)
    assert out.count("refused_total") == 0


@both
async def test_two_bridges_do_not_play_ball(broker: AnyBroker, bridges: Bridges, version: str) -> None:
    """One brings in what the other sends: nothing goes round."""
    space(bridges, "s", "--topics", "s/#")
    into = bridges.start(broker.url, "--filter", "s/#", "--client-id", "in", "--protocol", version)
    out = bridges.start(broker.url, "--out", "$shared/g/s/#", "--client-id", "out", "--protocol", version)
    bridges.command.ok("publish", "s/a", text="from here")
    until(lambda: out.count("sent_total") == 1)
    with broker.client() as client:
        client.publish("s/b", b"from there")
    until(lambda: into.count("received_total", qos="1") == 2)
    echoes = 1 if version == "3.1.1" else 0  # without properties nothing can be marked: it comes back, once
    until(lambda: out.count("own_total", way="out") == 1 + echoes)
    assert into.count("own_total", way="in") == 1 - echoes
    assert into.count("received_total", qos="1") == 2
    assert out.count("sent_total") == 1
    assert len(await contents(bridges.url)) == 2 + echoes


async def test_several_bridges_share_a_filter(broker: AnyBroker, bridges: Bridges) -> None:
    space(bridges, "s", "--topics", "s/#", "--streams", "2")
    two = [bridges.start(broker.url, "--filter", "$share/g/s/#", "--client-id", f"b{n}") for n in range(2)]
    with broker.client() as client:
        client.publish_all((f"s/{n % 7}", b"%d" % n) for n in range(300))
    assert twice(await arrived(bridges.url, 300)) == 0
    assert all(bridge.count("brought_total") > 0 for bridge in two)
    two[0].kill()
    with broker.client() as client:
        client.publish_all((f"s/{n % 7}", b"%d" % n) for n in range(300, 400))
    bridges.start(broker.url, "--filter", "$share/g/s/#", "--client-id", "b0")
    await arrived(bridges.url, 400)
