"""A timer that has an owner: it rings once, at a time that may be moved, and never after it was closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Rings on the event loop on which it is set.

    Args:
        ring: called then; must not wait, and must not raise.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_set(self) -> bool:
        """Whether it will ring."""
        return self._handle is not None

    def set(self, when: float | None) -> None:
        """Ring at this time (s) of the loop's clock instead of any other; None: not at all."""
        if self._handle is not None and self._handle.when() != when:
            self._handle.cancel()
            self._handle = None
        if self._handle is None and when is not None and not self._is_closed:
            self._handle = asyncio.get_running_loop().call_at(when, self._rings)

    def close(self) -> None:
        """Ring no more."""
        self.set(None)
        self._is_closed = True

    def _rings(self) -> None:
        self._handle = None
        self._ring()
