"""A reader of epochs under chaos: says in one JSON line each what it was handed.

    python reader_program.py URL MODE START

MODE is ``atomic`` or ``eager``; START is JSON: ``"earliest"``, ``"latest"``, or positions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from typing import Any

import streamlease
from streamlease import errors
from streamlease.agent.epochs.epoch_items import Aborted, EpochBatch, EpochItem, Frontier, Snapshot
from streamlease.agent.epochs.epoch_reading import EpochMode
from streamlease.streams.epochs.boundary_reading import EpochsLost
from tests.chaos.saying import RETRY_SECONDS, say


def tell(item: EpochItem, positions: dict[str, int]) -> None:
    match item:
        case Snapshot():
            say(event="snapshot", lower=_flat(item.lower), upper=_flat(item.upper))
        case Frontier():
            say(event="frontier", lower=_flat(item.lower), positions=positions)
        case EpochBatch():
            ids = [message.payload.decode() for message in item.messages]
            say(event="epoch", epoch=item.epoch[0], ids=ids, of=[item.publisher, item.incarnation])
        case Aborted():
            say(event="aborted", of=[item.publisher, item.incarnation], epochs=_flat(item.epochs))


def _flat(frontier: tuple[tuple[int, ...], ...]) -> list[int]:
    return [epoch for (epoch,) in frontier]


async def main(url: str, mode: EpochMode, start: Any) -> None:
    while True:
        try:
            async with (
                streamlease.connect(url, embedded=False) as client,
                client.listen("e/#", start=start, epochs=mode) as items,
            ):
                say(event="reading", start=start)
                async for item in items:
                    tell(item, items.positions)
                    if isinstance(item, Frontier):
                        start = items.positions if mode == "atomic" else "latest"
        except EpochsLost as error:
            if mode != "eager":
                raise
            say(event="lost", error=str(error))  # what was open may be: begin again, as it says
            start = "latest"
        except (errors.StoreUnavailable, errors.Indefinite) as error:
            say(event="retried", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)


async def until_ended(url: str, mode: EpochMode, start: Any) -> None:
    reading = asyncio.ensure_future(main(url, mode, start))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reading.cancel)
    say(event="began")
    await asyncio.wait([reading])
    if not reading.cancelled():
        reading.result()
    say(event="left")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(
        until_ended(sys.argv[1], "eager" if sys.argv[2] == "eager" else "atomic", json.loads(sys.argv[3]))
    )
