"""Whether this process is known not to have stood still: if it has, its leases may be others' by now."""

from __future__ import annotations

import asyncio

STOOD_STILL = 0.5
"""A longer time (s) between two ticks of the agent: whether the leases still stand is not known."""


class Wakefulness:
    """Hears the ticks of the agent. Used on one event loop."""

    def __init__(self) -> None:
        self._ticked = asyncio.Event()
        self._ticked_at = 0.0

    def tick(self, now: int) -> None:
        """The agent has looked what it has lost, if anything."""
        self._ticked_at = asyncio.get_running_loop().time()
        self._ticked.set()

    def is_known(self) -> bool:
        """Whether the process has run all the time since the agent looked."""
        return asyncio.get_running_loop().time() - self._ticked_at <= STOOD_STILL

    async def known(self) -> None:
        """Wait until it is."""
        while not self.is_known():
            self._ticked.clear()
            await self._ticked.wait()
