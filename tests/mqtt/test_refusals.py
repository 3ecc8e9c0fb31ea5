"""What the bridge refuses, and what brokers refuse it: one line each, with the value and what to do."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from streamlease.gateway.mqtt.bridge_settings import BridgeSettings, BrokerAddress, parse_address
from streamlease.protocol.errors import InvalidInput
from streamlease.protocol.topics import SharedSubscription
from tests.admin.command import InProcess, until
from tests.mqtt.bridges import Bridges, arrived
from tests.mqtt.broker import Broker, password_file
from tests.mqtt.conftest import MakeBroker

HERE = BrokerAddress("127.0.0.1", 1883, False)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://broker", BrokerAddress("broker", 1883, False)),
        ("mqtts://broker.example:18883/", BrokerAddress("broker.example", 18883, True)),
        ("mqtts://me@broker", BrokerAddress("broker", 8883, True, "me")),
        ("mqtt://[::1]:1884", BrokerAddress("::1", 1884, False)),
    ],
)
def test_urls(url: str, address: BrokerAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["localhost:1883", "--filter", "a"], "no scheme: use mqtt://HOST:1883"),
        (["http://localhost", "--filter", "a"], "begins with 'http': use mqtt://HOST:1883"),
        (["mqtt://", "--filter", "a"], "names no host"),
        (["mqtt://h:99999", "--filter", "a"], "the port of the broker is 99999"),
        (["mqtt://me:geheim@h", "--filter", "a"], "give it with --password-file"),
        (["mqtt://h"], "give --filter, --out, or both"),
        (["mqtt://h", "--filter", "a/#/b"], "'#' where it may not stand"),
        (["mqtt://h", "--filter", "$share/g"], "write $share/GROUP/FILTER"),
        (["mqtt://h", "--filter", "$shared/g/a"], "groups go out with --out"),
        (["mqtt://h", "--filter", "a/+", "--filter", "+/b"], "select the same topics"),
        (["mqtt://h", "--filter", "$share/g/a/#", "--filter", "a/b"], "select the same topics"),
        (["mqtt://h", "--out", "a/#"], "is not a shared subscription"),
        (["mqtt://h", "--filter", "a/#", "--out", "$shared/g/a/+"], "messages would go round"),
        (["mqtt://h", "--filter", "a", "--from", "earliest"], "give --out, or leave it out"),
        (["mqtt://h", "--filter", "a", "--client-id", "a/b"], "--client-id 'a/b' is not a name"),
        (["mqtt://h", "--filter", "a", "--window", "0"], "--window is 0"),
        (["mqtt://h", "--filter", "a", "--ca", "x"], "use mqtts://h"),
        (["mqtts://h", "--filter", "a", "--cert", "x"], "--cert and --key belong together"),
        (["mqtt://h", "--filter", "a", "--password-file", "/nowhere"], "which cannot be read"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    outcome = InProcess(tmp_path)("bridge", "mqtt", *words)
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    assert said in line
    assert "geheim" not in line


def test_a_password_belongs_to_a_user() -> None:
    with pytest.raises(InvalidInput, match="add --user NAME"):
        BridgeSettings(HERE, ("a",), None, "b", password="x")


def test_the_ways_may_touch_without_overlapping() -> None:
    BridgeSettings(HERE, ("a/#", "$share/g/b/#"), SharedSubscription.parse("$shared/g/c/#"), "b")


def last_line(bridges: Bridges, *words: str, **environment: str) -> str:
    """What a bridge says that ends by an error."""
    bridge = bridges.start(*words, ready=False, **environment)
    until(lambda: bridge.over)
    assert bridge.end() == 1
    line = bridge.said.splitlines()[-1]
    assert line.startswith("error: ")
    return line


async def test_a_filter_that_no_space_has(broker: Broker, bridges: Bridges) -> None:
    line = last_line(bridges, broker.url, "--filter", "s/#", "--client-id", "b")
    assert "no space has topics that match the filter 's/#'; create one: streamlease space create" in line


async def test_a_space_with_epochs(broker: Broker, bridges: Bridges) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#", "--epochs", "1")
    bridge = bridges.start(broker.url, "--filter", "s/#", "--client-id", "b", ready=False)
    until(lambda: bridge.over)
    assert "space s has epochs" in bridge.said


async def test_a_topic_that_no_space_has_stops_the_bridge_and_stays_at_the_broker(
    broker: Broker, bridges: Bridges
) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/a/#")
    words = (broker.url, "--filter", "s/#", "--client-id", "b")
    bridge = bridges.start(*words)
    with broker.client() as client:
        client.publish_all([("s/a/1", b"1"), ("s/b/1", b"2"), ("s/a/1", b"3")])
    until(lambda: bridge.over)
    last = bridge.said.splitlines()[-1]
    assert last.startswith("error: a message with topic 's/b/1' cannot be brought in: no space has topics")
    assert "--unfit drop" in last
    bridges.command.ok("space", "create", "t", "--topics", "s/b/#")
    bridges.start(*words)
    assert sorted(one.payload for one in await arrived(bridges.url, 3)) == [b"1", b"2", b"3"]


async def test_or_is_dropped_and_counted(broker: Broker, bridges: Bridges) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/a/#")
    bridge = bridges.start(broker.url, "--filter", "s/#", "--client-id", "b", "--unfit", "drop")
    with broker.client() as client:
        client.publish_all([("s/b/1", b"2"), ("s/b/2", b"2"), ("s/a/1", b"3")])
    assert [one.payload for one in await arrived(bridges.url, 1)] == [b"3"]
    assert bridge.count("dropped_total", error="UnknownSpace") == 2
    assert bridge.said.count("is dropped, and so are all like it") == 1


async def test_a_broker_that_is_not_there(bridges: Bridges, make_broker: MakeBroker) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    broker = make_broker()
    broker.stop()
    line = last_line(bridges, broker.url, "--filter", "s/#", "--client-id", "b")
    assert "cannot be reached (Connection refused)" in line


@pytest.fixture
def guarded(make_broker: MakeBroker, tmp_path: Path) -> Broker:
    """A broker with a user ``me``, who may read and write ``s/#``, but not ``s/secret``."""
    passwords, rights = password_file(tmp_path / "passwords"), tmp_path / "rights"
    rights.write_text("user me\ntopic readwrite s/a\ntopic readwrite s/b\n")
    return make_broker("allow_anonymous false", f"password_file {passwords}", f"acl_file {rights}")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_a_refused_password(guarded: Broker, bridges: Bridges, tmp_path: Path, version: str) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    words = (guarded.url, "--filter", "s/#", "--client-id", "b", "--protocol", version)
    wrong = tmp_path / "wrong"
    wrong.write_text("falsch\n")
    line = last_line(bridges, *words, "--user", "me", "--password-file", str(wrong))
    assert "refuses user 'me' with a password" in line
    assert "check --user, and --password-file or STREAMLEASE_MQTT_PASSWORD" in line
    assert "falsch" not in line
    assert "refuses nobody's login without a password" in last_line(bridges, *words)


async def test_a_password_is_in_no_list_of_processes(guarded: Broker, bridges: Bridges) -> None:
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    words = (guarded.url, "--filter", "s/a", "--client-id", "b", "--user", "me")
    bridge = bridges.start(*words, STREAMLEASE_MQTT_PASSWORD="geheim")
    with guarded.client(user="me", password="geheim") as client:
        client.publish("s/a", b"1")
    await arrived(bridges.url, 1)
    assert "geheim" not in bridge.words
    assert "geheim" not in bridge.said


async def test_what_the_broker_does_not_take_is_a_dead_letter(guarded: Broker, bridges: Bridges) -> None:
    """Without a limit on attempts it would come again for ever."""
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    group = "$shared/g/s/#"
    bridges.command.ok("group", "declare", group, "--max-failures", "1", "--from", "earliest")
    words = (guarded.url, "--out", group, "--client-id", "b", "--user", "me")
    bridge = bridges.start(*words, STREAMLEASE_MQTT_PASSWORD="geheim")
    bridges.command.ok("publish", "s/secret", text="no")
    bridges.command.ok("publish", "s/a", text="yes")
    until(lambda: bridge.count("sent_total") >= 1)
    until(lambda: bridge.count("refused_total") == 1)
    assert "the broker refused it (Not authorized)" in bridge.said


async def test_tls(make_broker: MakeBroker, bridges: Bridges, tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    ca, cert, key, wrong = (tmp_path / name for name in ("ca", "cert", "key", "wrong"))
    authority.cert_pem.write_to_path(ca)
    other.cert_pem.write_to_path(wrong)
    own.cert_chain_pems[0].write_to_path(cert)
    own.private_key_pem.write_to_path(key)
    broker = make_broker("allow_anonymous true", f"certfile {cert}", f"keyfile {key}", scheme="mqtts")
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    words = (broker.url, "--filter", "s/#", "--client-id", "b")
    assert "is not accepted" in last_line(bridges, *words, "--ca", str(wrong))
    plain = (broker.url.replace("mqtts", "mqtt"), *words[1:])
    assert "if its port is for TLS, use mqtts://" in last_line(bridges, *plain)
    bridges.start(*words, "--ca", str(ca))
    context = ssl.create_default_context(cafile=str(ca))
    with broker.client(prepare=lambda client: client.tls_set_context(context)) as client:
        client.publish_all(("s/a", b"%d" % n + b"x" * 20_000) for n in range(200))
    await arrived(bridges.url, 200)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_tls_with_a_certificate_of_the_bridge_and_a_user(
    make_broker: MakeBroker, bridges: Bridges, tmp_path: Path, version: str
) -> None:
    authority = trustme.CA()
    ca = tmp_path / "ca"
    authority.cert_pem.write_to_path(ca)
    for name in ("127.0.0.1", "bridge"):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.crt")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    broker = make_broker(
        "allow_anonymous false", f"password_file {password_file(tmp_path / 'passwords')}", f"cafile {ca}",
        f"certfile {tmp_path / '127.0.0.1.crt'}", f"keyfile {tmp_path / '127.0.0.1.key'}",
        "require_certificate true", scheme="mqtts",
    )  # fmt: skip
    bridges.command.ok("space", "create", "s", "--topics", "s/#")
    words = (
        broker.url.replace("//", "//me@"),
        "--filter",
        "s/#",
        "--out",
        "$shared/g/t/#",
        "--client-id",
        "b",
    )
    trusted = (*words, "--protocol", version, "--ca", str(ca))
    own = ("--cert", str(tmp_path / "bridge.crt"), "--key", str(tmp_path / "bridge.key"))
    bridges.command.ok("space", "create", "t", "--topics", "t/#")
    without = last_line(bridges, *trusted, STREAMLEASE_MQTT_PASSWORD="geheim")
    assert "without an answer: see its log; if it asks for a certificate of its clients, give" in without
    assert "refuses user 'me' with a password" in (
        last_line(bridges, *trusted, *own, STREAMLEASE_MQTT_PASSWORD="falsch")
    )
    bridge = bridges.start(*trusted, *own, STREAMLEASE_MQTT_PASSWORD="geheim")
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(tmp_path / "bridge.crt", tmp_path / "bridge.key")
    with broker.client(
        user="me", password="geheim", prepare=lambda one: one.tls_set_context(context)
    ) as client:
        client.subscribe("t/#")
        client.publish_all(("s/a", b"%d" % n) for n in range(50))
        await arrived(bridges.url, 50)
        bridges.command.ok("publish", "t/a", text="out")
        assert client.take(1)[0].payload == b"out"
    assert bridge.end() == 0
