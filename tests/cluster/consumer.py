"""A consumer as a user would write it, run as a process: prints one JSON line for each thing that happens.

    python consumer.py URL SUBSCRIPTION [--session-timeout S] [--hold]

With ``--hold`` it waits for a line on standard input between printing a batch and committing it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import streamlease


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps({**fields, "at": time.time()}) + "\n")
    sys.stdout.flush()


async def main(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    async with (
        streamlease.connect(options.url) as client,
        client.subscribe(
            options.subscription, start="earliest", max_batch=20, session_timeout=options.session_timeout
        ) as reader,
    ):
        say(event="ready")
        async for batch in reader:
            numbers = [int(message.payload) for message in batch.messages]
            say(event="got", stream=str(batch.stream), start=batch.start, end=batch.end, numbers=numbers)
            if options.hold:
                await loop.run_in_executor(None, sys.stdin.readline)
            try:
                await batch.commit()
            except streamlease.StreamleaseError as error:
                say(event="refused", error=type(error).__name__, numbers=numbers)
            else:
                say(event="committed", stream=str(batch.stream), end=batch.end, numbers=numbers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("subscription")
    parser.add_argument("--session-timeout", type=float, default=3.0)
    parser.add_argument("--hold", action="store_true")
    asyncio.run(main(parser.parse_args()))
