"""What several tests need: waiting for a condition, messages, full memory, a proxy that loses answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
from redis import Redis
from redis.crc import key_slot

from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import parse_entry_id
from streamlease.streams.entries.decoding import Entry
from streamlease.streams.entries.entries import Row, encode_rows
from streamlease.streams.entries.expanding import expanded_entry_bytes
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import Append
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.cluster import AsyncCluster
from streamlease.streams.redis.cluster_slots import SLOTS
from streamlease.streams.redis.connection import connect
from streamlease.streams.redis.durability import MEMORY, Durability
from streamlease.streams.rows import few_reading
from streamlease.streams.rows.few_messages import FewMessages


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until `condition` holds; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (a condition of any kind)
            await asyncio.sleep(0.005)


@contextmanager
def full(url: str, bytes: int = 1) -> Iterator[None]:
    """For a while Redis may use so few bytes."""
    with Redis.from_url(url) as redis:
        redis.config_set("maxmemory", bytes)
        try:
            yield
        finally:
            redis.config_set("maxmemory", 0)


async def let_the_loop_see_it() -> None:
    """Let the event loop notice that a server closed its connections; the kernel knows it already."""
    for _ in range(3):
        await asyncio.sleep(0)


def rows(first: int, count: int, topic: str = "flights/JFK") -> list[Row]:
    return [Row(topic, b"message %d" % number) for number in range(first, first + count)]


def append(
    stream: StreamId,
    sequence: int,
    content: Sequence[Row],
    *,
    publisher: str = "~p",
    incarnation: int = 1,
    gaps: bool = False,
    durability: Durability = MEMORY,
) -> Append:
    return Append(stream, publisher, incarnation, sequence, encode_rows(content), gaps, durability)


def read_few(stream: StreamId, entries: list[Entry], start: int, end: int) -> FewMessages | None:
    """What is read of `entries`, whose sizes are the same for both ways."""
    few = [few_reading.few_entry(fields, parse_entry_id(id)) for id, fields in entries]
    for one, (_, fields) in zip(few, entries, strict=True):
        assert one is None or one.size == expanded_entry_bytes(fields)
    return few_reading.read_few(stream, few, start, end)


def offsets(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def payloads(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.column("payload").to_pylist()]


class Proxy:
    """Stands between a client and a server, and can cut the line when an answer to a marked command comes.

    ``lose(b"EVALSHA", times=2)``: the next two requests that contain the mark reach the server and run;
    their answers are thrown away and the connection is cut.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._mark = b""
        self._times = 0
        self.lost = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def lose(self, mark: bytes, times: int = 1) -> None:
        self._mark, self._times = mark, times

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        marked = asyncio.Event()

        async def requests() -> None:
            while data := await reader.read(1 << 20):
                if self._times and self._mark in data:
                    self._times -= 1
                    marked.set()
                up_writer.write(data)
                await up_writer.drain()

        async def answers() -> None:
            while data := await up_reader.read(1 << 20):
                if marked.is_set():
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()

        both = [asyncio.create_task(requests()), asyncio.create_task(answers())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return  # asyncio's streams complain about a handler that ends cancelled
        finally:
            for end in (writer, up_writer):
                end.close()  # before anything that may be cancelled
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for end in (writer, up_writer):
                with suppress(OSError):
                    await end.wait_closed()
            self._tasks.discard(task)


def has_line(publisher: Publisher, stream: StreamId) -> bool:
    """Whether the next message for `stream` that is sent alone goes on a line."""
    return publisher.singles._lines.to(stream_meta(stream)) is not None


def cluster_of(stream: StreamId) -> AsyncCluster:
    """A cluster that nobody asks, of two servers: one has `stream`, the other one all that lies elsewhere."""
    cluster = AsyncCluster((), connect, "a cluster")  # type: ignore[arg-type]
    cluster.topology.known = True
    cluster.topology.owners = [("other", 1)] * SLOTS
    cluster.topology.move(key_slot(stream_meta(stream).encode()), ("own", 1))
    return cluster
