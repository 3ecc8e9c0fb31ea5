"""What all leaders of one host need again and again, done for all of them at once.

Hundreds of leaders that each renew, tick and look for streams by themselves keep a host busy with nothing.
Here each of these is one loop and one exchange with Redis:

* **renew** all terms; who is fenced, or could not renew for a ttl, ends;
* **tick** those in which something is under way often, the others seldom;
* **look** at the definitions of all spaces once, and list the streams of those groups whose spaces changed;
* **weigh** the streams of groups whose strategy wants it: their ends, so many in one turn at most;
* **watch** the leaders of other hosts, so that a dead host's groups are taken over when their ttl is over,
  not a ttl after somebody missed them. All hosts watch; for each group they take turns in an order that
  differs from group to group, so that the survivors share a dead host's leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from streamlease.leader.events import Measured
from streamlease.leader.runner import Runner, now_ms
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry import hosts, leadership, progress
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.connection import AsyncRedis, ask
from streamlease.streams.log import AsyncLog

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
SELDOM = 5
"""A leader in which nothing is under way gets each fifth tick."""

LOOK_SECONDS = 1.0
"""How often new streams are looked for."""

WATCH_SECONDS = 0.5
GROUPS_EVERY = 8
"""At each eighth look at other leaders, the list of groups is read anew."""

TURN_MS = 300
"""How long a host leaves a dead host's group to the one whose turn is before its own."""

WEIGH_SECONDS = 2.0
WEIGHED_AT_ONCE = 2000
"""The ends of so many streams are read in one turn of all groups that weigh them; the others' in the next."""

PAGE = 250
"""Groups in one exchange."""


class Upkeep:
    """The loops of one host. Each method is one turn of a loop."""

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        config: LeadershipConfig,
        runners: Mapping[str, Runner],
        heard: Callable[[], int | None],
    ) -> None:
        self._redis = redis
        self._host = host
        self._config = config
        self._runners = runners
        self._heard = heard
        self._groups = Groups(redis)
        self._log = AsyncLog(redis)
        self._begun = asyncio.Event()
        self._wall_ahead: int | None = None
        """By how many milliseconds the clock of Redis is ahead of this process' own."""
        self._turn = 0
        self._to_weigh: deque[tuple[str, str]] = deque()
        """Group and stream, in the order in which their ends are read."""
        self._watched: dict[str, Candidacy] = {}
        self._watches = 0

    # ------------------------------------------------------------ own leaders

    async def renew(self) -> None:
        """Renew all terms that are held."""
        await asyncio.sleep(self._config.renew_interval / 1000)
        terms = {group: runner.term for group, runner in self._runners.items()}
        histories = {group: runner.history for group, runner in self._runners.items()}
        for page in _pages(list(terms)):
            began = now_ms()
            try:
                lost = await leadership.renew_all(
                    self._redis, self._host, {g: terms[g] for g in page}, histories
                )
            except StreamleaseError as error:
                self._not_renewed(page, error)
                continue
            for group in page:
                runner = self._runners.get(group)
                if runner is None or runner.term != terms[group]:
                    continue
                if group in lost and lost[group] is None:
                    runner.leave_history()
                elif group in lost:
                    runner.end(
                        f"host {self._host} leads {group} no more: its term {runner.term} was followed by "
                        f"term {lost[group]}"
                    )
                else:
                    runner.renewed_at = began

    def _not_renewed(self, groups: Sequence[str], error: StreamleaseError) -> None:
        for group in groups:
            runner = self._runners.get(group)
            if runner is not None and now_ms() - runner.renewed_at >= self._config.ttl:
                runner.end(f"host {self._host} could not renew its leadership of {group} in time: {error}")

    async def tick(self) -> None:
        """Let time pass for those that need it now."""
        await asyncio.sleep(TICK_SECONDS)
        self._turn += 1
        heard = self._heard()
        wall = None if self._wall_ahead is None else now_ms() + self._wall_ahead
        for place, runner in enumerate(self._runners.values()):
            if runner.lively or (place + self._turn) % SELDOM == 0:
                runner.tick(wall, heard)

    def look_soon(self) -> None:
        """A leader has begun and knows no streams yet."""
        self._begun.set()

    async def look(self) -> None:
        """Let all leaders know their streams."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._begun.wait()
        self._begun.clear()
        if not self._runners:
            return
        ((seconds, microseconds),) = await ask(self._redis, [("TIME",)])
        self._wall_ahead = int(seconds) * 1000 + int(microseconds) // 1000 - now_ms()
        spaces = await self._groups.all_spaces()
        for page in _pages(list(self._runners)):
            counts = await progress.passed_all(self._redis, page)
            for group, passed in zip(page, counts, strict=True):
                runner = self._runners.get(group)
                if runner is None:
                    continue
                try:
                    await runner.look(spaces, passed)
                except StreamleaseError as error:
                    log.warning(
                        "leader of %s cannot list its streams: %s", group, error, extra={"group": group}
                    )

    async def weigh(self) -> None:
        """Let leaders that weigh their streams know where these end."""
        await asyncio.sleep(WEIGH_SECONDS)
        if not self._to_weigh:
            self._to_weigh.extend(
                (group, stream) for group, runner in self._runners.items() for stream in runner.to_measure()
            )
        count = min(WEIGHED_AT_ONCE, len(self._to_weigh))
        if not count:
            return
        chosen = [self._to_weigh.popleft() for _ in range(count)]
        ids = {stream: StreamId.parse(stream) for _, stream in chosen}
        found = await self._log.next_offsets(ids.values())
        at = now_ms()
        ends: dict[str, dict[str, int]] = defaultdict(dict)
        for group, stream in chosen:
            if ids[stream] in found:
                ends[group][stream] = found[ids[stream]]
        for group, of_group in ends.items():
            runner = self._runners.get(group)
            if runner is not None:
                runner.post(Measured(of_group, at))

    # ------------------------------------------------------------ leaders of others

    def candidacy(self, group: str) -> Candidacy:
        """What is known so far of who leads the group, to go on from there."""
        known = self._watched.get(group)
        return known if known is not None else Candidacy(group, self._host, self._host, self._config)

    async def watch(self) -> list[str]:
        """Look at the leaders of other hosts; the groups of dead ones that are this host's to take."""
        await asyncio.sleep(WATCH_SECONDS)
        if self._watches % GROUPS_EVERY == 0:
            groups = {shared.id for shared in await self._groups.list()}
            self._watched = {group: self.candidacy(group) for group in groups}
        self._watches += 1
        overdue: dict[str, str] = {}
        for page in _pages([group for group in self._watched if group not in self._runners]):
            for group, record in (await leadership.read_all(self._redis, page)).items():
                candidacy = self._watched[group]
                if candidacy.observe(record, now_ms()) and record.held and record.host != self._host:
                    overdue[group] = record.host
        if not overdue:
            return []
        alive = [host.host for host in await hosts.alive(self._redis)]
        now = now_ms()
        return [group for group, dead in overdue.items() if self._is_due(group, dead, alive, now)]

    def _is_due(self, group: str, dead: str, alive: Sequence[str], now: int) -> bool:
        order = sorted((host for host in alive if host != dead), key=lambda host: _rank(group, host))
        turn = order.index(self._host) if self._host in order else len(order)
        since = self._watched[group].watched_since
        return since is not None and now - since >= self._config.ttl + turn * TURN_MS


def _rank(group: str, host: str) -> bytes:
    return hashlib.sha256(f"{group}\n{host}".encode()).digest()


def _pages(groups: list[str]) -> list[list[str]]:
    return [groups[begin : begin + PAGE] for begin in range(0, len(groups), PAGE)]
