"""A broker that is there already, and is named by the environment: the tests of the bridge run against it.

::

    STREAMLEASE_TEST_MQTT_URL=mqtt://broker.example:1883
    STREAMLEASE_TEST_MQTT_USER=me STREAMLEASE_TEST_MQTT_PASSWORD=secret
    python -m pytest tests/mqtt/test_bridge.py

It must be there for the tests alone: they use topics below ``sensors``, ``s``, ``t``, ``a``, ``b`` and ``c``,
and leave neither sessions nor retained messages behind.
"""

from __future__ import annotations

import os
from typing import Any, Self
from urllib.parse import urlsplit

from tests.mqtt.broker import MqttClient

URL = "STREAMLEASE_TEST_MQTT_URL"
USER = "STREAMLEASE_TEST_MQTT_USER"
PASSWORD = "STREAMLEASE_TEST_MQTT_PASSWORD"


class NamedBroker:
    """The broker at an address; see ``Broker``."""

    def __init__(self, url: str, user: str | None, password: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "mqtt" or parts.hostname is None:
            raise ValueError(f"{URL} is {url!r}: give mqtt://HOST or mqtt://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or 1883
        self._login = {"user": user, "password": password}
        self._clients: list[MqttClient] = []

    @classmethod
    def of_environment(cls) -> Self | None:
        """The one that is named, if one is."""
        url = os.environ.get(URL)
        return None if not url else cls(url, os.environ.get(USER), os.environ.get(PASSWORD))

    @property
    def url(self) -> str:
        """As bridges get it."""
        return f"mqtt://{self._host}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """With which bridges log in."""
        given = {
            "STREAMLEASE_MQTT_USER": self._login["user"],
            "STREAMLEASE_MQTT_PASSWORD": self._login["password"],
        }
        return {name: value for name, value in given.items() if value is not None}

    def client(self, client_id: str = "", version: str = "5", **options: Any) -> MqttClient:
        """A connected client."""
        made = MqttClient(self._port, client_id, version, host=self._host, **self._login, **options)
        self._clients.append(made)
        return made

    def forget(self, client_ids: set[str]) -> None:
        """End these sessions, and what clients had it keep."""
        for client_id in sorted(client_ids):
            self.client(client_id, "3.1.1", clean_session=True).close()
        with self.client() as client:
            for topic in {topic for one in self._clients for topic in one.kept}:
                client.publish(topic, b"", retain=True)
