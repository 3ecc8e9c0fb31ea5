"""Who waits for the answers of a query's machine."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from streamlease.protocol.errors import StreamleaseError


class Calls:
    """The calls that are not answered, the oldest first: one of Spark's, and one that stops the query."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[Any]] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, waiter: asyncio.Future[Any]) -> bool:
        return waiter in self._waiters

    def begin(self) -> asyncio.Future[Any]:
        """One call more; what it waits for."""
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def give_up(self, waiter: asyncio.Future[Any]) -> None:
        """Nobody waits for it any more; does nothing for one that is answered."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def answer(self, answer: Any) -> None:
        """Answer the oldest."""
        waiter = self._waiters.popleft()
        if not waiter.done():
            waiter.set_result(answer)

    def refuse(self, error: StreamleaseError) -> None:
        """The oldest has failed."""
        waiter = self._waiters.popleft()
        if not waiter.done():
            waiter.set_exception(error)
