"""Bridges as processes, and what stands in a space afterwards."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamlease.agent.client import connect
from streamlease.streams.entries.delivered import Message
from tests.admin.command import Command, Process, finish, until

METRICS = re.compile(r"metrics are at (\S+)")


class BridgeProcess:
    """One ``streamlease bridge mqtt``."""

    def __init__(
        self, command: Command, log: Path, words: tuple[str, ...], environment: dict[str, str]
    ) -> None:
        self.log = command.log = log
        before = len(self.said)
        self.process: Process = command.start("bridge", "mqtt", *words, "--metrics-port", "0", **environment)
        until(lambda: self.over or METRICS.search(self.said[before:]))
        found = METRICS.search(self.said[before:])
        self.metrics_url = found[1] if found else ""

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def words(self) -> str:
        """What a list of processes shows."""
        return Path(f"/proc/{self.pid}/cmdline").read_text()

    def count(self, name: str, **labels: str) -> float:
        """The value of a metric; 0 if it is not there."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            text = answer.read().decode()
        wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
        full = re.escape(f"streamlease_mqtt_{name}") + (rf"\{{{wanted}\}}" if wanted else "")
        found = re.search(rf"^{full} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and document of a probe."""
        where = self.metrics_url.replace("/metrics", path)
        try:
            with urllib.request.urlopen(where, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)

    def ready(self) -> bool:
        return self.probe("/readyz")[0] == 200

    def state(self) -> str:
        """What it says that it does."""
        said: str = self.probe("/readyz")[1]["state"]
        return said

    def connected(self) -> bool:
        return bool(self.count("connected"))

    def kill(self) -> None:
        """SIGKILL."""
        finish(self.process, signal.SIGKILL)

    def end(self) -> int:
        """SIGTERM; the exit code."""
        return finish(self.process).code


class Bridges:
    """Makes bridges on one Redis."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self.url = url
        self.command = Command(directory, url)
        self.client_ids: set[str] = set()
        """Under which bridges have sessions at the broker."""
        self._made: list[BridgeProcess] = []

    def start(self, *words: str, ready: bool = True, **environment: str) -> BridgeProcess:
        """A bridge; once it is subscribed, if it is to be `ready`."""
        self.client_ids |= {words[at + 1] for at, word in enumerate(words) if word == "--client-id"}
        log = self._directory / f"bridge-{len(self._made)}.log"
        bridge = BridgeProcess(self.command, log, words, environment)
        self._made.append(bridge)
        if ready:
            until(lambda: bridge.over or "connected to broker" in bridge.said)
            assert not bridge.over, bridge.said
        return bridge

    def end(self) -> None:
        for bridge in self._made:
            if bridge.over:
                bridge.process.communicate()
            else:
                bridge.kill()


async def contents(url: str, filter: str = "#") -> list[Message]:
    """All messages of that filter, stream by stream."""
    async with connect(url) as client, client.history(filter) as history:
        return [message async for batch in history for message in batch.messages]


async def arrived(url: str, count: int, filter: str = "#", seconds: float = 30.0) -> list[Message]:
    """All messages of that filter, once there are `count` different payloads."""
    payloads: set[bytes] = set()
    async with connect(url) as client, client.listen(filter, start="earliest") as listening:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for batch in listening:
                    payloads.update(message.payload for message in batch.messages)
                    if len(payloads) >= count:
                        break
    assert len(payloads) == count, f"{len(payloads)} of {count} came within {seconds} s"
    return await contents(url, filter)


def twice(messages: list[Message]) -> int:
    """How many messages are there that need not be."""
    return sum(count - 1 for count in Counter((one.topic, one.payload) for one in messages).values())


def in_order(messages: list[Message]) -> dict[str, list[Any]]:
    """The first appearance of each payload, by topic."""
    found: dict[str, list[Any]] = {}
    for message in sorted(messages, key=lambda one: (one.stream, one.offset)):
        seen = found.setdefault(message.topic, [])
        if message.payload not in seen:
            seen.append(message.payload)
    return found
