"""``python -m tests.services.server_program URL NAME LEASE_MS FILE``: a process that serves, until SIGTERM.

Each run of a handler adds a line with its number to FILE first. A negative number is never answered.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import streamlease
from streamlease.services import client_services
from tests.services.models import Score, Scored


async def main(url: str, name: str, lease_ms: str, file: str) -> None:
    client_services.LEASE_MS = int(lease_ms)
    ran = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with streamlease.connect(url) as client:

        async def score(request: Score) -> Scored:
            os.write(ran, b"%d\n" % request.x)
            if request.x < 0:
                await asyncio.Event().wait()
            return Scored(y=request.x / 2, by=name)

        async with client.serve("scorer", {Score: score}, limit=10_000):
            sys.stdout.write("serves\n")
            sys.stdout.flush()
            await over.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
