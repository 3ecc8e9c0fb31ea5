"""How a blocking command runs asynchronous work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from streamlease.admin.common_options import chosen_url

if TYPE_CHECKING:
    from streamlease.agent.client import Client

T = TypeVar("T")
Item = TypeVar("Item")

AT_ONCE = 8
"""How many questions about different things are under way at once."""


def with_client(redis: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, check the server, do `work`, and leave in good order."""
    from streamlease.agent.client import connect

    async def main() -> T:
        async with connect(chosen_url(redis)) as client:
            return await work(client)

    return asyncio.run(main())


async def for_each(items: Iterable[Item], work: Callable[[Item], Awaitable[T]]) -> list[T]:
    """`work` for all items, some at once; results in the order of the items."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: Item) -> T:
        async with limit:
            return await work(item)

    return list(await asyncio.gather(*(one(item) for item in items)))
