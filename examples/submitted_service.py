"""One submitted query serves, another one calls it.

Start an executor, and submit this file twice::

    streamlease submit submitted_service.py -- serve
    streamlease submit submitted_service.py --wait -- call 20

The calls find the server by its name, on whichever executor it runs, and wait until it is there.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from pydantic import BaseModel

import streamlease


class Distance(BaseModel):
    """How far is it?"""

    origin: str
    hops: int


class Miles(BaseModel):
    miles: int
    by: str
    """The query that answered."""


async def serve(query: str) -> None:
    """Answer until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)

    async def distance(request: Distance) -> Miles:
        return Miles(miles=request.hops * 100, by=query)

    async with streamlease.connect() as client, client.serve("distance", {Distance: distance}):
        await over.wait()


async def call(count: int) -> None:
    """Ask so often, and print the sum."""
    async with streamlease.connect() as client:
        requests = [Distance(origin="JFK", hops=hops) for hops in range(count)]
        calls = [client.call("distance", one, answer=Miles, wait=30) for one in requests]
        answers = await asyncio.gather(*calls)
    print(sum(one.miles for one in answers), {one.by for one in answers})  # noqa: T201


if __name__ == "__main__":
    own = streamlease.queries.join()
    asyncio.run(serve(own.id) if sys.argv[1] == "serve" else call(int(sys.argv[2])))
