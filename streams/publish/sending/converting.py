"""The first Python values that become columns make pyarrow import pandas, if that is installed."""

from __future__ import annotations

import asyncio

from streamlease.streams.entries.decoding import prepare


class Converting:
    """Whether that was done. A thread does it: the event loop may have leases, which must not wait for it."""

    def __init__(self) -> None:
        self.done = False

    async def ready(self) -> None:
        """Values may be converted now without a wait."""
        if not self.done:
            await asyncio.to_thread(prepare)
            self.done = True


converting = Converting()
