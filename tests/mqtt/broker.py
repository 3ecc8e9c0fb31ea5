"""Real MQTT brokers for the tests: Mosquitto processes on free ports of 127.0.0.1, and clients of them.

``$STREAMLEASE_TEST_MOSQUITTO``, ``mosquitto`` of this machine, or the one that ``run.py`` unpacked below
``.cache/mosquitto``. Every broker dies with the test process.
"""

from __future__ import annotations

import base64
import hashlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties

from streamlease.admin.redis import server_process
from tests.servers import ROOT, ServerMissing

VARIABLE = "STREAMLEASE_TEST_MOSQUITTO"
UNPACKED = ROOT / ".cache" / "mosquitto" / "mosquitto"
HOST = server_process.HOST
START_SECONDS = 20.0
STOP_SECONDS = 20.0
VERSIONS = {"5": MQTTProtocolVersion.MQTTv5, "3.1.1": MQTTProtocolVersion.MQTTv311}


def find_mosquitto() -> Path:
    """The broker's program. Raises ``ServerMissing``."""
    for found in (os.environ.get(VARIABLE), shutil.which("mosquitto"), "/usr/sbin/mosquitto", str(UNPACKED)):
        if found is not None and os.access(found, os.X_OK):
            return Path(found)
    raise ServerMissing(
        "these tests need an MQTT broker: run them with 'python3 run.py test', which gets one, or install "
        f"mosquitto, or set {VARIABLE} to its path"
    )


def password_file(path: Path) -> Path:
    """With the user ``me`` and the password ``geheim``: PBKDF2 with SHA512, as mosquitto_passwd writes it."""
    salt = b"0123456789ab"
    hashed = hashlib.pbkdf2_hmac("sha512", b"geheim", salt, 101)
    path.write_text(f"me:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(hashed).decode()}\n")
    return path


class Broker:
    """One Mosquitto. `url` stays the same over ``restart``, which keeps what was saved.

    Args:
        settings: further lines of its configuration, behind that of its listener.
        careful: it saves after every change, and not only when it ends in good order.
    """

    def __init__(self, directory: Path, *settings: str, scheme: str = "mqtt", careful: bool = False) -> None:
        self.directory = directory
        self.port = server_process.free_port()
        self.scheme = scheme
        self._settings = settings
        self._careful = careful
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start, and return when it takes connections."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = self.directory / "mosquitto.conf"
        own = self._settings or ("allow_anonymous true",)
        if self._careful:
            own = ("autosave_interval 1", "autosave_on_changes true", *own)
        settings.write_text(
            "\n".join(
                [
                    "user root",
                    f"listener {self.port} {HOST}",
                    "persistence true",
                    f"persistence_location {self.directory}/",
                    "max_queued_messages 0",
                    *own,
                    "",
                ]
            )
        )
        log = self.directory / "broker.log"
        self._process = server_process.spawn(
            [str(find_mosquitto()), "-c", str(settings)], log=log, bound=True
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection((HOST, self.port), timeout=1.0).close()
                return self
            except OSError:
                assert self._process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)

    def stop(self) -> None:
        """End it in good order: it saves everything."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Kill it, and start it with what it had saved."""
        self.kill()
        return self.start()

    def saved(self) -> int:
        """When it last saved, in ns."""
        file = self.directory / "mosquitto.db"
        return file.stat().st_mtime_ns if file.exists() else 0

    def has_saved(self, payload: bytes) -> bool:
        """Whether a message stands in what it saved; the payload is one that is found in no other bytes."""
        file = self.directory / "mosquitto.db"
        return file.exists() and payload in file.read_bytes()

    def client(self, client_id: str = "", version: str = "5", **options: Any) -> MqttClient:
        """A connected client of this broker."""
        return MqttClient(self.port, client_id, version, **options)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class MqttClient:
    """A client that publishes, and keeps what comes."""

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: str = "5",
        *,
        user: str | None = None,
        password: str | None = None,
        clean_session: bool | None = None,
        prepare: Callable[[paho.Client], object] | None = None,
        host: str = HOST,
    ) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.kept: set[str] = set()
        """Topics under which the broker keeps a message."""
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=clean_session,
            protocol=VERSIONS[version],
        )
        if user is not None:
            self._client.username_pw_set(user, password)
        if prepare is not None:
            prepare(self._client)
        self._client.on_message = lambda _client, _data, message: self.messages.put(message)
        self._client.max_queued_messages_set(0)
        self._client.connect(host, port)
        self._client.loop_start()

    def subscribe(self, filter: str, qos: int = 1) -> None:
        """Subscribe, and wait until that stands."""
        answered: queue.Queue[int] = queue.Queue()
        self._client.on_subscribe = lambda *said: answered.put(said[2])
        self._client.subscribe(filter, qos)
        answered.get(timeout=10)

    def publish(
        self,
        topic: str,
        payload: bytes | str,
        *,
        qos: int = 1,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish, and wait until the broker has it."""
        if retain:
            self.kept.add(topic)
        sent = self._client.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        sent.wait_for_publish(20)
        assert sent.is_published()

    def publish_all(self, messages: Iterable[tuple[str, bytes]]) -> int:
        """Publish all, and wait until the broker has them; how many."""
        sent = [self._client.publish(topic, payload, qos=1) for topic, payload in messages]
        for one in sent:
            one.wait_for_publish(60)
            assert one.is_published()
        return len(sent)

    def take(self, count: int, seconds: float = 20.0) -> list[paho.MQTTMessage]:
        """The next messages."""
        return [self.messages.get(timeout=seconds) for _ in range(count)]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
