"""The groups that a host would lead: it stands for one until it gets the leadership, or somebody else has it.

A host stands for a group because it was asked to, or because nobody leads it. Only the leadership record says
who leads. A drained host lets another one stand, if there is one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import ParamSpec

from streamlease.hosts.hand_out import UNANSWERED, HandOut
from streamlease.hosts.other_leaders import OtherLeaders
from streamlease.leader.runner import Runner
from streamlease.protocol.errors import (
    Indefinite,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    UnknownGroup,
)
from streamlease.protocol.messages import (
    SpawnWanted,
)
from streamlease.protocol.seldom import Seldom
from streamlease.registry import leadership
from streamlease.registry.leadership import LeaderRecord, LeaderWatch
from streamlease.registry.mail.postbox import Postbox
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor, stop

P = ParamSpec("P")

log = logging.getLogger(__name__)

CANDIDACY_SECONDS = 20.0
"""How long a host stays a candidate for one group."""

WATCH_SECONDS = 0.1

DAMAGED_SECONDS = 5.0
"""How long a host leaves a group alone whose journal, or declaration, it could not read."""

Place = Callable[[str, LeaderRecord, int], Awaitable[object]]
"""Makes a spawn job for a group, from its leadership record and the term that the new one must be above."""

Begin = Callable[[str, int, str, int], None]
"""Begins to lead a group: in which term, of which lineage, and for how long (ms) no leader heard anybody."""


class Candidates:
    """For which groups a host stands, and which of their terms it has seen.

    Args:
        tasks: owns the candidates; one that ends by a defect ends alone.
        draining: whether the host takes no leaders any more.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        runners: Mapping[str, Runner],
        other_leaders: OtherLeaders,
        hand_out: HandOut,
        postbox: Postbox,
        tasks: Supervisor,
        begin: Begin,
        draining: Callable[[], bool],
    ) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._host = host
        self._runners = runners
        self._other_leaders = other_leaders
        self._hand_out = hand_out
        self._postbox = postbox
        self._tasks = tasks
        self._begin = begin
        self._draining = draining
        self._standing: dict[str, asyncio.Task[None]] = {}
        self._seen: dict[str, int] = {}
        """The highest term of each group that is known to have been issued."""
        self.hindered: dict[str, str] = {}
        """Group that the host stands for -> why it could not begin to lead it when it tried last."""
        self._left_alone: dict[str, int] = {}
        """Until when, by this process' own clock in milliseconds."""

    def term_seen(self, group: str) -> int:
        """The highest term of the group that the host knows of."""
        return self._seen.get(group, 0)

    def __iter__(self) -> Iterator[str]:
        """The groups that it stands for now."""
        return iter(self._standing)

    def _note(self, group: str, term: int) -> None:
        self._seen[group] = max(term, self.term_seen(group))

    def lead(self, group: str, above: int = 0, watch: LeaderWatch | None = None) -> None:
        """Become a candidate for the group, unless the host leads it or is one already.

        Args:
            above: the new term must be higher: Redis may have lost one that somebody has seen.
            watch: what this process has seen of who leads.
        """
        self._note(group, above)
        if self._draining() or group in self._runners or group in self._standing:
            return
        if now_ms() < self._left_alone.get(group, 0):
            return
        self._left_alone.pop(group, None)
        self._standing[group] = self._tasks.start(
            f"candidate for {group}", self._stay_candidate(group, watch)
        )

    async def _stay_candidate(self, group: str, watch: LeaderWatch | None) -> None:
        try:
            await (self._pass_on(group) if self._hand_out.drained else self._stand(group, watch))
        finally:
            del self._standing[group]
            self.hindered.pop(group, None)

    def leave_alone(self, group: str, damage: str) -> None:
        """What stands in Redis of the group cannot be read: do not stand for it again for a while."""
        self._seldom.error("leader of %s: %s", group, damage, extra={"group": group})
        self._left_alone[group] = now_ms() + int(DAMAGED_SECONDS * 1000)

    async def led(self, group: str, seconds: float) -> int | None:
        """The term in which the host leads the group, as soon as it does.

        Returns:
            None: it stands for the group no more, or has for `seconds` more.
        """
        standing = self._standing.get(group)
        if standing is not None:
            await asyncio.wait([standing], timeout=seconds)
        runner = self._runners.get(group)
        return None if runner is None else runner.term

    async def stop(self) -> None:
        """Stand for nothing more."""
        await stop(list(self._standing.values()))

    async def watch(self) -> None:
        """Look once for groups without a leader."""
        if self._draining() or self._hand_out.drained:
            await asyncio.sleep(WATCH_SECONDS)
            return
        for group in await self._other_leaders.turn():
            self.lead(group)

    async def _stand(self, group: str, watch: LeaderWatch | None = None) -> None:
        candidacy = self._other_leaders.candidacy(group)
        if watch is not None:
            candidacy.watch = watch
        give_up = now_ms() + int(CANDIDACY_SECONDS * 1000)
        first_seen = None
        while now_ms() < give_up and not self._draining():
            try:
                record = await leadership.read(self._redis, group)
                ready = candidacy.observe(record, now_ms())
                if record.held and record.host != self._host:
                    first_seen = first_seen or record
                    if record.renewed_at != first_seen.renewed_at:
                        return  # somebody leads and is alive
                candidacy.floor = self.term_seen(group)
                if ready and (term := await candidacy.attempt(self._redis)) is not None:
                    self._note(group, term)
                    self._begin(group, term, candidacy.lineage, candidacy.deaf(now_ms()))
                    return
            except UnknownGroup as error:
                log.info("candidate for %s: %s", group, error, extra={"group": group})
                return
            except StreamleaseError as error:
                self._seldom.warning("candidate for %s: %s", group, error, extra={"group": group})
                self.hindered[group] = str(error)
            await asyncio.sleep(WATCH_SECONDS)

    async def _pass_on(self, group: str) -> None:
        """A drained host was asked to lead: let another one, or do it if there is none."""
        try:
            others = await self._hand_out.others()
        except (StoreUnavailable, StoreRefused, Indefinite) as error:
            log.warning("passing %s on: %s", group, error, extra={"group": group})
            others = []
        if others:
            wanted = SpawnWanted(group=group, above=self.term_seen(group), placed=True)
            self._postbox.post(others[0].host, wanted)
        else:
            await self._stand(group)

    async def have_placed(self, place: Place, wanted: SpawnWanted) -> None:
        """Somebody misses a leader: make the job that a host takes, or lead where that is not possible."""
        try:
            record = await leadership.read(self._redis, wanted.group)
            await place(wanted.group, record, wanted.above)
        except UNANSWERED as error:
            log.warning(
                "no job to lead %s could be made, so this host stands for it: %s",
                wanted.group,
                error,
                extra={"group": wanted.group},
            )
            self.lead(wanted.group, wanted.above)
