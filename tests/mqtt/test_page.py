"""The commands at the top of docs/mqtt.md, as they stand there."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

from tests.admin.command import SCRIPT, until
from tests.mqtt.bridges import Bridges
from tests.mqtt.broker import Broker
from tests.servers import ROOT

PAGE = (ROOT / "docs" / "mqtt.md").read_text()
CLIENTS = """\
#!{python}
# What mosquitto_pub and mosquitto_sub do with the options of the page.
import os, sys
sys.path.insert(0, {root!r})
from tests.mqtt.broker import MqttClient
words = sys.argv[1:]
given = dict(zip(words, words[1:]))
with MqttClient({port}) as client:
    if sys.argv[0].endswith("_pub"):
        client.publish(given["-t"], given["-m"], qos=int(given["-q"]), retain="-r" in words)
    else:
        client.subscribe(given["-t"], int(given["-q"]))
        for message in client.take(int(given["-C"]), 60):
            print("came:", message.payload.decode(), flush=True)
"""


def test_the_page_can_be_typed(broker: Broker, bridges: Bridges, tmp_path: Path) -> None:
    block = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("mosquitto_pub", "mosquitto_sub"):
        program = programs / name
        program.write_text(CLIENTS.format(python=sys.executable, root=str(ROOT), port=broker.port))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    typed = block[1].replace("127.0.0.1:1883", f"127.0.0.1:{broker.port}")
    path = f"{programs}{os.pathsep}{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as output, err.open("w") as errors:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", typed],
            stdout=output,
            stderr=errors,
            env={**bridges.command.environment, "PATH": path},
            start_new_session=True,
        )
    try:
        code = shell.wait(120)
        until(lambda: code or "came:" in out.read_text())
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(20)
    assert code == 0, err.read_text()
    lines = out.read_text().splitlines()
    message = json.loads(next(line for line in lines if line.startswith("{")))
    assert (message["topic"], message["payload"]) == ("sensors/hall", "21.5")
    assert "mqtt-retained" in json.dumps(message["headers"])
    assert "came: it is warm" in lines
