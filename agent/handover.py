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
from concurrent.futures import Future
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from streamlease.agent.loop import LoopThread, ManagerBridge
from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME, HeadersInput
from streamlease.streams.publish.publisher import Payload, Placed
from streamlease.streams.publish.publisher import Publisher as AsyncPublisher
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from types import TracebackType

MOST_MESSAGES = 1024
"""So many wait at most, beyond what the publisher holds."""

MOST_BYTES = 4096
"""Payload and key of a small message."""

_Waiting = tuple[str, bytes, bytes | None, datetime | int | None]

P = ParamSpec("P")
T = TypeVar("T")


def _behind(
    method: Callable[Concatenate[AsyncPublisher, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Publisher, P], T]:
    """The method that runs `method` on the loop behind what was submitted, and waits for it."""

    @wraps(method)
    def blocking(publisher: Publisher, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def both() -> T:
            await publisher._empty()
            return await publisher._bound(method)(*args, **kwargs)

        return publisher._loop.call(both())

    return blocking


class Publisher(ManagerBridge[AsyncPublisher]):
    """``client.publisher()``; see ``streamlease.streams.publish.publisher.Publisher``."""

    def __init__(self, loop: LoopThread, publisher: AsyncPublisher) -> None:
        super().__init__(loop, publisher)
        self._waiting: deque[_Waiting] = deque()
        self._emptying = asyncio.Lock()
        self._called = False
        """Whether the loop is about to look into the queue."""
        self._calling = threading.Lock()
        self._error: Exception | None = None
        self._tasks = Supervisor(f"publisher {publisher.id}", lambda _, error: self._failed(error))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; an error that comes of it does not hide `error`."""
        try:
            self.close()
        except StreamleaseError:
            if error is None:
                raise

    def send(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
    ) -> Placed:
        """Publish one message and wait until it is written, as the asynchronous ``send`` does."""
        if type(topic) is str and not self._waiting and self._inner.can_send_at_once(topic):

            def begin(placed: Future[Placed | None]) -> None:
                alone = None
                if not self._waiting and not self._emptying.locked():
                    alone = self._inner.send_at_once(topic, payload, key, headers, timestamp)
                if alone is None:
                    placed.set_result(None)
                else:
                    alone.tell(0, placed)

            placed = self._loop.told(begin)
            if placed is not None:
                return placed
        return self._send(topic, payload, key, headers, timestamp)

    _send = _behind(AsyncPublisher.send)
    send_many = _behind(AsyncPublisher.send_many)
    send_batch = _behind(AsyncPublisher.send_batch)

    def submit(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
    ) -> None:
        """Hand over one message, waiting only while the buffer is full; its error comes out of ``flush``.

        Raises:
            InvalidTopic, InvalidInput, MessageTooLarge, UnknownSpace, SchemaMismatch: it cannot be published.
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
            and self._inner.knows(topic)
        ):
            self._waiting.append((topic, payload, key, timestamp))
            with self._calling:
                called, self._called = self._called, True
            if not called:
                self._loop.soon(self._look)
        else:
            self._submit(topic, payload, key, headers, timestamp)

    _submit = _behind(AsyncPublisher.submit)

    def flush(self) -> None:
        """Wait until all that was submitted is written; raises the first error of what was not."""
        self._flush()
        self._raise()

    _flush = _behind(AsyncPublisher.flush)

    def close(self) -> None:
        """Flush, then end."""
        self._close()
        self._raise()

    _close = _behind(AsyncPublisher.close)

    def _look(self) -> None:
        with self._calling:
            self._called = False
        if self._waiting and not self._emptying.locked():
            self._tasks.start("taking over what was submitted", self._empty())

    def _failed(self, error: StreamleaseError) -> None:
        """What waits is not handed over any more, and the next call says why."""
        self._error = self._error or error
        self._waiting.clear()

    async def _empty(self) -> None:
        """Hand over what is in the queue, in order."""
        async with self._emptying:
            try:
                while self._waiting:
                    topic, payload, key, timestamp = self._waiting[0]
                    try:
                        await self._inner.submit(topic, payload, key, None, timestamp)
                    except Exception as error:
                        self._error = self._error or error
                    self._waiting.popleft()
            finally:
                if self._waiting:  # cancelled
                    asyncio.get_running_loop().call_soon(self._look)

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
