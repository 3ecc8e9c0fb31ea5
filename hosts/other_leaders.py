"""A host watches the leaders of the others, so that the groups of a dead one are led again soon.

They are taken over when their ttl is over, not a ttl after somebody missed them. All hosts watch; for each
group they take turns in an order that differs from group to group, so that the survivors share a dead host's
leaders. What they look at, `registry/lookout.py` says.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence

from streamlease.leader.runner import Runner
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.registry import hosts, keys
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.registry.lookout import Lookout
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.5
GROUPS_EVERY = 8
"""At each eighth look at other leaders, the list of groups is read anew."""

TURN_MS = 300
"""How long a host leaves a dead host's group to the one whose turn is before its own."""


class OtherLeaders:
    """What one host knows of the leaders of others."""

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        config: LeadershipConfig,
        runners: Mapping[str, Runner],
        tasks: Supervisor,
    ) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._host = host
        self._config = config
        self._runners = runners
        self._groups = Groups(redis)
        self._watched: dict[str, Candidacy] = {}
        self._looks = 0
        self._lookout = Lookout(redis, config.ttl, now_ms)
        self._overdue: dict[str, str] = {}
        """Group -> its dead host, as the present look finds them."""
        self._servers = PerServer(redis, tasks, keys.leader, self._look, WATCH_SECONDS)

    def candidacy(self, group: str) -> Candidacy:
        """What is known so far of who leads the group, to go on from there."""
        known = self._watched.get(group)
        if known is not None:
            return known
        return Candidacy(group, self._host, self._host, self._config, declared=True)

    def hosts(self) -> set[str]:
        """Who leads groups, as it was read last."""
        return {known.watch.record.host for known in self._watched.values() if known.watch.record.held}

    async def turn(self) -> list[str]:
        """Look at the leaders of other hosts; the groups of dead ones that are this host's to take."""
        await asyncio.sleep(WATCH_SECONDS)
        if self._looks % GROUPS_EVERY == 0:
            groups = {shared.id for shared in await self._groups.list()}
            self._watched = {group: self.candidacy(group) for group in groups}
        self._looks += 1
        overdue = self._overdue = {}
        await self._servers.turn([group for group in self._watched if group not in self._runners])
        if not overdue:
            return []
        alive = [host.host for host in await hosts.alive(self._redis)]
        now = now_ms()
        return [group for group, dead in overdue.items() if self._is_due(group, dead, alive, now)]

    async def _look(self, groups: Sequence[str]) -> None:
        """Look at the leaders of groups of one server."""
        overdue = self._overdue
        watches = {group: known.watch for group in groups if (known := self._watched.get(group)) is not None}
        try:
            dead = await self._lookout.look(watches, self._looks)
        except StreamleaseError as error:
            self._seldom.warning("the leaders of %d groups cannot be looked at: %s", len(watches), error)
            return
        overdue.update((group, host) for group, host in dead.items() if host != self._host)

    def _is_due(self, group: str, dead: str, alive: Sequence[str], now: int) -> bool:
        order = sorted((host for host in alive if host != dead), key=lambda host: _rank(group, host))
        turn = order.index(self._host) if self._host in order else len(order)
        since = self._watched[group].watch.since
        return since is not None and now - since >= self._config.ttl + turn * TURN_MS


def _rank(group: str, host: str) -> bytes:
    return hashlib.sha256(f"{group}\n{host}".encode()).digest()
