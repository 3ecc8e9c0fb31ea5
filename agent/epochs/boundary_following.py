"""Follows the boundaries of the spaces whose epochs the consumer of a group reads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from streamlease.agent.epochs.epoch_parts import EpochParts
from streamlease.agent.epochs.parts_ahead import PartsAhead
from streamlease.protocol.epochs.order import bottom
from streamlease.protocol.errors import StoreRefused, StoreUnavailable
from streamlease.protocol.seldom import Seldom
from streamlease.streams.epochs.beginning import begin_before
from streamlease.streams.epochs.boundary_reading import AT_ONCE, EpochsLost, Vouched, check_there, is_same
from streamlease.streams.epochs.news import EpochNews
from streamlease.streams.epochs.stored import bounds_command, newest_command, parse_bounds, parse_newest
from streamlease.streams.log.many import RETRY_SECONDS
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.spaces import Space
from streamlease.streams.tasks import Supervisor

LOOK_SECONDS = 1.0
"""How often boundaries are looked for, whatever is pushed."""

log = logging.getLogger(__name__)


class BoundaryFollowing:
    """Reads boundaries as they come, and finds the place of each stream that is granted.

    Args:
        tasks: of the consumer, who is told if boundaries cannot be read.
    """

    def __init__(self, redis: AsyncRedis, spaces: Sequence[Space], tasks: Supervisor) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._spaces = spaces
        self._tasks = tasks
        self._changed = {space.name: asyncio.Event() for space in spaces}
        self._lineages: dict[str, str] = {}
        """Of which data the newest boundaries were read, by space; empty if the server does not tell."""

    def find(self, space: str) -> None:
        """More boundaries of a space are wanted, or the place of a stream."""
        self._changed[space].set()

    def start(self, parts: EpochParts) -> None:
        """Begin to follow."""
        news = EpochNews(self._redis, self._tasks)
        for space in self._spaces:
            news.watch(space.name, self._changed[space.name])
            self._tasks.start(f"boundaries of {space.name}", self._follow(space, parts), endless=True)

    async def _follow(self, space: Space, parts: EpochParts) -> None:
        ahead, changed = parts.spaces[space.name], self._changed[space.name]
        while True:
            changed.clear()
            try:
                more = await self._turn(space, ahead, parts)
            except (StoreUnavailable, StoreRefused) as error:
                self._seldom.warning("reading the boundaries of space %s: %s", space.name, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            parts.look_ready()
            if not more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await changed.wait()

    async def _turn(self, space: Space, ahead: PartsAhead, parts: EpochParts) -> bool:
        """Read the next boundaries; whether there may be others behind them.

        Raises:
            Unsupported: one cannot be read.
            StoreUnavailable, StoreRefused.
        """
        if ahead.unknown or ahead.newest is None:
            places = {stream: held.position for stream, held in ahead.unknown.items()}
            before = await begin_before(self._redis, space, places)
            lower = before.bound.lower if before.bound is not None else None
            if before.number == 0:
                lower = (bottom(space.epochs),)
            ahead.found(before, lower, places)
        after, newest = ahead.next_after(), ahead.newest
        assert after is not None
        assert newest is not None
        replies = await ask(
            self._redis, [newest_command(space.name), bounds_command(space.name, max(0, after - 1), AT_ONCE)]
        )
        if newest != ahead.newest:
            return True
        recorded, lineage = parse_newest(space.name, replies[0])
        found = parse_bounds(space.name, replies[1])
        other = False
        if after and found and found[0].number == after:
            other = after == newest and ahead.last is not None and not is_same(found[0], ahead.last)
            del found[0]
        if other or recorded < newest:
            _lost(space.name, newest, parts)
            return False
        self._lineages[space.name] = lineage
        ahead.came(after, found)
        return bool(found)

    async def stands(self, space: str, parts: EpochParts) -> bool:
        """Whether the boundaries that were read are still there: behind reading what they say, and before
        handing that out. If nobody can tell, it is said to be gone, after a while.
        """
        ahead = parts.spaces.get(space)
        newest, last = (ahead.newest, ahead.last) if ahead is not None else (None, None)
        if newest is None:
            return True  # no part of it is known, so nothing is handed out
        try:
            (reply,) = await ask(self._redis, [newest_command(space)])
            recorded, lineage = parse_newest(space, reply)
            if recorded >= newest and (last is None or lineage == self._lineages.get(space)):
                return True
            if last is not None:
                await check_there(self._redis, Vouched.of(space, last), "its streams are read again")
                return True
        except EpochsLost:  # told below, by whoever notices first
            log.debug("boundary %d of space %s is lost", newest, space)
        except (StoreUnavailable, StoreRefused) as error:
            self._seldom.warning("reading the boundaries of space %s: %s", space, error)
            await asyncio.sleep(RETRY_SECONDS)
            return False
        if ahead is not None and ahead.newest is not None:  # else it is begun anew already
            _lost(space, newest, parts)
            self.find(space)
        return False


def _lost(space: str, newest: int, parts: EpochParts) -> None:
    log.warning(
        "boundary %d of space %s is not there as it was read: Redis lost it, as in a failover; its "
        "streams are read on from where they are", newest, space,
    )  # fmt: skip
    parts.lost(space)
