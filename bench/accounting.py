"""Accounting: what the running sum of bytes costs an append.

The append script as it is, and the same without the sum, run in turn on one Redis: single messages awaited
one by one, and entries of 1,000 messages. Printed are medians per append.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections.abc import Iterator

from bench.frame import Frame, Table, clear
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row, encode_rows
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.redis.connection import connect
from streamlease.streams.redis.scripts import Script, load_script

APPENDS = 2000
LOOP = """  for i = begin + 6, to do
    size = size + #ARGV[i]
  end
"""
SUM = ", 'bytes', string.format('%.0f', size)"


def _without_sum() -> Script:
    """The append script as it would be without the sum."""
    script = load_script("streamlease.streams.log", "append")
    if LOOP not in script.text or SUM not in script.text:
        raise SystemExit("the append script has changed: adapt bench/accounting.py")
    text = script.text.replace(LOOP, "").replace(SUM, "").replace("'bytes', 'schema'", "'next', 'schema'")
    if "'bytes'" in text:
        raise SystemExit("the append script has changed: adapt bench/accounting.py")
    return Script("without the sum", text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


async def _micros(url: str, appends: int, runs: int) -> dict[int, dict[str, float]]:
    redis = connect(url)
    log = AsyncLog(redis)
    scripts = {"with the sum": load_script("streamlease.streams.log", "append"), "without": _without_sum()}
    found = {}
    for size in (1, 1000):
        entry = encode_rows([Row(f"bench/{n % 100}", b"x" * 100, b"key") for n in range(size)])
        seconds: dict[str, list[float]] = {name: [] for name in scripts}
        for turn in range(runs):
            for place, (name, script) in enumerate(scripts.items()):
                stream = StreamId("bench", turn, place + 2 * size)
                await log.open([stream])
                call = Append(stream, "~bench", 1, 0, entry).call
                for sequence in range(appends):
                    arguments = list(call.args)
                    arguments[2] = sequence
                    began = time.perf_counter()
                    await script.run(redis, call.keys, arguments)
                    seconds[name].append(time.perf_counter() - began)
                clear(url)
        found[size] = {name: statistics.median(times) * 1e6 for name, times in seconds.items()}
    await redis.aclose()
    return found


def measure(frame: Frame) -> Iterator[Table]:
    """Microseconds per append, with and without the sum."""
    appends = min(APPENDS, frame.messages)
    with frame.server() as url:
        found = asyncio.run(_micros(url, appends, frame.runs))
    table = Table(
        f"One append in µs, median of {appends * frame.runs:,}",
        ("messages in the entry", "with the sum", "without"),
    )
    for size, micro in found.items():
        table.rows.append((str(size), *(f"{each:.1f}" for each in micro.values())))
    yield table
