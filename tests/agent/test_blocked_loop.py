"""A program that computes on its event loop, longer than its session may be silent: it heals by itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from streamlease.agent import blocking
from streamlease.agent.client import Client
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.errors import Fenced
from streamlease.streams.tasks import stop
from tests.agent.helpers import SUB, until

SESSION = 1.2
BLOCKED = 2.5


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.slow
async def test_a_loop_that_stood_still_goes_on_and_nothing_is_lost(
    client: Client, real_redis_url: str, alone: bool
) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    theirs: list[int] = []
    done = threading.Event()

    def consume() -> None:
        with blocking.connect(real_redis_url) as twin, twin.subscribe(SUB, session_timeout=SESSION) as others:
            while not done.is_set():
                batch = others.poll(0.1)
                if batch is not None:
                    batch.commit()
                    theirs.extend(int(message.payload) for message in batch.messages)

    mine: list[int] = []

    async def take(reader: SharedReader) -> None:
        async for batch in reader:
            with contextlib.suppress(Fenced):  # its messages went to the other one meanwhile
                await batch.commit()
                mine.extend(int(message.payload) for message in batch.messages)

    thread = threading.Thread(target=consume)
    async with (
        client.publisher(delivery_timeout=1.0) as publisher,
        client.subscribe(SUB, start="earliest", session_timeout=SESSION, max_batch=20) as reader,
    ):
        if not alone:
            thread.start()
        consumer = asyncio.create_task(take(reader))
        try:
            await until(lambda: len(reader.streams) == (4 if alone else 2))
            sent = 0
            for _ in range(2):
                for _ in range(200):
                    await publisher.submit(f"a/{sent % 8}", str(sent))
                    sent += 1
                await asyncio.sleep(0)  # so that a write is on its way
                time.sleep(BLOCKED)  # noqa: ASYNC251 (that is what is tested)
            await publisher.flush()
            await until(lambda: len({*mine, *theirs}) == sent)
            await until(lambda: len(reader.streams) == (4 if alone else 2))
            assert not consumer.done()
        finally:
            done.set()
            await stop([consumer])
            if not alone:
                await asyncio.to_thread(thread.join)
