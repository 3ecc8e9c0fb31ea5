"""What a broker refuses for good ends the bridge with one line; what it refuses for now is tried again."""

from __future__ import annotations

import pytest

from tests.admin.command import until
from tests.mqtt.bridges import Bridges
from tests.mqtt.refusing_broker import RefusingBroker
from tests.mqtt.test_refusals import last_line

FINAL = [
    ("3.1.1", 1, "does not speak MQTT 3.1.1: try --protocol 5"),
    ("3.1.1", 2, "does not accept the client id b: give another --client-id"),
    ("3.1.1", 4, "refuses user 'me' with a password (Bad user name or password): check --user"),
    ("3.1.1", 5, "refuses user 'me' with a password (Not authorized): check --user"),
    ("5", 0x84, "does not speak MQTT 5: try --protocol 3.1.1"),
    ("5", 0x85, "does not accept the client id b: give another --client-id"),
    ("5", 0x86, "refuses user 'me' with a password (Bad user name or password): check --user"),
    ("5", 0x87, "refuses user 'me' with a password (Not authorized): check --user"),
    ("5", 0x8A, "has banned client b: ask who runs the broker"),
    ("5", 0x8C, "refuses user 'me' with a password (Bad authentication method): check --user"),
]
LOGIN = {"STREAMLEASE_MQTT_USER": "me", "STREAMLEASE_MQTT_PASSWORD": "geheim"}


@pytest.fixture
def words(bridges: Bridges) -> tuple[str, ...]:
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    return ("--filter", "s/#", "--client-id", "b")


@pytest.mark.parametrize("closing", [True, False], ids=["closes", "leaves open"])
@pytest.mark.parametrize(("version", "code", "said"), FINAL)
def test_a_connection_that_is_refused_for_good(
    bridges: Bridges, words: tuple[str, ...], version: str, code: int, said: str, closing: bool
) -> None:
    with RefusingBroker(version, code, closing=closing) as broker:
        line = last_line(bridges, broker.url, *words, "--protocol", version, **LOGIN)
        assert broker.connections == 1
    assert said in line
    assert "geheim" not in line


@pytest.mark.parametrize(("version", "code"), [("3.1.1", 3), ("5", 0x88), ("5", 0x89), ("3.1.1", None)])
def test_a_connection_that_is_refused_for_now_is_tried_again(
    bridges: Bridges, words: tuple[str, ...], version: str, code: int | None
) -> None:
    with RefusingBroker(version, code) as broker:
        bridge = bridges.start(broker.url, *words, "--protocol", version, ready=False)
        until(lambda: bridge.over or broker.connections > 2)
        assert not bridge.connected()
        broker.connect = 0
        until(lambda: bridge.over or "connected to broker" in bridge.said)
        assert not bridge.over, bridge.said
        assert bridge.said.count("the bridge tries again in") >= 2
        bridge.kill()


RIGHT = "give the user of the bridge the right to read it, or leave it out"


@pytest.mark.parametrize(
    ("version", "code", "said"),
    [
        ("3.1.1", 0x80, RIGHT),
        ("5", 0x80, RIGHT),
        ("5", 0x87, RIGHT),
        ("5", 0x8F, "it does not take such filters"),
        ("5", 0x9E, "it has no shared subscriptions, so one bridge takes all"),
    ],
)
def test_a_subscription_that_is_refused(
    bridges: Bridges, words: tuple[str, ...], version: str, code: int, said: str
) -> None:
    with RefusingBroker(version, subscribe=code) as broker:
        line = last_line(bridges, broker.url, *words, "--protocol", version)
        assert broker.connections == 1
    assert "refuses --filter s/#" in line
    assert said in line


def test_a_filter_that_is_had_at_qos_0_only_is_told(bridges: Bridges, words: tuple[str, ...]) -> None:
    with RefusingBroker("5", subscribe=0) as broker:
        bridge = bridges.start(broker.url, *words)
        assert "the broker gives s/# at QoS 0 only" in bridge.said
        bridge.kill()
