"""MQTT: messages of QoS 1 through a bridge, in and out, beside paho alone with the same Mosquitto.

Messages of 100 bytes, MQTT 5, a window of 1,000. On the way in, the taker stands still (SIGSTOP) until the
broker has all messages, so their publisher takes nothing of the machine while it works. Processor time is
that of the process and of the broker, per message. `tests/mqtt/broker.py` says where the broker comes from.
"""

from __future__ import annotations

import asyncio
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.frame import Frame, Table
from bench.mqtt_plain import PAYLOAD
from streamlease.agent.client import connect
from tests.mqtt.broker import Broker

COMMAND = Path(sys.executable).with_name("streamlease")
MOST, WINDOW, BATCH = 20_000, 1000, 1000
SETTINGS = ("allow_anonymous true", f"max_inflight_messages {WINDOW}")
GROUP = "$shared/bench/bench/#"


class Taken(NamedTuple):
    """What one run took."""

    seconds: float
    own: float
    """Processor seconds of the process."""
    broker: float


def measure(frame: Frame) -> Iterator[Table]:
    """One table, in and out."""
    count, runs = min(frame.messages, MOST), min(frame.runs, 5)
    ways: dict[str, Callable[[str, Broker, int], Taken]] = {
        "in: paho alone, into nothing": _plain_in,
        "in: the bridge, until durable": _bridge_in,
        "out: paho alone": _plain_out,
        "out: the bridge, from a group": _bridge_out,
    }
    found: dict[str, list[Taken]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, work in ways.items():
            with frame.server() as url, tempfile.TemporaryDirectory() as folder:
                broker = Broker(Path(folder), *SETTINGS).start()
                try:
                    asyncio.run(_make_space(url))
                    found[name].append(work(url, broker, count))
                finally:
                    broker.stop()
    table = Table(
        f"{count:,} messages of {len(PAYLOAD)} bytes at QoS 1, medians of {runs}",
        ("", "messages/s", "processor of the process, us each", "of the broker"),
    )
    for name, each in found.items():
        seconds, own, its = (statistics.median(one[place] for one in each) for place in range(3))
        table.rows.append(
            (name, f"{count / seconds:,.0f}", f"{1e6 * own / count:.0f}", f"{1e6 * its / count:.0f}")
        )
    yield table


async def _make_space(url: str) -> None:
    async with connect(url) as client:
        await client.create_space("bench", ["bench/#"], streams=4)


def _plain_in(_url: str, broker: Broker, count: int) -> Taken:
    with _plain("take", broker, count) as process:
        process.send_signal(signal.SIGSTOP)
        _publish(broker, count)
        with _timing(process.pid, broker) as taken:
            process.send_signal(signal.SIGCONT)
            _wait_for(process, "done")
        return taken[0]


def _plain_out(_url: str, broker: Broker, count: int) -> Taken:
    with _plain("send", broker, count) as process:
        with _timing(process.pid, broker) as taken:
            _tell(process)
            _wait_for(process, "done")
        return taken[0]


def _bridge_in(url: str, broker: Broker, count: int) -> Taken:
    with _bridge(url, broker, "--filter", "bench/#") as (process, metrics):
        process.send_signal(signal.SIGSTOP)
        _publish(broker, count)
        with _timing(process.pid, broker) as taken:
            process.send_signal(signal.SIGCONT)
            _reach(metrics, "brought", count)
        return taken[0]


def _bridge_out(url: str, broker: Broker, count: int) -> Taken:
    with _bridge(url, broker, "--out", GROUP, "--from", "earliest") as (process, metrics):
        with _timing(process.pid, broker) as taken:
            asyncio.run(_fill(url, count))
            _reach(metrics, "sent", count)
        return taken[0]


async def _fill(url: str, count: int) -> None:
    async with connect(url) as client, client.publisher() as publisher:
        for first in range(0, count, BATCH):
            await publisher.send_many(f"bench/{first // BATCH % 100}", [PAYLOAD] * min(BATCH, count - first))


def _publish(broker: Broker, count: int) -> None:
    with broker.client("publisher") as client:
        client.publish_all((f"bench/{n % 100}", PAYLOAD) for n in range(count))


@contextmanager
def _timing(pid: int, broker: Broker) -> Iterator[list[Taken]]:
    processes = psutil.Process(pid), psutil.Process(broker.pid)
    taken: list[Taken] = []
    before, began = [_computed(one) for one in processes], time.perf_counter()
    yield taken
    seconds = time.perf_counter() - began
    own, its = (_computed(one) - was for one, was in zip(processes, before, strict=True))
    taken.append(Taken(seconds, own, its))


def _computed(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def _plain(what: str, broker: Broker, count: int) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "bench.mqtt_plain", what, str(broker.port), str(count), str(WINDOW)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        _wait_for(process, "ready")
        yield process
        _tell(process)
        process.wait(20)
    finally:
        process.kill()
        process.communicate()


def _wait_for(process: subprocess.Popen[bytes], word: str) -> None:
    assert process.stdout is not None
    said = process.stdout.readline().decode().strip()
    assert said == word, f"it said {said!r}"


def _tell(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


@contextmanager
def _bridge(url: str, broker: Broker, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    own = ["--client-id", "bench", "--window", str(WINDOW), "--metrics-port", "0"]
    process = subprocess.Popen(
        [COMMAND, "--redis", url, "bridge", "mqtt", broker.url, *own, *words], stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        said = ""
        while "connected to broker" not in said:
            line = process.stderr.readline().decode()
            assert line, said
            said += line
        found = re.search(r"metrics are at (\S+)", said)
        assert found is not None, said
        yield process, found[1]
        process.terminate()
        process.wait(20)
    finally:
        process.kill()
        process.communicate()


def _reach(metrics: str, name: str, count: int) -> None:
    while True:
        with urllib.request.urlopen(metrics, timeout=20) as answer:
            found = re.search(rf"^streamlease_mqtt_{name}_total (\S+)$", answer.read().decode(), re.MULTILINE)
        if found is not None and float(found[1]) >= count:
            return
        time.sleep(0.02)
