"""Processes of the archive at scale: ``python -m bench.scale_process publish|consume REDIS COUNT``.

Each prints, as one line of JSON, its sums (``bench.scale_sums``), its seconds, and those of them in which it
summed up what it had read.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from bench.scale_sums import ROWS, Source, Sums
from streamlease.agent.client import connect

PATIENCE = 3600.0
"""Seconds for which a publisher that is held back tries to send a part."""


async def publish(url: str, count: int) -> dict[str, Any]:
    """As fast as Redis takes them."""
    source = Source()
    async with connect(url) as client, client.publisher(delivery_timeout=PATIENCE) as publisher:
        began = time.perf_counter()
        for first in range(0, count, ROWS):
            topic, batch = source.batch(first)
            await publisher.submit_batch(topic, batch)
        await publisher.flush()
        seconds = time.perf_counter() - began
    return {"sums": source.sums.of, "seconds": seconds, "summing": 0.0}


async def consume(url: str, count: int) -> dict[str, Any]:
    """One consumer of a new group, from the earliest message on; each batch is committed.

    Raises:
        SystemExit: a message is missing, or comes again.
    """
    sums, summing, at = Sums(), 0.0, dict[str, int]()
    async with connect(url) as client:
        began = time.perf_counter()
        async with client.subscribe("$shared/scale/bench/#", start="earliest") as batches:
            async for batch in batches:
                stream = str(batch.stream)
                if batch.start != at.get(stream, 0):
                    raise SystemExit(f"{stream} goes on at {batch.start} behind {at.get(stream, 0)}")
                at[stream] = batch.end
                before = time.perf_counter()
                sums.add(batch.to_arrow())
                summing += time.perf_counter() - before
                await batch.commit()
                if sums.of["count"] >= count:
                    break
        return {"sums": sums.of, "seconds": time.perf_counter() - began, "summing": summing}


if __name__ == "__main__":
    what, redis, number = sys.argv[1:]
    told = asyncio.run({"publish": publish, "consume": consume}[what](redis, int(number)))
    sys.stdout.write(json.dumps(told) + "\n")
