"""Tasks that have an owner: none runs on alone, and none ends in silence.

A :class:`Supervisor` belongs to the object that starts the tasks. A task ends well by returning (unless it is
`endless`), or because its owner stops it. Every other end is an error of the owner: it is logged, with the
traceback if it is a defect, and handed to the owner as an error that can be shown to a person. So is a
``CancelledError`` that nobody asked for: it comes out of what the task waited for, and asyncio would say
nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any, TypeVar

from streamlease.protocol.errors import StreamleaseError, TaskFailed

AGAIN_SECONDS = 0.05
MOST_ROUNDS = 100

T = TypeVar("T")

Failed = Callable[[str, StreamleaseError], None]
"""Called on the event loop with the name of a task and why it ended; must not wait."""

_logger = logging.getLogger(__name__)


class Supervisor:
    """The tasks of one owner. Made and used on one event loop.

    Args:
        owner: who that is, for people: ``publisher ~abc``.
        failed: told once for each task that ended as it should not; a ``StreamleaseError`` as it is, anything
            else as ``TaskFailed`` with it as the cause. It is not told of tasks that are being stopped.
    """

    def __init__(self, owner: str, failed: Failed) -> None:
        self._owner = owner
        self._failed = failed
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they were started, which is that in which they are stopped."""

    def __len__(self) -> int:
        """How many tasks have not ended."""
        return len(self._tasks)

    def start(
        self,
        name: str,
        work: Coroutine[Any, Any, T],
        *,
        endless: bool = False,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Start a task.

        Args:
            name: what it does, for people.
            endless: it must not return either.
            context: as of ``asyncio.create_task``.
        """
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}", context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._ended(name, done, endless))
        return task

    async def close(self) -> None:
        """Stop the tasks and wait for their end; a task that closes its own supervisor is left out."""
        await stop(self._tasks)

    def _ended(self, name: str, task: asyncio.Task[Any], endless: bool) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if task.cancelling():
            if error is not None:
                _logger.debug("%s: %s was stopped, and ended by %r", self._owner, name, error)
        elif task.cancelled():
            self.tell(name, asyncio.CancelledError("nobody asked for it"))
        elif error is not None:
            self.tell(name, error)
        elif endless:
            self.tell(name, RuntimeError("it returned"))

    def tell(self, name: str, error: BaseException) -> None:
        """What the owner does under that name has ended by `error`; of tasks it is known without this."""
        if isinstance(error, StreamleaseError):
            _logger.error("%s: %s ended: %s", self._owner, name, error)
            self._failed(name, error)
        else:
            _logger.error("%s: %s ended by a defect", self._owner, name, exc_info=error)
            self._failed(name, task_failed(self._owner, name, error))


def task_failed(owner: str, name: str, error: BaseException) -> TaskFailed:
    """What `owner` says for `error`, which nobody foresaw."""
    cause = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    failed = TaskFailed(f"{owner}: {name} ended by a defect ({cause}): start it again, and report this")
    failed.__cause__ = error
    return failed


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Run `works` side by side until one of them ends; the others are stopped, and its error is raised.

    As a ``TaskGroup`` that ends with its first task; but an error is raised as it is, and what is stopped
    ends even if redis-py swallows a cancellation, see :func:`stop`.
    """
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await stop(tasks)
    for task in ended:
        task.result()


async def stop(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel `tasks` and wait for their end; what they raise is dropped.

    One cancellation is not always enough: ``asyncio.wait_for`` before Python 3.12, which redis-py uses for
    every write, swallows the one that comes while the write is just done. So it is repeated until it works.
    They are cancelled in the order in which they are given, so that a simulated run can be repeated.
    """
    left = [task for task in dict.fromkeys(tasks) if task is not asyncio.current_task()]
    cancelled: asyncio.CancelledError | None = None
    while left:
        for task in left:
            task.cancel()
        try:
            done, _ = await asyncio.wait(left, timeout=AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error  # whoever stops the caller waits until the caller's own tasks have ended
            continue
        left = [task for task in left if task not in done]
        for task in done:
            if not task.cancelled():
                task.exception()  # looked at, so that asyncio does not complain
    if cancelled is not None:
        raise cancelled


async def stop_all() -> None:
    """:func:`stop` all other tasks of this event loop, and those that begin while they end.

    What is overdue on a loop that stood still, or cleared up at an end, may begin some; not again and again,
    so what still begins after `MOST_ROUNDS` is left.
    """
    for _ in range(MOST_ROUNDS):
        await asyncio.sleep(0)  # what is overdue begins
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        await stop(others)
