"""A publisher of epochs under chaos: says in one JSON line each what it gives up, and what became of that.

    python publisher_program.py URL NAME BEGAN

Epochs are numbers of `EPOCH_SECONDS` since BEGAN, as seconds of the clock; a publisher that was away skips
some. Message n of an epoch has the payload ``ATTEMPT/EPOCH/n``, where each connection under the name is
another attempt: what one attempt had open is dropped when the next one comes. SIGTERM lets it leave well.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator

import streamlease
from streamlease import errors
from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from tests.chaos.saying import RETRY_SECONDS, say

EPOCH_SECONDS = 0.25
ROWS = 12
TOPICS = 5


async def advance(publisher: EpochPublisher, to: int) -> None:
    """Without an answer it may have happened: the same again is no harm."""
    while True:
        try:
            await publisher.advance(to)
            return
        except (errors.Indefinite, errors.StoreUnavailable) as error:
            say(event="retried", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)


async def publish(publisher: EpochPublisher, attempt: str, began: float, leaving: asyncio.Event) -> None:
    while not leaving.is_set():
        ((held,),) = publisher.frontier
        epoch = max(held, int((time.time() - began) / EPOCH_SECONDS))
        for number in range(ROWS):
            await publisher.submit(f"e/{number % TOPICS}", f"{attempt}/{epoch}/{number}", epoch=epoch)
        say(event="giving up", attempt=attempt, epoch=epoch)
        await advance(publisher, epoch + 1)
        say(event="gave up", attempt=attempt, epoch=epoch)
        try:
            async with asyncio.timeout(max(0.0, began + (epoch + 1) * EPOCH_SECONDS - time.time())):
                await leaving.wait()
        except TimeoutError:
            continue


async def main(url: str, name: str, began: float) -> None:
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    say(event="began")
    attempts: Iterator[int] = itertools.count(1)
    while not leaving.is_set():
        attempt = f"{name}.{os.getpid()}.{next(attempts)}"
        try:
            async with (
                streamlease.connect(url, embedded=False) as client,
                client.epoch_publisher("e", name) as publisher,
            ):
                say(event="ready", attempt=attempt, frontier=publisher.frontier)
                await publish(publisher, attempt, began, leaving)
        except (errors.StoreUnavailable, errors.Indefinite, errors.Fenced) as error:
            say(event="retried", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(RETRY_SECONDS)
    say(event="left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
