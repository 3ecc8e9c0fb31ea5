"""A consumer under chaos: says in one JSON line each what it got, and what became of its commits.

    python -m tests.chaos.consumer URL SUBSCRIPTION SESSION_TIMEOUT [NAME]

SIGTERM lets it commit what it has and leave in good order.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time

import streamlease
from streamlease import errors
from streamlease.agent.subscription import Batch, SharedReader
from tests.chaos.saying import RETRY_SECONDS, say

WORK_SECONDS = 0.01
"""What the user's work on a batch takes."""

STILL_SECONDS = 1.0


async def watch() -> None:
    """Say when this process stood still for longer than `STILL_SECONDS`, and how much it computed then."""
    at, computed = time.time(), time.process_time()
    while True:
        await asyncio.sleep(STILL_SECONDS / 5)
        now, used = time.time(), time.process_time()
        if now - at > STILL_SECONDS:
            say(event="stood still", began=at, computed=round(used - computed, 3))
        at, computed = now, used


async def take(reader: SharedReader, leaving: asyncio.Event) -> Batch | None:
    """The next batch, or None once it shall leave."""
    coming = asyncio.ensure_future(anext(reader))
    asked = asyncio.ensure_future(leaving.wait())
    await asyncio.wait({coming, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if coming.done():
        return coming.result()
    coming.cancel()
    return None


async def consume(reader: SharedReader, leaving: asyncio.Event) -> None:
    while not leaving.is_set() and (batch := await take(reader, leaving)) is not None:
        ids = [message.payload.decode() for message in batch.messages]
        where = {"stream": str(batch.stream), "start": batch.start, "end": batch.end}
        say(event="got", **where, lease_epoch=batch.held.lease_epoch, ids=ids)
        await asyncio.sleep(WORK_SECONDS)
        try:
            await batch.commit()
        except streamlease.StreamleaseError as error:
            say(event="refused", **where, error=type(error).__name__)
        else:
            say(event="committed", **where)


async def main(url: str, subscription: str, session_timeout: float, name: str | None = None) -> None:
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    say(event="began")
    while not leaving.is_set():
        try:
            async with (
                streamlease.connect(url) as client,
                client.subscribe(
                    subscription,
                    start="earliest",
                    name=name,
                    max_batch=20,
                    session_timeout=session_timeout,
                ) as reader,
            ):
                say(event="ready")
                watching = asyncio.create_task(watch())
                try:
                    await consume(reader, leaving)
                finally:
                    watching.cancel()
        except (errors.StoreUnavailable, errors.Indefinite) as error:
            say(event="retried", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
    say(event="left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:]))
