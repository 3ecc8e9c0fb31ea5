"""A host watches the leaders of the others, so that the groups of a dead one are led again soon.

They are taken over when their ttl is over, not a ttl after somebody missed them. All hosts watch; for each
group they take turns in an order that differs from group to group, so that the survivors share a dead host's
leaders.

Most leaderships are kept by a pulse of their host (`registry/pulses.py`), so a look is at the pulses. Records
are read where no pulse keeps them; of the others some in turn, and all when a pulse has stopped, for the dead
host may lead groups of which this one has not heard. Since when there was no pulse, it has seen all the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from streamlease.leader.runner import Runner, now_ms
from streamlease.protocol.errors import StreamleaseError
from streamlease.registry import hosts, keys, leadership, pulses
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.registry.pulses import Pulse
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.5
GROUPS_EVERY = 8
"""At each eighth look at other leaders, the list of groups is read anew."""

IN_TURN = 8
"""So many records of a server are read at each look though a pulse keeps them, or nobody leads."""

TURN_MS = 300
"""How long a host leaves a dead host's group to the one whose turn is before its own."""

PAGE = 250
"""Groups in one exchange."""


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
        self._host = host
        self._config = config
        self._runners = runners
        self._groups = Groups(redis)
        self._watched: dict[str, Candidacy] = {}
        self._looks = 0
        self._pulses: dict[Pulse, tuple[int, int]] = {}
        """When each pulse was, by the clock of Redis, and since when this host has seen that, by its own."""
        self._stopped: set[Pulse] = set()
        """Pulses that have stopped, after which all records were read."""
        self._overdue: dict[str, str] = {}
        """Group -> its dead host, as the present look finds them."""
        self._servers = PerServer(redis, tasks, keys.leader, self._look, WATCH_SECONDS)

    def candidacy(self, group: str) -> Candidacy:
        """What is known so far of who leads the group, to go on from there."""
        known = self._watched.get(group)
        if known is not None:
            return known
        return Candidacy(group, self._host, self._host, self._config, declared=True)

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
        watched = {group: known for group in groups if (known := self._watched.get(group)) is not None}
        tags = {
            known.watch.record.pulse.tag for known in watched.values() if known.watch.record.pulse is not None
        }
        try:
            read_at, stopped = await self._hear(
                {pulses.tag_beside(self._redis, keys.leader(groups[0])), *tags}
            )
        except StreamleaseError as error:
            log.warning("the pulses of other hosts cannot be looked at: %s", error)
            return
        in_turn = -(-len(watched) // IN_TURN)
        read = [
            group
            for place, (group, known) in enumerate(watched.items())
            if stopped or not self._is_quiet(known, read_at) or (place + self._looks) % in_turn == 0
        ]
        if await self._read(read):
            self._stopped |= stopped

    async def _hear(self, tags: Set[str]) -> tuple[int, set[Pulse]]:
        """Note the pulses with these tags: the time of Redis, and which have stopped since the last look."""
        given, read_at = await pulses.read_all(self._redis, tags)
        now = now_ms()
        for pulse in [pulse for pulse in self._pulses if pulse.tag in tags and pulse not in given]:
            del self._pulses[pulse]
        for pulse, at in given.items():
            if self._pulses.get(pulse, (None, 0))[0] != at:
                self._pulses[pulse] = at, now
        still = {
            pulse
            for pulse, (_, since) in self._pulses.items()
            if pulse.tag in tags and now - since >= self._config.ttl
        }
        self._stopped = {pulse for pulse in self._stopped if pulse.tag not in tags or pulse in still}
        return read_at, still - self._stopped

    def _is_quiet(self, known: Candidacy, read_at: int) -> bool:
        """Whether its record need not be read: nobody leads, or a pulse shows that the leader lives."""
        record = known.watch.record
        if known.watch.since is None:
            return False
        if not record.held:
            return not record.damage
        if record.pulse is None or record.pulse not in self._pulses:
            return False
        at, since = self._pulses[record.pulse]
        return not known.observe(replace(record, renewed_at=at, read_at=read_at), now_ms(), since)

    async def _read(self, groups: Sequence[str]) -> bool:
        """Read these records, and note whose host is dead; whether all could be read."""
        overdue, whole = self._overdue, True
        for begin in range(0, len(groups), PAGE):
            page = groups[begin : begin + PAGE]
            try:
                records = await leadership.read_all(self._redis, page)
            except StreamleaseError as error:
                log.warning("the leaders of %d groups cannot be looked at: %s", len(page), error)
                whole = False
                continue
            for group, record in records.items():
                known = self._watched.get(group)
                if known is None:
                    continue
                at, since = self._pulses.get(record.pulse, (None, None)) if record.pulse else (None, None)
                unchanged = since if record.renewed_at == at else None
                if known.observe(record, now_ms(), unchanged) and record.held and record.host != self._host:
                    overdue[group] = record.host
        return whole

    def _is_due(self, group: str, dead: str, alive: Sequence[str], now: int) -> bool:
        order = sorted((host for host in alive if host != dead), key=lambda host: _rank(group, host))
        turn = order.index(self._host) if self._host in order else len(order)
        since = self._watched[group].watch.since
        return since is not None and now - since >= self._config.ttl + turn * TURN_MS


def _rank(group: str, host: str) -> bytes:
    return hashlib.sha256(f"{group}\n{host}".encode()).digest()
