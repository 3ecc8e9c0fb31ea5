"""What only the attention list tells: of epochs, queries and dead letters, and what changed among the hosts.

The first is read seldom, by the board, for it costs more than a look; a fact that this user of Redis may not
read is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamlease.admin.doctor.held_epochs import HeldEpochs, held_back
from streamlease.admin.facts.epochs import SpaceEpochs
from streamlease.admin.facts.hosts import Host
from streamlease.admin.ui.board_rows import GroupOnPage
from streamlease.queries import store
from streamlease.queries.core.record import QueryOutcome, QueryRecord
from streamlease.registry import keys
from streamlease.registry.hosts import is_client
from streamlease.streams.log.times import server_time
from streamlease.streams.redis.connection import ask
from streamlease.streams.redis.damaged import attempt

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.streams.spaces.spaces import Space

STUCK_SECONDS = 60.0
"""A frontier that has stood still for so long, while others wait, is held back."""

RECENT_MS = 24 * 3600 * 1000
"""A query that failed is worth a word for so long."""

MOST_SPACES, MOST_GROUPS = 50, 500
BAD_ENDS = (QueryOutcome.FAILED, QueryOutcome.LOST, QueryOutcome.ABORTED)


@dataclass(frozen=True, slots=True)
class SlowFacts:
    """What one slow look found."""

    epochs: Sequence[HeldEpochs] = ()
    """Spaces whose epochs somebody holds back."""
    failed: Sequence[QueryRecord] = ()
    """Queries that ended badly, and that nothing has replaced; the newest first."""
    letters: Mapping[str, int] = field(default_factory=dict)
    """How many dead letters of each group nobody has replayed; by subscription."""


class SlowLooks:
    """Reads them; it remembers what was behind at the last look, as a keeper needs a moment."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._behind: dict[str, int] = {}

    async def read(self, spaces: Iterable[Space], letters: Mapping[SharedSubscription, int]) -> SlowFacts:
        """As they are now.

        Args:
            letters: the groups that ever had dead letters, and how many.

        Raises:
            StoreUnavailable, Indefinite.
        """
        seen = []
        timeouts = {space.name: space.epochs_timeout_ms / 1000 for space in spaces if space.epochs}
        for space in [one for one in spaces if one.epochs][:MOST_SPACES]:
            found, _ = await attempt(SpaceEpochs.read(self._client.redis, space))
            seen += [found] if found is not None else []
        queries, _ = await attempt(self._failed())
        left, _ = await attempt(self._letters(letters))
        return SlowFacts(self._held(seen, timeouts), queries or (), left or {})

    def _held(self, seen: Sequence[SpaceEpochs], timeouts: Mapping[str, float]) -> list[HeldEpochs]:
        before, self._behind = self._behind, {one.space: one.boundary for one in seen if one.behind}
        found = []
        for one in seen:
            kept = before.get(one.space) == one.boundary  # behind twice, and no boundary in between
            shown = one if kept or not one.behind else one.model_copy(update={"behind": False})
            if (held := held_back(shown, STUCK_SECONDS, timeouts[one.space])) is not None:
                found.append(held)
        return found

    async def _failed(self) -> list[QueryRecord]:
        since = await server_time(self._client.redis) // 1000 - RECENT_MS
        found = [
            one
            for one in await store.list_all(self._client.redis)
            if one.outcome in BAD_ENDS and one.next is None and (one.ended_at is None or one.ended_at > since)
        ]
        return found[::-1]

    async def _letters(self, letters: Mapping[SharedSubscription, int]) -> dict[str, int]:
        wanted = sorted(letters, key=lambda one: -letters[one])[:MOST_GROUPS]
        if not wanted:
            return {}
        replayed = await ask(self._client.redis, [("HLEN", keys.replayed(one.id)) for one in wanted])
        left = {str(one): letters[one] - count for one, count in zip(wanted, replayed, strict=True)}
        return {name: count for name, count in left.items() if count > 0}


CLIENT_LEADS_MS = 30_000
"""Hosts take groups over from clients within seconds; one that a client leads for longer is worth a word."""

GONE_MS = 600_000
"""A host that is gone is worth a word for so long."""


class HostChanges:
    """What one look at the hosts does not show: who is no more there, and who leads for how long. Pure."""

    def __init__(self) -> None:
        self._led_since: dict[str, int] = {}
        self._seen: dict[str, tuple[str, int]] = {}
        """The names of hosts, and when they were last there (ms since 1970); by host id."""

    def led_by_clients(
        self, groups: Iterable[GroupOnPage], alive: Sequence[Host], now: int
    ) -> dict[str, str]:
        """Groups that a client has led for a while although there are hosts that take leaders, and who."""
        names = {host.host for host in alive}
        taking = any(not host.drained for host in alive)
        led = {
            one.subscription: one.leader
            for one in groups
            if taking and one.leader is not None and is_client(one.leader) and one.leader not in names
        }
        self._led_since = {name: self._led_since.get(name, now) for name in led}
        return {name: host for name, host in led.items() if now - self._led_since[name] >= CLIENT_LEADS_MS}

    def gone(self, alive: Sequence[Host], now: int) -> dict[str, int]:
        """Hosts that are no more there since a while ago, and when they were last seen.

        One that was drained went as it should, and one whose name is there again has a successor.
        """
        there = {host.host for host in alive}
        names = {host.name for host in alive if host.name}
        for host in alive:
            self._seen[host.host] = host.name, now
            if host.drained:
                del self._seen[host.host]
        self._seen = {
            host: (name, seen)
            for host, (name, seen) in self._seen.items()
            if host in there or (name not in names and now - seen < GONE_MS)
        }
        return {host: seen for host, (_, seen) in self._seen.items() if host not in there}
