"""Messages on their way from a thread to a publisher on its event loop, without a wait for each.

To have the loop do something and to wait for it costs two changes of threads, a hundred times what `submit`
itself does. So a small message with which nothing can be wrong is left in a queue that the loop empties; what
may be refused at once, or is large, goes the way of all other calls, behind what is in the queue.

A thread that sends one message after the other, and waits for each, is *lent* that work (``Singles.lend``):
it appends the next ones itself, on a connection of its own, with the sequences of the same lanes. While the
loan lasts, the loop sends nothing for this publisher, so an append is never under way twice. The loan ends

* before any other method of the publisher is called, and when something is to be sent on the loop all the
  same; if a thread is just appending, it gives the loan back behind that;
* with every message that does not come out as appended: the loop goes on with it, by its own rules.

`_state` guards who has the loan; nothing that waits is done under it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from streamlease.agent.loop import LoopThread, ManagerBridge
from streamlease.protocol.errors import Indefinite, InvalidInput, StreamleaseError
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME, HeadersInput
from streamlease.streams.log.stencils import appended_at
from streamlease.streams.publish.publisher import Payload, Placed
from streamlease.streams.publish.publisher import Publisher as AsyncPublisher
from streamlease.streams.publish.sending.singles import Alone
from streamlease.streams.redis.connection import connect_blocking
from streamlease.streams.redis.lines.blocking_line import BlockingLine
from streamlease.streams.redis.wire import BlockingServer
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from types import TracebackType

MOST_MESSAGES = 1024
"""So many wait at most, beyond what the publisher holds."""

MOST_BYTES = 4096
"""Payload and key of a small message."""

AFTER = 8
"""So many messages are sent one by one before the work is lent."""

_Waiting = tuple[str, bytes, bytes | None, datetime | int | None]

P = ParamSpec("P")
T = TypeVar("T")


class Lent:
    """The loan of one publisher, and the connection for it.

    Args:
        url: the Redis of `publisher`.
    """

    def __init__(self, loop: LoopThread, publisher: AsyncPublisher, url: str) -> None:
        self._loop = loop
        self._publisher = publisher
        self._url = url
        self._redis: BlockingServer | None = None
        self._line: BlockingLine | None = None
        self._state = threading.Lock()
        self._loan = 0
        self._appending = False
        self._sent = 0
        """Messages that were sent one by one since something else was done."""

    def sent(self) -> None:
        """A message was sent alone, on the loop: from some on, borrow the work."""
        self._sent += 1
        if self._sent >= AFTER and self._publisher.lends:
            self._sent = 0
            self._loop.told(self._borrow)

    def _borrow(self, done: Future[None]) -> None:
        with self._state:
            if not self._loan:
                self._loan = self._publisher.singles.lend(self.recall)
        done.set_result(None)

    def recall(self) -> None:
        """End the loan, if there is one; from any thread."""
        self._sent = 0
        if self._loan:
            with self._state:
                loan, self._loan = self._loan, 0
                idle = not self._appending
            if loan and idle:
                self._give_back(loan)

    def send(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None,
        headers: HeadersInput | None,
        timestamp: datetime | int | None,
    ) -> Placed | None:
        """Append one message within the loan; None if there is none, or the message is not for it.

        Raises:
            As ``Publisher.send``.
        """
        with self._state:
            if not self._loan or self._appending or not self._loop.runs:
                return None
            loan, self._appending = self._loan, True
        try:
            begun = self._publisher.singles.begin(topic, payload, key, headers, timestamp)
            return None if begun is None else self._append(loan, *begun)
        finally:
            with self._state:
                self._appending = False
                recalled = self._loan != loan
            if recalled:
                self._give_back(loan)

    def close(self) -> None:
        """Close the connection. Nothing is sent any more."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _append(self, loan: int, alone: Alone, packed: bytes) -> Placed:
        try:
            reply = self._asked(packed)
        except BaseException:  # interrupted: it is there, or it may come
            alone.lane.renew()
            raise
        offset = appended_at(reply)
        if offset is not None:
            return self._publisher.singles.appended(alone, offset)
        with self._state:
            if self._loan == loan:
                self._loan = 0
        self._sent = 0
        try:
            placed = self._loop.told(self._taking_over(loan, alone, reply))
        except (InvalidInput, CancelledError):
            raise _closed() from None
        assert placed is not None  # or an error came out
        return placed

    def _taking_over(self, loan: int, alone: Alone, reply: Any) -> Callable[[Future[Placed | None]], None]:
        def begin(placed: Future[Placed | None]) -> None:
            part = self._publisher.singles.take_over(loan, alone, reply)
            if part is None:
                raise _closed()
            part.tell(0, placed)

        return begin

    def _asked(self, packed: bytes) -> Any:
        """The reply of Redis; an error that says why nothing was sent; None if no reply came."""
        if self._line is None or not self._line.is_open:
            try:
                self._line = self._opened()
            except StreamleaseError as error:
                return error
        return self._line.ask(packed)

    def _opened(self) -> BlockingLine:
        if self._line is not None:
            self._line.close()
        if self._redis is None:
            redis = connect_blocking(self._url, answer_seconds=self._publisher.answer_seconds)
            assert isinstance(redis, BlockingServer)  # a publisher to a cluster lends nothing
            self._redis = redis
        return BlockingLine(self._redis)

    def _give_back(self, loan: int) -> None:
        if self._loop.runs:
            self._loop.soon(lambda: self._publisher.singles.take_back(loan))


def _closed() -> Indefinite:
    return Indefinite("the publisher was closed before an answer came: it was written, or it was not")


def _behind(
    method: Callable[Concatenate[AsyncPublisher, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Publisher, P], T]:
    """The method that runs `method` on the loop behind what was submitted, and waits for it."""

    @wraps(method)
    def blocking(publisher: Publisher, /, *args: P.args, **kwargs: P.kwargs) -> T:
        publisher._lent.recall()

        async def both() -> T:
            await publisher._empty()
            return await publisher._bound(method)(*args, **kwargs)

        return publisher._loop.call(both())

    return blocking


class Publisher(ManagerBridge[AsyncPublisher]):
    """``client.publisher()``; see ``streamlease.streams.publish.publisher.Publisher``."""

    def __init__(self, loop: LoopThread, publisher: AsyncPublisher, url: str) -> None:
        super().__init__(loop, publisher)
        self._lent = Lent(loop, publisher, url)
        self._waiting: deque[_Waiting] = deque()
        self._emptying = asyncio.Lock()
        self._called = False
        """Whether the loop is about to look into the queue."""
        self._calling = threading.Lock()
        self._error: Exception | None = None
        self._tasks = Supervisor(f"publisher {publisher.id}", lambda _, error: self._failed(error))

    def _leave(
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
        diff: int | None = None,
    ) -> Placed:
        """Publish one message and wait until it is written, as the asynchronous ``send`` does."""
        plain = not self._waiting and diff is None
        placed = self._lent.send(topic, payload, key, headers, timestamp) if plain else None
        if placed is not None:
            return placed
        if plain and type(topic) is str and not self._waiting and self._inner.singles.can_write(topic):

            def begin(placed: Future[Placed | None]) -> None:
                alone = None
                if not self._waiting and not self._emptying.locked():
                    alone = self._inner.singles.write(topic, payload, key, headers, timestamp)
                if alone is None:
                    placed.set_result(None)
                else:
                    alone.tell(placed)

            placed = self._loop.told(begin)
            if placed is not None:
                self._lent.sent()
                return placed
        return self._send(topic, payload, key, headers, timestamp, diff)

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
        diff: int | None = None,
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
            and diff is None
            and (timestamp is None or (type(timestamp) is int and FIRST_TIME <= timestamp < LAST_TIME))
            and len(payload) + len(key or b"") <= MOST_BYTES
            and len(self._waiting) < MOST_MESSAGES
            and self._inner.knows(topic)
        ):
            self._lent.recall()
            self._waiting.append((topic, payload, key, timestamp))
            with self._calling:
                called, self._called = self._called, True
            if not called:
                self._loop.soon(self._look)
        else:
            self._submit(topic, payload, key, headers, timestamp, diff)

    _submit = _behind(AsyncPublisher.submit)

    def flush(self) -> None:
        """Wait until all that was submitted is written; raises the first error of what was not."""
        self._flush()
        self._raise()

    _flush = _behind(AsyncPublisher.flush)

    def close(self) -> None:
        """Flush, then end."""
        try:
            self._close()
        finally:
            self._lent.close()
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
