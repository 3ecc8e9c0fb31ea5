"""Messages on their way from a thread to a publisher on its event loop, without a wait for each.

To have the loop do something and to wait for it costs two changes of threads, a hundred times what `submit`
itself does. So a small message with which nothing can be wrong is left in a queue that the loop empties; what
may be refused at once, or is large, goes the way of all other calls, behind what is in the queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.entries.messages import FIRST_TIME, LAST_TIME
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from types import TracebackType

    from streamlease.streams.publish.publisher import Publisher

MOST_MESSAGES = 1024
"""So many wait at most, beyond what the publisher holds."""

MOST_BYTES = 4096
"""Payload and key of a small message."""

_Waiting = tuple[str, bytes, bytes | None, int | None]


class LoopLike(Protocol):
    """The event loop of a blocking client."""

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do `work` in the loop and wait for it."""

    def soon(self, callback: Callable[[], object]) -> None:
        """Have `callback` called in the loop, without waiting."""


class Handover:
    """The queue in front of `publisher`. `submit` may be called by several threads, all else on the loop."""

    def __init__(self, loop: LoopLike, publisher: Publisher) -> None:
        self._loop = loop
        self._publisher = publisher
        self._waiting: deque[_Waiting] = deque()
        self._emptying = asyncio.Lock()
        self._called = False
        """Whether the loop is about to look into the queue."""
        self._calling = threading.Lock()
        self._error: Exception | None = None
        self._tasks = Supervisor(f"publisher {publisher.id}", lambda _, error: self._failed(error))

    def submit(self, topic: str, payload: Any, key: Any, headers: Any, timestamp: Any) -> None:
        """See ``Publisher.submit``; from any thread but the loop's.

        Raises:
            StreamleaseError: also what became of an earlier message that was left in the queue.
        """
        if self._error is not None:
            self._raise()
        if (
            type(payload) is bytes
            and (key is None or type(key) is bytes)
            and not headers
            and (timestamp is None or (type(timestamp) is int and FIRST_TIME <= timestamp < LAST_TIME))
            and len(payload) + len(key or b"") <= MOST_BYTES
            and len(self._waiting) < MOST_MESSAGES
            and self._publisher.knows(topic)
        ):
            self._waiting.append((topic, payload, key, timestamp))
            with self._calling:
                called, self._called = self._called, True
            if not called:
                self._loop.soon(self._look)
        else:
            self._loop.call(self._submit(topic, payload, key, headers, timestamp))

    async def _submit(self, topic: str, payload: Any, key: Any, headers: Any, timestamp: Any) -> None:
        await self.empty()
        await self._publisher.submit(topic, payload, key, headers, timestamp)

    def _look(self) -> None:
        with self._calling:
            self._called = False
        if self._waiting and not self._emptying.locked():
            self._tasks.start("taking over what was submitted", self.empty())

    def _failed(self, error: StreamleaseError) -> None:
        """What waits is not handed over any more, and the next call says why."""
        self._error = self._error or error
        self._waiting.clear()

    async def empty(self) -> None:
        """Hand over what is in the queue, in order."""
        async with self._emptying:
            try:
                while self._waiting:
                    topic, payload, key, timestamp = self._waiting[0]
                    try:
                        await self._publisher.submit(topic, payload, key, None, timestamp)
                    except Exception as error:
                        self._error = self._error or error
                    self._waiting.popleft()
            finally:
                if self._waiting:  # cancelled
                    asyncio.get_running_loop().call_soon(self._look)

    async def flush(self) -> None:
        """See ``Publisher.flush``."""
        await self.empty()
        await self._publisher.flush()
        self._raise()

    async def close(self) -> None:
        """See ``Publisher.close``."""
        await self.empty()
        await self._publisher.close()
        self._raise()

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error that comes of it does not hide `error`."""
        try:
            await self.close()
        except StreamleaseError:
            if error is None:
                raise

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
