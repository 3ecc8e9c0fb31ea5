"""A Redis with something of everything that the console shows, kept alive as long as it is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from hashlib import sha1
from unittest import mock

import pyarrow as pa

from streamlease.agent.client import Client, connect
from streamlease.agent.subscription import SharedReader
from streamlease.catalog.own_query import QUERY_ID, QUERY_TOKEN
from streamlease.protocol.acts import PutDeadLetter
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.queries import keys as query_keys
from streamlease.queries import store
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage, Worker
from streamlease.queries.store import ExecutorRow, Write
from streamlease.registry.hosts import HostInfo, beat
from streamlease.streams.redis.connection import ask, connect_blocking
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.tasks import stop
from tests.archive.helpers import archive, trim_all
from tests.services.models import Score, score

BUSY = "$shared/demo/flights/#"
STOPPED = "$shared/billing/flights/#"
ALONE = "$shared/audit/trips/#"
QUERY, FAILED = "00000000000000ab", "00000000000000cd"
PERIOD = 0.5
"""Seconds between two messages, and two signs of life of the hosts."""


@contextmanager
def staged(url: str, uri: str) -> Iterator[None]:
    """All of it, in a thread of its own.

    Args:
        uri: of the folder for an archive.
    """
    ready: Future[None] = Future()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    def run() -> None:
        try:
            loop.run_until_complete(_play(url, uri, ready, over))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="stage")
    thread.start()
    try:
        ready.result(120)
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        assert not thread.is_alive()
        loop.close()


async def _play(url: str, uri: str, ready: Future[None], over: asyncio.Event) -> None:
    environment = {QUERY_ID: QUERY, QUERY_TOKEN: "token"}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(url))
        with mock.patch.dict(os.environ, environment):
            worker = await stack.enter_async_context(connect(url))
            publisher = await stack.enter_async_context(worker.publisher())
            await _queries(client)
            await _spaces(client, url, uri)
            for number in range(60):
                await publisher.send(f"flights/{number % 7}/in", f"flight {number}", key=f"k{number % 5}")
        consumer = await stack.enter_async_context(connect(url))
        readers = [
            await stack.enter_async_context(consumer.subscribe(BUSY, start="earliest", name=name))
            for name in ("ana", "ben", "cleo")
        ]
        await _groups(client, stack)
        ingest = await stack.enter_async_context(client.epoch_publisher("clicks", "ingest"))
        await ingest.send("clicks/a", b"one", epoch=0)
        await ingest.advance(1)
        await ingest.send("clicks/a", b"two", epoch=3)
        await stack.enter_async_context(client.serve("scorer", {Score: score}))
        number = 0

        async def consume(reader: SharedReader) -> None:
            async for batch in reader:
                await batch.commit()

        tasks = [asyncio.create_task(consume(reader)) for reader in readers]
        try:
            while not over.is_set():
                for name, drained in (("host-a", False), ("host-b", True)):
                    await beat(client.redis, HostInfo(host=name, name=name, pid=4905, drained=drained))
                number += 1
                await publisher.send(f"flights/{number % 7}/in", f"flight {number} of now")
                if number == 2:
                    ready.set_result(None)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PERIOD):
                        await over.wait()
        finally:
            await stop(tasks)


async def _queries(client: Client) -> None:
    now = await store.redis_ms(client.redis)
    workers = tuple(
        Worker(worker=number, executor=f"box{number}", life=f"life{number}", host=f"10.0.0.{number}",
               port=7000 + number, pid=4905 + number, joined=True)
        for number in range(2)
    )  # fmt: skip
    running = QueryRecord(
        query=QUERY, name="delays", state=QueryStage.RUNNING, size=2, workers=workers, who="ana",
        submitted_at=now - 3_600_000,
    )  # fmt: skip
    failed = QueryRecord(
        query=FAILED, name="report", state=QueryStage.ENDED, size=1, outcome=QueryOutcome.FAILED,
        reason="worker 0 exited with 3", who="ben", submitted_at=now - 60_000, ended_at=now,
    )  # fmt: skip
    digest = sha1(b"token").hexdigest()
    await store.write(client.redis, [Write(0, running, digest), Write(0, failed)])
    for number in range(2):
        executor = f"box{number}"
        row = ExecutorRow(
            executor=executor, slots=4, busy=1, labels=(("zone", "a"),), ports=(7000, 7010),
            process=f"life{number}", host=f"10.0.0.{number}", pid=301 + number,
        )  # fmt: skip
        await store.hold(client.redis, f"life{number}", row, 600_000, begin=True)
        key = query_keys.log(QUERY, number)
        lines = [("out", b"reads flights/#\n"), ("err", b"WARN one partition is late\n")]
        await ask(
            client.redis, [("XADD", key, "*", "o", 0, "s", stream, "t", text) for stream, text in lines]
        )


async def _spaces(client: Client, url: str, uri: str) -> None:
    await client.create_space("flights", ["flights/#"], streams=4)
    schema = pa.schema([("city", pa.string()), ("minutes", pa.int64()), ("delayed", pa.bool_())])
    await client.create_space("trips", ["trips/#"], streams=2, schema=schema)
    await client.create_space("clicks", ["clicks/#"], epochs=1)
    kept = await client.create_space("history", ["history/#"], streams=2, archive=ArchiveSettings.of(uri))
    async with client.publisher() as publisher:
        for number in range(40):
            await publisher.send(f"history/{number % 3}", f"past {number}", headers={"source": "test"})
            trip = {"city": ("Oslo", "Genève")[number % 2], "minutes": number, "delayed": number % 5 == 0}
            await publisher.send("trips/europe/west", trip, key=f"car-{number % 3}")

    def write() -> None:
        blocking = connect_blocking(url)
        try:
            archive(blocking, kept)
        finally:
            blocking.close()

    await asyncio.to_thread(write)
    await trim_all(client, kept)


async def _groups(client: Client, stack: AsyncExitStack) -> None:
    """One that is stopped at a message, and has a dead letter; one that nobody consumes."""
    options = GroupOptions(on_poison="stop", max_failures=1)
    stopped = SharedSubscription.parse(STOPPED)
    await client.groups.declare(stopped, "earliest", options=options)
    await client.groups.declare(SharedSubscription.parse(ALONE), "earliest")
    reader = await stack.enter_async_context(client.subscribe(STOPPED, start="earliest"))
    failed: list[StreamId] = []
    while len(failed) < 2:
        batch = await anext(reader)
        if batch.stream not in failed:
            failed.append(batch.stream)
            await batch.fail(batch.start, ValueError("no number"))
    await client.act(stopped, PutDeadLetter(stream=str(failed[0])), who="ana")
