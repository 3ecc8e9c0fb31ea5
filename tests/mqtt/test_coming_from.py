"""The commands for those who come from MQTT, as they stand in docs/coming-from.md."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

from tests.admin.command import SCRIPT, finish, lines_of
from tests.http_client.other_programs import path_with_curl
from tests.mqtt.bridges import Bridges
from tests.mqtt.broker import Broker
from tests.mqtt.test_page import CLIENTS
from tests.servers import ROOT


def test_what_a_device_publishes_is_read_over_http(broker: Broker, bridges: Bridges, tmp_path: Path) -> None:
    (typed,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "coming-from.md").read_text(), re.DOTALL)
    publisher = tmp_path / "mosquitto_pub"
    publisher.write_text(CLIENTS.format(python=sys.executable, root=str(ROOT), port=broker.port))
    publisher.chmod(publisher.stat().st_mode | stat.S_IXUSR)
    bridges.command.log = tmp_path / "gateway"
    gateway = bridges.command.start("gateway", "--port", "0")
    try:
        (line,) = lines_of(gateway, 1)
        url = line.removeprefix("the gateway is at ").rstrip("/")
        typed = typed.replace("127.0.0.1:1883", f"127.0.0.1:{broker.port}").replace(
            "http://127.0.0.1:8640", url
        )
        path = os.pathsep.join([str(tmp_path), str(SCRIPT.parent), path_with_curl(tmp_path)])
        shell = subprocess.Popen(
            ["bash", "-euc", typed],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**bridges.command.environment, "PATH": path, "NO_PROXY": "*"},
        )  # fmt: skip
        try:
            assert shell.stdout is not None
            told = b""
            while b'"next":' not in told and b'"detail":' not in told:
                told += os.read(shell.stdout.fileno(), 1 << 16)
        finally:
            os.killpg(shell.pid, signal.SIGTERM)  # the shell, and the bridge behind it
            shell.communicate(timeout=60)
    finally:
        finish(gateway)
    (message,) = json.loads(told[told.index(b"{") :])["messages"]
    assert (message["topic"], message["payload"]) == ("sensors/hall", "21.5")
