"""Snapshots of collections: one of the leader hosts makes them, for late subscribers and for retention.

::

    claim --> which streams have many changes behind their snapshot --> make one of each, in turn

A claim saves work and protects nothing: `streams/collections/snapshots.py` says what does. A snapshot is due
when there are half as many changes behind the last one as it has items, so each change is read some three
times in all. After each the host rests for as long as that took, so its leaders are never short of time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from streamlease.hosts.claim import Claim
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.seldom import Seldom
from streamlease.registry import keys
from streamlease.streams.collections.points import newest_point
from streamlease.streams.collections.snapshots import StoredSnapshot, look_at_snapshots, make_snapshot
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.damaged import attempt
from streamlease.streams.spaces.spaces import Space, SpaceStore

log = logging.getLogger(__name__)

CLAIM = keys.SNAPSHOTS
"""The name under which the claim stands."""

INTERVAL_SECONDS = 5.0

LEAST_CHANGES = 1000
"""Fewer are read at once anyway."""


def is_due(stored: StoredSnapshot, end: int) -> bool:
    """Whether a stream that ends there is worth another snapshot. Pure."""
    return end - stored.upto >= max(LEAST_CHANGES, stored.messages // 2)


class SnapshotMaker:
    """The snapshots of one leader host.

    Args:
        clock: this process' own clock in milliseconds.
        rest: waits for so many seconds.
        spaces: those of the whole host, if it hears of each definition that changes; None: its own, which it
            reads in each round.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        clock: Callable[[], int],
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
        spaces: SpaceStore | None = None,
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._rest = rest
        self._seldom = Seldom(log)
        self._look = SpaceStore(redis).look if spaces is None else spaces.recent
        self._claim = Claim(redis, CLAIM, host, clock, INTERVAL_SECONDS)

    async def round(self) -> list[StreamId]:
        """Make the snapshots that are due, if this host has the claim; of which streams.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        spaces = [one for one in (await self._look()).listed if one.collection]
        if not spaces or not await self._claim.get():
            return []
        made: list[StreamId] = []
        for space in spaces:
            done, why = await attempt(self._make_due(space))
            made += done or []
            if why:
                self._seldom.warning("no snapshot of space %s: %s", space.name, why)
        return made

    async def _make_due(self, space: Space) -> list[StreamId]:
        # The snapshots first: what is read later ends behind them.
        stored, damaged = await look_at_snapshots(self._redis, space.streams())
        for stream, why in damaged.items():
            self._seldom.warning("no snapshot of %s: %s", stream, why)
        point = await newest_point(self._redis, space)
        made: list[StreamId] = []
        for stream, former in stored.items():
            end = point.ends.get(stream, 0)
            if (
                is_due(former, end)
                and await self._claim.get()
                and await self._make(space, stream, end, former)
            ):
                made.append(stream)
        return made

    async def close(self) -> None:
        """Let another host have the claim at once.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: it expires by itself.
        """
        await self._claim.give_up()

    async def _make(self, space: Space, stream: StreamId, end: int, former: StoredSnapshot) -> bool:
        at = self._clock()
        try:
            done = await make_snapshot(self._redis, space, stream, end, former)
        except StreamleaseError as error:
            log.warning("no snapshot of %s: %s", stream, error, extra={"stream": str(stream)})
            return False
        await self._rest((self._clock() - at) / 1000)
        return done is not None
