"""Peers: publishing, consuming and latency beside redis-py, RabbitMQ streams and NATS JetStream.

RabbitMQ and NATS take part where their servers (of Debian) and their Python clients (``rstream``,
``nats-py``) are found; what is missing is said. Every piece of work runs in a process of its own, with
default settings, 16 streams, payloads of 100 bytes, and a commit for each batch. Processor time is that of
the client and that of the server with all its processes. A consumer has two rates: from its first batch on,
and from its start on, in which imports, the connection, the group and its leases are. With 200,000 messages
what Arrow reads after its first batch takes some 60 ms; ``--messages 2000000`` says more.
"""

from __future__ import annotations

import asyncio
import compileall
import statistics
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import streamlease
from bench.contenders import servers
from bench.contenders.workload import (
    PAYLOAD_BYTES,
    STREAMS,
    WARM_SECONDS,
    Done,
    Work,
    processor_of,
    work,
)
from bench.frame import Frame, Table, percentile

BASE = "redis-py"
RATES = (1_000, 20_000)
PACED_SECONDS = 10.0
SINGLES = 5_000


@dataclass(frozen=True, slots=True)
class Contender:
    """A row of the tables.

    Args:
        module: its module, below ``bench.contenders``.
        client: the package that its client is in, as pip is asked for it.
        consumers: name of a way to consume -> attribute of the module.
        senders: name of a way to send one by one -> attribute of the module.
    """

    name: str
    module: str
    client: str
    server: Callable[[], AbstractContextManager[servers.Server]]
    consumers: dict[str, str]
    senders: dict[str, str]

    @property
    def main(self) -> str:
        """The way that publishes and is paced."""
        return f"{self.module}:{next(iter(self.consumers.values()))}"


CONTENDERS = (
    Contender(
        BASE,
        "redis_py",
        "redis",
        servers.redis,
        {BASE: "asynchronous"},
        {f"{BASE}, asyncio": "asynchronous", f"{BASE}, blocking": "blocking"},
    ),
    Contender(
        "Streamlease",
        "streamlease",
        "streamlease",
        servers.redis,
        {"Streamlease, messages": "messages", "Streamlease, Arrow": "arrow"},
        {"Streamlease": "messages", "Streamlease, blocking": "blocking"},
    ),
    Contender(
        "RabbitMQ streams",
        "rabbitmq",
        "rstream==1.1.1",
        servers.rabbitmq,
        {"RabbitMQ streams": "streams"},
        {"RabbitMQ streams": "streams"},
    ),
    Contender(
        "NATS JetStream",
        "nats",
        "nats-py==2.16.0",
        servers.nats,
        {"NATS JetStream": "jetstream"},
        {"NATS JetStream": "jetstream"},
    ),
)


@dataclass(slots=True)
class Measured:
    """What the runs of one row came to, run by run."""

    rates: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    """Rates of consumers with their start; the other ones begin with the first batch."""
    starts: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    """Seconds of single calls or messages, all runs together."""
    publisher: list[float] = field(default_factory=list)


Rows = dict[str, dict[str, Measured]]
"""Subject -> row -> what was measured."""


class Round:
    """One contender's turn, on a server of its own."""

    def __init__(self, contender: Contender, frame: Frame, rows: Rows) -> None:
        self._contender = contender
        self._module = import_module(f"bench.contenders.{contender.module}")
        self._frame = frame
        self._rows = rows

    def run(self) -> None:
        """Publish, consume, send one by one, and pace; each on a fresh server."""
        for way, attribute in self._contender.consumers.items():
            self._throughput(way, attribute)
        for way, attribute in self._contender.senders.items():
            self._singles(way, attribute)
        for rate in RATES:
            self._paced(rate)

    def _throughput(self, way: str, attribute: str) -> None:
        count = self._frame.messages
        with self._server() as server:
            done, used = self._accounted(
                server, lambda: work(self._contender.main, "publish", server.url, count)
            )
            self._note("publish", self._contender.name, count / done.seconds, done, used, count)
            contender = f"{self._contender.module}:{attribute}"
            done, used = self._accounted(server, lambda: work(contender, "consume", server.url, count))
            row = self._note("consume", way, done.rate(count), done, used, count)
            row.whole.append(done.whole_rate(count))

    def _singles(self, way: str, attribute: str) -> None:
        count = min(SINGLES, self._frame.messages)
        with self._server() as server:
            contender = f"{self._contender.module}:{attribute}"
            done, used = self._accounted(server, lambda: work(contender, "send", server.url, count))
            row = self._note("send", way, count / sum(done.value), done, used, count)
            row.samples += done.value

    def _paced(self, rate: int) -> None:
        count = int(rate * PACED_SECONDS)
        main = self._contender.main
        with self._server() as server:
            before = processor_of(server.pid)
            consumer = Work(main, "consume_paced", server.url, count)
            try:
                consumer.wait_ready()
                publisher = work(main, "publish_paced", server.url, rate, PACED_SECONDS)
                done = consumer.end()
            finally:
                consumer.stop()
            used = processor_of(server.pid) - before
        row = self._note(f"{rate}", self._contender.name, count / done.seconds, done, used, count)
        row.publisher.append(publisher.processor / count * 1e6)
        row.samples += [age / 1e9 for age in done.value[int(rate * WARM_SECONDS) :]]

    def _server(self) -> AbstractContextManager[servers.Server]:
        return _prepared(self._contender.server(), self._module.prepare)

    def _accounted(self, server: servers.Server, run: Callable[[], Done]) -> tuple[Done, float]:
        before = processor_of(server.pid)
        done = run()
        return done, processor_of(server.pid) - before

    def _note(self, subject: str, name: str, rate: float, done: Done, used: float, count: int) -> Measured:
        row = self._rows.setdefault(subject, {}).setdefault(name, Measured())
        row.rates.append(rate)
        row.starts.append(done.begun[0])
        row.client.append(done.processor / count * 1e6)
        row.server.append(used / count * 1e6)
        return row


@contextmanager
def _prepared(
    server: AbstractContextManager[servers.Server], prepare: Callable[[str], Coroutine[Any, Any, None]]
) -> Iterator[servers.Server]:
    """A server on which the streams have been made."""
    with server as running:
        asyncio.run(prepare(running.url))
        yield running


def _compile() -> None:
    """Compile this package as pip does it when it installs one: the peers' have been."""
    for room in Path(streamlease.__path__[0]).iterdir():
        if room.is_dir():
            compileall.compile_dir(room.resolve(), quiet=1)


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _turn(contender: Contender, frame: Frame, rows: Rows) -> None:
    if not _is_installed(contender.client.partition("==")[0]):
        raise servers.NotFound(f"no Python client: pip install {contender.client}")
    Round(contender, frame, rows).run()


def measure(frame: Frame) -> Iterator[Table]:
    """A table for each subject; contenders take turns."""
    _compile()
    rows: Rows = {}
    missing = Table("Taking no part", ("", "why"))
    for _ in range(frame.runs):
        for contender in CONTENDERS:
            if any(contender.name == name for name, _ in missing.rows):
                continue
            try:
                _turn(contender, frame, rows)
            except servers.NotFound as error:
                missing.rows.append((contender.name, str(error)))
    yield from _tables(frame, rows)
    if missing.rows:
        yield missing


def _tables(frame: Frame, rows: Rows) -> Iterator[Table]:
    runs = f"{PAYLOAD_BYTES} bytes, {STREAMS} streams, medians of {frame.runs}"
    yield _throughput(f"Publishing {frame.messages:,} messages, {runs}", rows["publish"], BASE)
    yield _throughput(
        f"Consuming {frame.messages:,} messages with a commit per batch, {runs}",
        rows["consume"],
        BASE,
        starts=True,
    )
    count = min(SINGLES, frame.messages)
    yield _latency(f"{count:,} messages sent one by one, {runs}", rows["send"], f"{BASE}, asyncio")
    for rate in RATES:
        yield _latency(
            f"From publisher to consumer at {rate:,} messages/s for {PACED_SECONDS:.0f} s, {runs}",
            rows[str(rate)],
            BASE,
        )


def _throughput(title: str, rows: dict[str, Measured], base: str, *, starts: bool = False) -> Table:
    """Rates, and processor seconds per million messages, which are microseconds per message."""
    columns = ["", "messages/s", "ratio", "client us", "server us", "ratio of both"]
    more = ["first batch ms", "with the start, /s", "ratio"] if starts else []
    table = Table(title, [*columns, *more])
    of_base = statistics.median(rows[base].rates)
    cost_of_base = _cost(rows[base])
    for name, row in rows.items():
        rate = statistics.median(row.rates)
        figures = [
            name,
            f"{rate:,.0f}",
            f"{rate / of_base:.2f}",
            f"{statistics.median(row.client):.1f}",
            f"{statistics.median(row.server):.1f}",
            f"{_cost(row) / cost_of_base:.2f}",
        ]
        if starts:
            whole = statistics.median(row.whole)
            figures += [
                f"{statistics.median(row.starts) * 1000:.0f}",
                f"{whole:,.0f}",
                f"{whole / statistics.median(rows[base].whole):.2f}",
            ]
        table.rows.append(figures)
    return table


def _cost(row: Measured) -> float:
    return statistics.median(map(sum, zip(row.client, row.server, strict=True)))


def _latency(title: str, rows: dict[str, Measured], base: str) -> Table:
    """Milliseconds, and microseconds of processor time per message."""
    table = Table(
        title,
        ("", "p50 ms", "p99 ms", "ratio of p50", "messages/s", "client us", "publisher us", "server us"),
    )
    of_base = statistics.median(rows[base].samples)
    for name, row in rows.items():
        p50 = statistics.median(row.samples)
        table.rows.append(
            (
                name,
                f"{p50 * 1000:.2f}",
                f"{percentile(row.samples, 99) * 1000:.2f}",
                f"{p50 / of_base:.2f}",
                f"{statistics.median(row.rates):,.0f}",
                f"{statistics.median(row.client):.0f}",
                f"{statistics.median(row.publisher):.0f}" if row.publisher else "",
                f"{statistics.median(row.server):.0f}",
            )
        )
    return table
