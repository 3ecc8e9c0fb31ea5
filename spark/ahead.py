"""Reading ahead: the next record batches are fetched while Spark's Java takes over the last one.

A Python worker hands a batch over through a socket and is blocked meanwhile; without reading ahead Redis and
Java would wait for each other in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import Full, Queue
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 0.05
"""How often a full queue is looked at, to see whether anybody still wants what is in it."""


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def ahead(source: Generator[T, None, None], most: int = 2) -> Iterator[T]:
    """What `source` gives, made up to `most` items ahead in a thread of its own.

    Ends the thread and closes `source` before it ends itself, also when it is closed early.
    """
    ready: Queue[T | _End] = Queue(most)
    unwanted = threading.Event()

    def put(item: T | _End) -> bool:
        while not unwanted.is_set():
            try:
                ready.put(item, timeout=PATIENCE_SECONDS)
            except Full:
                continue
            return True
        return False

    def fetch() -> None:
        end = _End()
        try:
            for item in source:
                if not put(item):
                    break
        except BaseException as error:
            end = _End(error)
        finally:
            source.close()
            put(end)

    thread = threading.Thread(target=fetch, name="streamlease-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        unwanted.set()
        thread.join()
