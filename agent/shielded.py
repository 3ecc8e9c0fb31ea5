"""Items of an asynchronous generator, which outlives those who wait for them.

A generator in which a wait is cancelled is over (PEP 525), so ``asyncio.timeout`` around ``anext`` would end
a subscription, and what it had just read would be lost. Here each step of the generator is a task of its own:
it goes on if nobody waits any more, and what it brings is handed out next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Generic, TypeVar

from streamlease.protocol.errors import InvalidOption
from streamlease.streams.tasks import stop

T = TypeVar("T")


def check_new(former: object, by: str) -> None:
    """What is read through a context manager is read once.

    Args:
        former: what it reads since it was entered; None: it was not.
        by: what makes another one.

    Raises:
        InvalidOption: it was entered before.
    """
    if former is not None:
        raise InvalidOption(f"it was entered before, and is entered once: make another one by {by}")


class ShieldedItems(Generic[T]):
    """The items, one after the other, to any number of tasks.

    Args:
        steps: of the generator; each brings some items. It is resumed once all of them are handed out.
        name: what the steps do, for people.
    """

    def __init__(self, steps: AsyncGenerator[Sequence[T]], name: str) -> None:
        self._steps = steps
        self._name = name
        self._step: asyncio.Task[None] | None = None
        self._stepped = asyncio.Event()
        """Set when a step has ended."""
        self._due: deque[T] = deque()
        self._error: BaseException | None = None
        """What ended the generator, until somebody is told."""
        self._closed = False

    async def next(self) -> T:
        """The next item.

        Raises:
            StopAsyncIteration: there is none any more.
            BaseException: what ended the generator. Asked again, there is nothing more.
        """
        while not self._due:
            error, self._error = self._error, None
            if error is not None:
                raise error
            if self._closed:
                raise StopAsyncIteration
            if self._step is None:
                self._stepped.clear()
                self._step = asyncio.get_running_loop().create_task(self._resume(), name=self._name)
            await self._stepped.wait()
        return self._due.popleft()

    def end(self, error: BaseException) -> None:
        """Hand out nothing more: who waits, or else who asks next, gets `error`."""
        if not self._closed:
            self._closed, self._error = True, error
            self._due.clear()
            self._stepped.set()

    async def close(self) -> None:
        """End the generator, wherever it is."""
        self._closed = True
        if self._step is not None:
            await stop([self._step])
        self._stepped.set()  # a step that is stopped before it has begun says nothing
        self._due.clear()
        await self._steps.aclose()

    async def _resume(self) -> None:
        try:
            items = await anext(self._steps)
            if not self._closed:
                self._due.extend(items)
        except asyncio.CancelledError as error:
            self._failed(error)
            raise
        except Exception as error:
            self._failed(error)
        finally:
            self._step = None
            self._stepped.set()

    def _failed(self, error: BaseException) -> None:
        if not self._closed:
            self._error = error
