"""Gateway: single and batched publishing over HTTP, fan-out to idle clients, memory of open polls, latency.

One gateway process, and its clients in this one: beside the embedded Redis that makes three on the machine.
The clients write prepared requests and read as little of the answers as they can.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa

from bench import gateway_members
from bench.frame import Frame, Table, percentile
from bench.webhooks import SUBSCRIPTIONS, deliveries
from streamlease.agent.client import connect

COMMAND = Path(sys.executable).with_name("streamlease")
CONNECTIONS = 32
SECONDS = 4.0
BATCH, BATCH_CONNECTIONS = 5000, 4
WAITING, MESSAGES = 1000, 10
OPEN = 10_000
ALONE = 300
PAYLOAD = b"x" * 100


def measure(frame: Frame) -> Iterator[Table]:
    """One table of figures and targets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    table = Table("Gateway", ("", "measured", "processor of the gateway", "target"))
    with frame.server() as url:
        table.rows.extend(asyncio.run(_all(url)))
    yield table


class Connection:
    """A kept connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    def send(self, request: bytes) -> None:
        self._writer.write(request)

    async def answer(self) -> bytes:
        return (await self.whole())[1]

    async def whole(self) -> tuple[bytes, bytes]:
        """The head of an answer, and its body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 20"), head + await self._reader.read(1000)
        if head.startswith(b"HTTP/1.1 204"):
            return head, b""
        place = head.lower().index(b"content-length: ") + 16
        return head, await self._reader.readexactly(int(head[place : head.index(b"\r", place)]))

    async def ask(self, request: bytes) -> bytes:
        self.send(request)
        return await self.answer()

    async def line(self) -> bytes:
        return await self._reader.readuntil(b"\n\n")

    def close(self) -> None:
        self._writer.close()


def request_bytes(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def _gateway(url: str, *options: str) -> AsyncIterator[tuple[int, psutil.Process]]:
    words = (
        str(COMMAND),
        "--redis",
        url,
        "gateway",
        "--port",
        "0",
        "--max-client-channels",
        "10000",
        *options,
    )
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = (await process.stdout.readline()).decode()
    try:
        yield int(said.strip().rstrip("/").rpartition(":")[2]), psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def _all(url: str) -> list[tuple[str, str, str, str]]:
    from bench.channels import channel_rows

    async with connect(url) as client:
        await client.create_space("bench", ["bench/#"], streams=4)
    rows: list[tuple[str, str, str, str]] = []
    async with _gateway(url) as (port, process):
        rows.append(await _singles(port, process))
        rows.append(await _latency(url, port, process))
        lines = b"\n".join(b'{"payload":"%b"}' % PAYLOAD for _ in range(BATCH))
        sink = pa.BufferOutputStream()
        batch = pa.record_batch({"payload": pa.array([PAYLOAD] * BATCH, pa.binary())})
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write(batch)
        arrow = sink.getvalue().to_pybytes()
        rows.append(await _batches(port, process, "JSON lines", "application/x-ndjson", lines))
        rows.append(await _batches(port, process, "Arrow", "application/vnd.apache.arrow.stream", arrow))
        rows += await _members(url, port, process)
        rows.append(await _fan_out(port, process, "long polls"))
        rows.append(await _fan_out(port, process, "event streams"))
    async with _gateway(url) as (port, process):
        rows.append(await _memory(port, process))
    async with _gateway(url) as (port, process):
        rows += await channel_rows(url, port, process)
    async with _gateway(url, "--allow-private-callbacks") as (port, process):
        rows.append(await _webhooks(url, port, process))
    return rows


async def _webhooks(url: str, port: int, process: psutil.Process) -> tuple[str, str, str, str]:
    connection = await Connection.open(port)

    async def post(path: str, body: bytes) -> bytes:
        return await connection.ask(request_bytes("POST", path, body))

    async with connect(url) as client:
        rate, share, each = await deliveries(client, post, lambda: computed(process))
    connection.close()
    name = f"webhooks, {SUBSCRIPTIONS} callbacks, one message in each delivery"
    return name, f"{rate:,.0f}/s", f"{share:.0%}, {1e6 * each:.0f} us each", "2,000/s"


async def _timed(process: psutil.Process, work: Callable[[], Awaitable[int]]) -> tuple[float, float]:
    """How much `work` did in a second, and the share of a processor that the gateway took for it."""
    before, began = computed(process), time.perf_counter()
    done = await work()
    seconds = time.perf_counter() - began
    return done / seconds, (computed(process) - before) / seconds


def computed(process: psutil.Process) -> float:
    """Processor time of a process, in seconds."""
    times = process.cpu_times()
    return times.user + times.system


async def _repeated(port: int, connections: int, request: bytes) -> int:
    ends, done = time.perf_counter() + SECONDS, 0

    async def one() -> None:
        nonlocal done
        connection = await Connection.open(port)
        while time.perf_counter() < ends:
            await connection.ask(request)
            done += 1
        connection.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return done


async def _singles(port: int, process: psutil.Process) -> tuple[str, str, str, str]:
    request = request_bytes("POST", "/v1/topics/bench/1", PAYLOAD)
    await _repeated(port, 1, request)
    rate, share = await _timed(process, lambda: _repeated(port, CONNECTIONS, request))
    return f"single publishes, {CONNECTIONS} connections", f"{rate:,.0f}/s", f"{share:.0%}", "8,000/s"


async def _batches(
    port: int, process: psutil.Process, name: str, kind: str, body: bytes
) -> tuple[str, str, str, str]:
    request = request_bytes("POST", "/v1/topics/bench/1", body, f"content-type: {kind}")
    rate, share = await _timed(process, lambda: _repeated(port, BATCH_CONNECTIONS, request))
    return f"messages of 100 bytes in {name}", f"{rate * BATCH:,.0f}/s", f"{share:.0%}", "300,000/s"


async def _latency(url: str, port: int, process: psutil.Process) -> tuple[str, str, str, str]:
    request, direct, over = request_bytes("POST", "/v1/topics/bench/1", PAYLOAD), [], []
    connection = await Connection.open(port)
    before = computed(process)
    async with connect(url) as client, client.publisher() as publisher:
        for _ in range(ALONE):
            began = time.perf_counter()
            await publisher.send("bench/1", PAYLOAD)
            middle = time.perf_counter()
            await connection.ask(request)
            direct.append(middle - began)
            over.append(time.perf_counter() - middle)
    connection.close()
    added = 1000 * (percentile(over, 50) - percentile(direct, 50))
    share = (computed(process) - before) / sum(over)
    return "added latency of a single publish, p50", f"{added:.2f} ms", f"{share:.0%}", "3 ms"


async def _members(url: str, port: int, process: psutil.Process) -> list[tuple[str, str, str, str]]:
    await gateway_members.fill(url, PAYLOAD)
    connection, rows = await Connection.open(port), []

    async def ask(method: str, path: str, body: bytes, form: str) -> tuple[bytes, bytes]:
        connection.send(request_bytes(method, path, body, f"accept: {form}"))
        return await connection.whole()

    for form in gateway_members.FORMS:
        rate, share = await _timed(process, partial(gateway_members.consume, ask, form))
        name = f"messages through a member of a group, a commit for each {gateway_members.AT_A_TIME}, {form}"
        rows.append((name, f"{rate:,.0f}/s", f"{share:.0%}, {share / rate * 1e6:.1f} us each", ""))
    connection.close()
    return rows


async def _fan_out(port: int, process: psutil.Process, how: str) -> tuple[str, str, str, str]:
    publisher = await Connection.open(port)
    publish = request_bytes("POST", "/v1/topics/bench/fan", PAYLOAD)
    polls = how == "long polls"
    clients = [await Connection.open(port) for _ in range(WAITING)]
    next = json.loads(await publisher.ask(request_bytes("GET", "/v1/messages?filter=bench/fan")))["next"]
    if not polls:
        for one in clients:
            one.send(request_bytes("GET", f"/v1/events?filter=bench/fan&since={next}"))
        for one in clients:
            await one.line()
    taken: list[float] = []
    before, began_all = computed(process), time.perf_counter()
    for _ in range(MESSAGES):
        if polls:
            for one in clients:
                one.send(request_bytes("GET", f"/v1/messages?filter=bench/fan&since={next}&wait=30"))
            await asyncio.sleep(1.0)
        began = time.perf_counter()
        publisher.send(publish)

        async def heard(one: Connection, began: float = began) -> bytes:
            if polls:
                answer = await one.answer()
            else:
                while b"data:" not in (answer := await one.line()):
                    pass
            taken.append(time.perf_counter() - began)
            return answer

        answers = await asyncio.gather(*map(heard, clients))
        await publisher.answer()
        if polls:
            next = json.loads(answers[0])["next"]
    share = (computed(process) - before) / (time.perf_counter() - began_all)
    for one in [publisher, *clients]:
        one.close()
    p50, p99 = 1000 * percentile(taken, 50), 1000 * percentile(taken, 99)
    return (
        f"a message to {WAITING:,} {how}, p50 and p99",
        f"{p50:.0f}, {p99:.0f} ms",
        f"{share:.0%}",
        "250 ms",
    )


async def _open(connection: Connection, route: str) -> int:
    """How many polls are open there, as the gateway counts them."""
    text = (await connection.ask(request_bytes("GET", "/metrics"))).decode()
    found = re.search(rf'^streamlease_gateway_open{{route="{re.escape(route)}"}} (\S+)$', text, re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


async def _memory(port: int, process: psutil.Process) -> tuple[str, str, str, str]:
    asking = await Connection.open(port)
    next = json.loads(await asking.ask(request_bytes("GET", "/v1/messages?filter=bench/%23")))["next"]
    request = request_bytes("GET", f"/v1/messages?filter=bench/none&since={next}&wait=60")
    before = process.memory_info().rss
    count = min(OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    opened = [await Connection.open(port) for _ in range(count)]
    for one in opened:
        one.send(request)
    async with asyncio.timeout(50):  # before the first of them ends
        while await _open(asking, "/v1/messages") != count:  # noqa: ASYNC110 (it is counted by the gateway)
            await asyncio.sleep(0.2)
    mib = process.memory_info().rss / 2**20
    for one in opened:
        one.close()
    asking.close()
    added = mib - before / 2**20
    return f"memory with {count:,} open polls", f"{mib:.0f} MiB ({added:.0f} of it for them)", "", "500 MiB"
