"""An event loop in a thread of its own, and classes that stand before it for callers that have none.

A :class:`Bridge` stands for an asynchronous object. Its methods are made from those of the object's class by
:func:`waiting`, :func:`at_once` and :func:`opening`, with their parameters, types and docstrings; what is
written by hand in a bridge is only what the asynchronous class does not have.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar

from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.streams.tasks import stop_all

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LoopThread:
    """Runs coroutines on a private event loop. Ends with the process if it is not stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._waiting: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def runs(self) -> bool:
        """Whether it was not stopped, and not left behind by a fork."""
        return not (self._loop.is_closed() or self.is_forked)

    @property
    def is_forked(self) -> bool:
        """Whether it runs in another process, from which this one was forked: nothing would answer here."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Whether it runs in this process.

        Raises:
            InvalidInput: the loop is stopped, or was left behind by a fork.
        """
        if self.is_forked:
            raise InvalidInput(
                f"the client was made in process {self._pid}, and this is {os.getpid()}, forked from it: "
                f"connect again here"
            )
        if self._loop.is_closed():
            raise InvalidInput("the client is closed: connect again")

    def call(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run `work` on the loop and wait for what it returns or raises.

        An interrupted wait, as by Ctrl-C, cancels it.

        Raises:
            TimeoutError: it took longer than `seconds`; it was cancelled.
            InvalidInput: as of `check`.
        """
        try:
            self.check()
        except InvalidInput:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def told(self, begin: Callable[[Future[T]], object]) -> T:
        """Have `begin` called on the loop with a future, which is to be told there; wait for what it is told.

        Cheaper than `call`, because nothing is made a task. An interrupted wait cancels nothing.

        Raises:
            InvalidInput: as of `check`.
        """
        self.check()
        future: Future[T] = Future()
        self._waiting.add(future)
        try:
            self._loop.call_soon_threadsafe(_begin, begin, future)
            return future.result()
        finally:
            self._waiting.discard(future)

    def soon(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop, without waiting.

        Raises:
            InvalidInput: as of `check`.
        """
        self.check()
        self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """End the loop; what still runs on it is cancelled. A second call does nothing, nor one in a fork."""
        if self._loop.is_closed() or self.is_forked:
            return
        asyncio.run_coroutine_threadsafe(stop_all(), self._loop).result()
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for future in [*self._waiting]:
            future.cancel()


def _begin(begin: Callable[[Future[T]], object], future: Future[T]) -> None:
    try:
        begin(future)
    except Exception as error:
        future.set_exception(error)


class Bridge(Generic[A]):
    """Stands for `inner`, which lives on `loop`."""

    def __init__(self, loop: LoopThread, inner: A) -> None:
        self._loop = loop
        self._inner = inner

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied, as for another process: it belongs to its "
            f"client. Connect where it is used, as in the function that a worker runs; messages may be sent"
        )

    def _bound(self, method: Callable[Concatenate[A, P], T]) -> Callable[P, T]:
        """`method` of `inner`, or what overrides it there."""
        bound: Callable[P, T] = getattr(self._inner, method.__name__)
        return bound


class _Manager(Protocol):
    """An asynchronous context manager."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...


M = TypeVar("M", bound=_Manager)


class ManagerBridge(Bridge[M]):
    """Stands for an asynchronous context manager, and is a context manager."""

    def __enter__(self) -> Self:
        self._loop.call(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._loop.is_forked:  # else it is open where it was made, and stays so
            self._leave(kind, error, traceback)

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """What comes at the end of the block."""
        self._loop.call(self._inner.__aexit__(kind, error, traceback))


class _Items(Protocol[T_co]):
    async def __anext__(self) -> T_co: ...


class Polled(ManagerBridge[M], Generic[M, T]):
    """Stands for what finds items of type `T`."""

    def __init__(self, loop: LoopThread, inner: M) -> None:
        super().__init__(loop, inner)
        self._found: T | None = None
        """What an interrupted wait has left for the next one."""

    def _next(self, items: _Items[T], seconds: float | None) -> T | None:
        """The next item; None if none came within `seconds`, or there is none any more.

        Raises:
            InvalidOption: `seconds` is no number.
        """
        if seconds is not None and (not isinstance(seconds, int | float) or math.isnan(seconds)):
            raise InvalidOption(f"seconds is {ascii(seconds)[:80]}: use a number, or None to wait for ever")
        if self._found is None:
            self._loop.call(self._find(items, seconds))
        found, self._found = self._found, None
        return found

    async def _find(self, items: _Items[T], seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                self._found = await items.__anext__()
        except (TimeoutError, StopAsyncIteration):
            return


class Ungrouped(Polled[M, T]):
    """Stands for a subscription without a group: a context manager and an iterator."""

    def __iter__(self) -> Iterator[T]:
        while (item := self.poll()) is not None:
            yield item

    def poll(self, seconds: float | None = None) -> T | None:
        """The next item; None if none came within `seconds`, or there is none any more."""
        items: Any = self._inner
        return self._next(items, seconds)


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Bridge[A], P], T]:
    """The method that runs `method` on the loop and waits for it."""

    @wraps(method)
    def blocking(bridge: Bridge[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return bridge._loop.call(bridge._bound(method)(*args, **kwargs))

    return blocking


def at_once(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Bridge[A], P], T]:
    """`method`, which may be called from any thread and never waits."""

    @wraps(method)
    def direct(bridge: Bridge[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return bridge._bound(method)(*args, **kwargs)

    return direct


def opening(
    method: Callable[Concatenate[A, P], B], bridged: Callable[[LoopThread, B], T]
) -> Callable[Concatenate[Bridge[A], P], T]:
    """The method that calls `method`, which makes an object of the loop's, and returns a bridge to that."""

    @wraps(method)
    def blocking(bridge: Bridge[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def make() -> B:
            return bridge._bound(method)(*args, **kwargs)

        return bridged(bridge._loop, bridge._loop.call(make()))

    return blocking
