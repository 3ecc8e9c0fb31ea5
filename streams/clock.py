"""The clock of this process: seconds that never run backwards, from any moment on.

On an event loop it is the loop's own clock, so everything on a loop of virtual time follows that time
(`streamlease.testing.timelines.loops`); in any other thread it is the same clock of the operating system.
"""

from __future__ import annotations

import asyncio
import time


def seconds() -> float:
    """Seconds of this process' clock."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


def milliseconds() -> int:
    """The same in milliseconds."""
    return int(seconds() * 1000)
