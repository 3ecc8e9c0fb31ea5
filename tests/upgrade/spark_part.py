"""A Spark query with its checkpoint, in the middle of a batch."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.spark.world import Checkpoint, Seen, World

STREAMS = 2


async def write(url: str) -> dict[str, Any]:
    """As the module says."""
    return await asyncio.to_thread(_write, url)


def _write(url: str) -> dict[str, Any]:
    world = World(url, STREAMS)
    try:
        world.lead()
        world.publish(7)
        query = world.query(maxOffsetsPerTrigger=6)
        query.run(lambda: len(query.checkpoint.rows) >= 6)
        query.run_until("sunk")
        store = query.checkpoint
        query.stop()
    finally:
        world.close()
    rows = {str(batch): [list(row) for row in found] for batch, found in store.sink.items()}
    return {"offsets": store.offsets, "commits": store.commits, "sink": rows, "published": 7}


async def read(url: str, done: Any) -> dict[str, Any]:
    """What the group has committed."""
    return await asyncio.to_thread(_read, url)


def _read(url: str) -> dict[str, Any]:
    world = World(url, STREAMS)
    try:
        return {"committed": world.committed}
    finally:
        world.close()


async def go_on(url: str, done: Any) -> None:
    """The query goes on from its checkpoint: each message once."""
    await asyncio.to_thread(_go_on, url, done)


def _go_on(url: str, done: Any) -> None:
    world = World(url, STREAMS)
    try:
        world.published.update(dict.fromkeys(world.streams, done["published"]))
        world.begin_anew()
        world.lead()
        sink_of_query = {int(batch): [Seen(*row) for row in rows] for batch, rows in done["sink"].items()}
        store = Checkpoint(done["offsets"], done["commits"], sink_of_query)
        query = world.query(store, maxOffsetsPerTrigger=6)
        world.publish(5)
        query.run(lambda: len(store.rows) == world.total)
        assert world.check(store) == Counter()
        query.stop()
    finally:
        world.close()
