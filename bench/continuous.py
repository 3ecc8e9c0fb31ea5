"""Continuous mode: from the call of publish to the user's function, at 1,000 messages a second."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pyarrow as pa

from bench.frame import Frame, Table, percentile
from bench.messages import PAYLOAD_BYTES, SPACE
from bench.sparks import session
from streamlease.agent import blocking

RATE = 1000
"""Messages per second."""

WARM = 2.0
"""Seconds at the beginning that do not count."""


TOLD = "dd"
"""The delay of a message in seconds, and the processor time of the task's process so far."""


def _collect(server: socket.socket, told: list[tuple[float, float]]) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as file:
        while len(packed := file.read(16)) == 16:
            told.append(struct.unpack(TOLD, packed))


def _function(port: int):  # type: ignore[no-untyped-def]
    """Sends the delay of each message to the benchmark; both read the same clock of the machine."""
    lines: dict[int, socket.socket] = {}

    def handle(batch: pa.RecordBatch) -> None:
        now = time.time()
        if port not in lines:
            lines[port] = socket.create_connection(("127.0.0.1", port))
        spent = time.process_time()
        delays = [
            now - struct.unpack_from("d", payload)[0] for payload in batch.column("payload").to_pylist()
        ]
        lines[port].sendall(b"".join(struct.pack(TOLD, delay, spent) for delay in delays))

    return handle


def measure(frame: Frame) -> Iterator[Table]:
    """Delays of `messages`, one publisher, four streams, one slot."""
    from streamlease.spark.continuous import continuous

    count = min(frame.messages, 20 * RATE)
    told: list[tuple[float, float]] = []
    with (
        frame.server() as url,
        session(1) as spark,
        socket.create_server(("127.0.0.1", 0)) as server,
        blocking.connect(url) as client,
    ):
        client.create_space(SPACE, [f"{SPACE}/#"], streams=4)
        threading.Thread(target=_collect, args=(server, told), daemon=True).start()
        query = continuous(
            spark,
            f"$shared/c/{SPACE}/#",
            _function(server.getsockname()[1]),
            redis=url,
            start="earliest",
            slots=1,
        )
        with client.publisher(linger_ms=0) as publisher:
            total, began = count + round(WARM * RATE), time.monotonic()
            publisher.send(f"{SPACE}/0", struct.pack("d", time.time()))
            while not told:  # until the task runs and holds its streams
                if query.exception is not None:
                    raise query.exception
                time.sleep(0.01)
            began = time.monotonic()
            for number in range(total):
                if number == total - count:
                    spent = time.process_time()
                wait = began + number / RATE - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                stamp = struct.pack("d", time.time())
                publisher.submit(f"{SPACE}/{number % 64}", stamp.ljust(PAYLOAD_BYTES, b"x"))
        spent = time.process_time() - spent
        deadline = time.monotonic() + 30
        while len(told) < total + 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        query.stop()
    if len(told) != total + 1:
        raise SystemExit(f"{len(told)} of {total + 1} messages came")
    steady = [delay * 1000 for delay, _ in told[-count:]]
    table = Table(
        f"Publish to user function, {count:,} messages at {RATE:,}/s; processor time of a message",
        ("", "p50 ms", "p99 ms", "worst ms", "task us", "publisher us"),
    )
    delays = (percentile(steady, 50), percentile(steady, 99), max(steady))
    task = (told[-1][1] - told[-count][1]) / count
    row = [f"{delay:.1f}" for delay in delays]
    table.rows.append(("Streamlease, one slot", *row, f"{task * 1e6:.0f}", f"{spent / count * 1e6:.0f}"))
    yield table
