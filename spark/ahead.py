"""Reading ahead: the next record batches are fetched while Spark's Java takes over the last one.

A Python worker hands a batch over through a socket and is blocked meanwhile; without reading ahead Redis and
Java would wait for each other in turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_BYTES = 16 * 1024 * 1024
"""How much may wait: a few chunks as a range reader fetches them, so that the next one is on its way."""


class _Line(Generic[T]):
    """What was made and is not taken yet. One thread puts, another takes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[T, int]] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._over = False
        self._unwanted = False
        self._error: BaseException | None = None

    def put(self, item: T, size: int) -> bool:
        """Wait for room, which is there while less than `most` waits; False if nobody wants the item."""
        with self._changed:
            self._changed.wait_for(lambda: self._unwanted or self._size < self._most)
            if self._unwanted:
                return False
            self._waiting.append((item, size))
            self._size += size
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes."""
        with self._changed:
            self._over, self._error = True, error
            self._changed.notify_all()

    def take(self) -> Iterator[T]:
        """All items, then the error if there was one."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._over)
                if not self._waiting:
                    break
                item, size = self._waiting.popleft()
                self._size -= size
                self._changed.notify_all()
            yield item
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """Nothing more is wanted."""
        with self._changed:
            self._unwanted = True
            self._changed.notify_all()


def ahead(
    source: Generator[T, None, None], size_of: Callable[[T], int], most: int = MOST_BYTES
) -> Iterator[T]:
    """What `source` gives, made ahead in a thread of its own while less than `most` waits.

    Ends the thread and closes `source` before it ends itself, also when it is closed early.

    Args:
        size_of: the size of an item, in the unit of `most`.
    """
    line: _Line[T] = _Line(most)

    def fetch() -> None:
        failure: BaseException | None = None
        try:
            for item in source:
                if not line.put(item, size_of(item)):
                    break
        except BaseException as error:
            failure = error
        finally:
            source.close()
            line.end(failure)

    thread = threading.Thread(target=fetch, name="streamlease-ahead", daemon=True)
    thread.start()
    try:
        yield from line.take()
    finally:
        line.leave()
        thread.join()
