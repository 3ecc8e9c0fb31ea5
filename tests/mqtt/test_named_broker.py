"""The tests of the bridge run against a broker that the environment names, and leave nothing there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mqtt.broker import password_file
from tests.mqtt.conftest import MakeBroker
from tests.mqtt.named_broker import PASSWORD, URL, USER, NamedBroker
from tests.servers import ROOT

SOME = "come_in_once or properties_are_headers or retained_message or goes_out_and_is_committed"


def test_the_bridge_is_tested_against_a_broker_with_a_login(make_broker: MakeBroker, tmp_path: Path) -> None:
    """Here another Mosquitto stands for it; the same session names and topics come again in each test."""
    passwords = password_file(tmp_path / "passwords")
    broker = make_broker("allow_anonymous false", f"password_file {passwords}")
    command = (sys.executable, "-m", "pytest", "tests/mqtt/test_bridge.py", "-q", "-p", "no:cacheprovider")
    login = {URL: broker.url, USER: "me", PASSWORD: "geheim"}
    done = subprocess.run(
        [*command, "-k", SOME],
        cwd=ROOT,
        env=os.environ | login,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "7 passed" in done.stdout, done.stdout
    with broker.client("late", user="me", password="geheim") as client:
        client.subscribe("#")
        client.publish("marker", b"last")
        assert [one.topic for one in client.take(1)] == ["marker"], "nothing was retained"
    said = (broker.directory / "broker.log").read_text()
    assert "as b (" in said, "it was this broker"
    refused = subprocess.run(
        [*command, "-k", "qos_0"], cwd=ROOT, env=os.environ | login | {PASSWORD: "wrong"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "1 failed" in refused.stdout, "the login is used"


@pytest.mark.parametrize("url", ["mosquitto", "tcp://a:1883", "mqtt://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=URL):
        NamedBroker(url, None, None)
