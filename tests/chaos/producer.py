"""A producer under chaos: numbers the messages of each of its keys, and says which are acknowledged.

    python -m tests.chaos.producer URL NAME KEYS RATE [FIRST]

Message n of key k has the payload ``NAME.k:n`` and the topic ``a/NAME.k``. FIRST is the first number: a
process that follows a killed one goes on above all that was sent.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import sys
from collections.abc import Iterator
from functools import partial

import streamlease
from streamlease import errors
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.publish.receipts import Receipt
from tests.chaos.saying import RETRY_SECONDS, say


async def produce(
    publisher: Publisher, name: str, keys: int, rate: float, numbers: Iterator[int], leaving: asyncio.Event
) -> None:
    def acknowledged(message: str, done: Receipt) -> None:
        error = done.exception()
        if error is None:
            say(event="acknowledged", id=message)
        else:
            say(event="unacknowledged", id=message, error=f"{type(error).__name__}: {error}")

    for number in numbers:
        say(event="sending", number=number)
        for key in range(keys):
            message = f"{name}.{key}:{number}"
            placed = await publisher.submit(f"a/{name}.{key}", message, key=f"{name}.{key}")
            placed.add_done_callback(partial(acknowledged, message))
        try:
            async with asyncio.timeout(keys / rate):
                await leaving.wait()
                return
        except TimeoutError:
            continue


async def main(url: str, name: str, keys: int, rate: float, first: int = 0) -> None:
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    say(event="began")
    numbers = itertools.count(first)  # a new attempt goes on behind what may have been sent
    while True:
        try:
            async with (
                streamlease.connect(url) as client,
                client.publisher(delivery_timeout=300.0) as publisher,
            ):
                say(event="ready")
                await produce(publisher, name, keys, rate, numbers, leaving)
            break
        except (errors.StoreUnavailable, errors.Indefinite) as error:
            # From looking topics up: what is sent is repeated by the publisher itself.
            say(event="retried", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
    say(event="left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), *map(int, sys.argv[5:])))
