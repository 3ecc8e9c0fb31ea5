"""Ending asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_SECONDS = 0.05


async def stop(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel `tasks` and wait for their end; what they raise is dropped.

    One cancellation is not always enough: ``asyncio.wait_for`` before Python 3.12, which redis-py uses for
    every write, swallows the one that comes while the write is just done. So it is repeated until it works.
    """
    left = {task for task in tasks if task is not asyncio.current_task()}
    cancelled: asyncio.CancelledError | None = None
    while left:
        for task in left:
            task.cancel()
        try:
            done, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error  # whoever stops the caller waits until the caller's own tasks have ended
            continue
        for task in done:
            if not task.cancelled():
                task.exception()  # looked at, so that asyncio does not complain
    if cancelled is not None:
        raise cancelled
