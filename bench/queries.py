"""Submitted queries: from the submit to the program behind its `join`, without Spark.

An executor as a process of its own, and Redis. `client` is the time from the call of `submit` in a client
that is connected; `command` is that of ``streamlease submit``, which starts Python first.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from bench.frame import Frame, Table, percentile
from streamlease.agent.client import connect
from streamlease.queries import files, store, submitting
from streamlease.queries.core.signed_orders import Job, check_key
from streamlease.registry.spawn import queue_client

KEY = "a key for benches, 0123456789"
TIMES = 8
PROGRAM = """
import sys, time
import streamlease
query = streamlease.queries.join()
with open(f"{sys.argv[1]}.{query.worker}", "w") as file:
    file.write(f"{time.time()} {time.process_time()}")
"""


def measure(frame: Frame) -> Iterator[Table]:
    """A row for each way to submit and number of workers."""
    table = Table(
        f"From the submit to the program behind its join, s, {TIMES} times",
        ("by", "workers", "p50", "highest", "processor of a program up to there, p50"),
    )
    with frame.server() as url, tempfile.TemporaryDirectory() as folder:
        table.rows.extend(asyncio.run(_all(url, Path(folder))))
    yield table


async def _all(url: str, folder: Path) -> list[tuple[str, str, str, str, str]]:
    env = {**os.environ, "STREAMLEASE_REDIS_URL": url, "STREAMLEASE_SUBMIT_KEY": KEY}
    command = [sys.executable, "-m", "streamlease.admin"]
    words = [*command, "executor", "--name", "bench", "--ports", "23000-23009"]
    executor = await asyncio.create_subprocess_exec(*words, env=env, stderr=subprocess.DEVNULL)
    program = folder / "job.py"
    program.write_text(PROGRAM)
    try:
        async with connect(url) as client:
            while not (await store.look(client.redis)).executors:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            queue = queue_client(url)

            async def by_client(workers: int, mark: str) -> None:
                file = files.file_of(program.name, program.read_bytes())
                job = Job(
                    query=submitting.new_query(), name="bench", workers=workers, placement="random",
                    arguments=(mark,), program=file, spawn_ms=60_000, grace_ms=1000, who="bench",
                )  # fmt: skip
                await submitting.submit(client.redis, queue, check_key(KEY), job, [program.read_bytes()])

            async def by_command(workers: int, mark: str) -> None:
                words = [*command, "submit", "--workers", str(workers), str(program), "--", mark]
                process = await asyncio.create_subprocess_exec(*words, env=env, stdout=subprocess.DEVNULL)
                await process.wait()

            ways: list[tuple[str, int, Callable[[int, str], Awaitable[None]]]] = [
                ("client", 1, by_client),
                ("client", 2, by_client),
                ("command", 1, by_command),
            ]
            rows = []
            for name, workers, submit in ways:
                took = [await _once(folder, f"{name}-{workers}-{n}", workers, submit) for n in range(TIMES)]
                waited, computed = zip(*took, strict=True)
                rows.append(
                    (
                        name,
                        str(workers),
                        f"{percentile(waited, 50):.2f}",
                        f"{max(waited):.2f}",
                        f"{percentile(computed, 50):.2f}",
                    )
                )
            queue.close()
            return rows
    finally:
        executor.terminate()
        await executor.wait()


async def _once(
    folder: Path, name: str, workers: int, submit: Callable[[int, str], Awaitable[None]]
) -> tuple[float, float]:
    """Seconds until all workers were there, and the processor time of the one that took the most."""
    began = time.time()
    mark = folder / name
    submitted = asyncio.ensure_future(submit(workers, str(mark)))
    marks = [folder / f"{name}.{worker}" for worker in range(workers)]
    while not all(one.exists() and " " in one.read_text() for one in marks):  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.005)
    await submitted
    found = [[*map(float, one.read_text().split())] for one in marks]
    return max(at for at, _ in found) - began, max(computed for _, computed in found)
