"""Which of the leader hosts tells Prometheus of all declared groups, and what it tells.

One of them does, so that each group is told once: the one that has been there longest. All see in the same
place who is there, so nothing is spent between two scrapes. A host that dies is followed as soon as its sign
of life is too old (`registry/hosts.py`). For the moment of a change two hosts, or none, may tell: rules take
the greatest value of each subscription, over the last minutes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence

from streamlease.hosts.signals.group_signals import GroupSignals, StreamsOfGroups, read_signals
from streamlease.protocol.errors import StreamleaseError
from streamlease.registry import hosts
from streamlease.registry.groups import Groups
from streamlease.registry.hosts import HostInfo
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore

log = logging.getLogger(__name__)

FRESH_SECONDS = 2.0
"""For so long what was read is told again: several that scrape cost no more than one."""


def exporter_of(alive: Sequence[HostInfo]) -> str | None:
    """The host that tells of all groups; None if there is none. Pure.

    Hosts of former versions, which do not say since when they are there, do not.
    """
    able = [(host.since, host.host) for host in alive if host.since]
    return min(able, default=(sys.maxsize, None))[1]


class Exporter:
    """That of one host.

    Args:
        clock: this process' own, in milliseconds.
    """

    def __init__(self, redis: AsyncRedis, host: str, clock: Callable[[], int]) -> None:
        self._redis = redis
        self._host = host
        self._clock = clock
        self._groups = Groups(redis)
        self._spaces = SpaceStore(redis)
        self._streams = StreamsOfGroups()
        self._one = asyncio.Lock()
        self._read_at: int | None = None
        self._read: list[GroupSignals] | None = None

    async def signals(self) -> list[GroupSignals] | None:
        """All declared groups; None if another host tells of them, or Redis does not answer."""
        async with self._one:
            now = self._clock()
            if self._read_at is None or now - self._read_at >= FRESH_SECONDS * 1000:
                self._read = await self._look()
                self._read_at = now
            return self._read

    async def _look(self) -> list[GroupSignals] | None:
        try:
            if exporter_of(await hosts.alive(self._redis)) != self._host:
                return None
            return await read_signals(self._redis, self._groups, self._spaces, self._streams)
        except StreamleaseError as error:
            log.warning("how the groups stand is not known: %s", error)
            return None
