"""A process that publishes epochs under a name: ``python publishing_program.py URL NAME UNTIL ROWS``.

It goes on from what it holds, sends ROWS messages at each epoch, ``NAME EPOCH NUMBER``, and gives it up; at
UNTIL it ends well. Each step is a line of its output.
"""

from __future__ import annotations

import asyncio
import sys

import streamlease
from streamlease.protocol.errors import Fenced


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(url: str, name: str, until: int, rows: int) -> int:
    async with streamlease.connect(url, embedded=False) as client:
        try:
            async with client.epoch_publisher("clicks", name) as publisher:
                ((first,),) = publisher.frontier
                for epoch in range(first, until):
                    say(f"begin {epoch}")
                    for number in range(rows):
                        payload = f"{name} {epoch} {number}".encode()
                        await publisher.submit(f"clicks/{number % 7}", payload, epoch=epoch)
                        if number % 50 == 0:
                            await asyncio.sleep(0)
                    await publisher.advance(epoch + 1)
                    say(f"end {epoch}")
        except Fenced as error:
            say(f"fenced {error}")
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
