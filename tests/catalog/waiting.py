"""Waiting for what the catalog is to show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

SECONDS = 20.0


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Until it holds."""
    async with asyncio.timeout(SECONDS):
        while not await condition():  # noqa: ASYNC110 - it is in Redis, which tells nobody
            await asyncio.sleep(0.01)
