"""Calls about the same topic take turns, in the order in which they were made.

A call may have to wait on its way: for the definition of a space, for room in the buffer. Whoever came later
and need not wait would overtake it. So each call draws a turn for its topics at once, does what needs no
order (such as a look-up), and waits then until it is the first of all its topics. All turns of a call are
drawn in one act, so two calls never wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from types import TracebackType


class Turns:
    """The calls that are under way, by topic."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[Turn]] = {}
        """The calls under way by topic, in order."""

    def draw(self, topics: Iterable[str]) -> Turn:
        """The next turn for each of `topics`, which differ. Leave it: use it in a ``with``."""
        return Turn(self.queues, tuple(topics))


class Turn:
    """The place of one call in the queues of its topics."""

    __slots__ = ("_behind", "_come", "_queues", "_topics")

    def __init__(self, queues: dict[str, deque[Turn]], topics: tuple[str, ...]) -> None:
        self._queues = queues
        self._topics = topics
        self._behind = 0
        """In how many queues it is not the first."""
        self._come: asyncio.Future[None] | None = None
        for topic in topics:
            queue = queues.get(topic)
            if queue is None:
                queues[topic] = deque((self,))
            else:
                queue.append(self)
                self._behind += 1

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for topic in self._topics:
            queue = self._queues[topic]
            if queue[0] is not self:
                queue.remove(self)
                continue
            queue.popleft()
            if queue:
                queue[0]._moved_up()
            else:
                del self._queues[topic]

    async def come(self) -> None:
        """Wait until it is the first of all its topics."""
        if self._behind and self._come is None:
            self._come = asyncio.get_running_loop().create_future()
            await self._come

    def _moved_up(self) -> None:
        self._behind -= 1
        if not self._behind and self._come is not None and not self._come.done():
            self._come.set_result(None)
