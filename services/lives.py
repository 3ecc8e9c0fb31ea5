"""The lives of a serving process, one after the other: an address, a stream of requests, and a lease each.

A life is over when its lease has passed, by Redis or by the process' own clock: others may have given it up.
It does not go back. The next one has a new address and an empty stream, and serves the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

from streamlease.services import keys, registration
from streamlease.services.core.admission import Admission
from streamlease.services.directory import Directory
from streamlease.services.registration import LeaseGone, ServedRow
from streamlease.streams.redis.always import ask_always
from streamlease.streams.redis.connection import AsyncRedis, Command, ask
from streamlease.streams.redis.scripts import load_script

_UNBIND = load_script("streamlease.services", "unbind")
NOTHING_READ = b"0-0"


class ReadStream:
    """How far a stream was read."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.last = NOTHING_READ
        self.read = 0
        """Entries since the last trim."""


class Lives:
    """Of one endpoint.

    Args:
        endpoint: its id.
        directory: told what the clock of Redis says.
    """

    def __init__(self, redis: AsyncRedis, endpoint: str, lease_ms: int, directory: Directory) -> None:
        self._redis = redis
        self._endpoint = endpoint
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._life = 0
        self._renewed_at: float | None = None
        """When it was asked for the lease that it holds now; None: it holds none."""
        self.lease_ms = lease_ms
        self.served: dict[str, ServedRow] = {}
        """What is served in this life and those to come, by name."""
        self.requests = ReadStream(keys.requests(self.address))
        self.admission = Admission()

    @property
    def address(self) -> str:
        """Where requests are taken, in this life."""
        return f"{self._endpoint}.{self._life}"

    @property
    def holds(self) -> bool:
        """Whether it has a lease, as far as it knows."""
        return self._renewed_at is not None

    @property
    def has_lapsed(self) -> bool:
        """Whether others may have given up this life."""
        at = self._renewed_at
        return at is not None and self._loop.time() - at >= self.lease_ms / 1000

    async def begin(self) -> None:
        """Begin the next life.

        Raises:
            ServiceConflict: others serve such a name with other types.
            StoreUnavailable, StoreRefused, Indefinite: it may be begun again.
        """
        former = self.requests.key
        self._life += 1
        self.requests, self.admission = ReadStream(keys.requests(self.address)), Admission()
        await make_stream(self._redis, self.requests.key, self._endpoint, self.lease_ms)
        await self.hold()
        # The read under way looks at the former stream: an entry without frames ends it.
        key = keys.answers(self._endpoint)
        wake: Command = ("XADD", key, "NOMKSTREAM", "*", "f", self._endpoint, "n", 0)
        await ask_always(self._redis, [("DEL", former), wake])

    async def hold(self, *, renew: bool = False) -> bool:
        """Hold the lease with what is served now; whether it could be renewed.

        Raises:
            As `begin`.
        """
        began = self._loop.time()
        rows = [
            ServedRow(one.row.model_copy(update={"server": self.address}), one.types)
            for one in self.served.values()
        ]
        held = await registration.hold(self._redis, self.address, self.lease_ms, rows, renew=renew)
        if isinstance(held, LeaseGone):
            return False
        self._directory.set_clock(held, began)
        self._renewed_at = began
        return True

    async def renew(self, *, stands: bool) -> bool:
        """Renew the lease; whether another life had to begin.

        Args:
            stands: the stream of requests was still there.

        Raises:
            As `begin`.
        """
        if stands and not self.has_lapsed and await self.hold(renew=True):
            return False
        await self.begin()
        return True

    async def end(self) -> list[list[bytes]]:
        """Give up the lease, and end the stream; the entries that were not read.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: the lease will pass.
        """
        self._renewed_at = None
        await registration.leave(self._redis, self.address)
        left: list[Any] = await _UNBIND.run(self._redis, [self.requests.key], [self.requests.last])
        return [fields for _, fields in left]


async def make_stream(redis: AsyncRedis, key: str, sender: str, ms: int) -> None:
    """Make a stream to which others can add entries, for so long.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    _, lasts = await ask_always(redis, [("XADD", key, "*", "f", sender, "n", 0), ("PEXPIRE", key, ms)])
    if not lasts:  # it was made a moment later, because Redis is out of memory
        await ask(redis, [("PEXPIRE", key, ms)])
