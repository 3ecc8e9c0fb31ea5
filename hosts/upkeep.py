"""Work that every leader needs again and again, done once per host for all its leaders.

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

from streamlease.leader.core.events import Measured
from streamlease.leader.runner import Runner, now_ms
from streamlease.protocol.errors import StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry import group_needs, hosts, keys, leadership
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.spaces.spaces import Known
from streamlease.streams.tasks import Supervisor, task_failed

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
        tasks: Supervisor,
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
        self._overdue: dict[str, str] = {}
        """Group -> its dead host, as the present look at other leaders finds them."""
        self._known: Known | None = None
        """All spaces, as the present look at them found them."""
        self._renewing = PerServer(redis, tasks, keys.leader, self._renew, config.renew_interval / 1000)
        self._looking = PerServer(redis, tasks, keys.progress, self._look, LOOK_SECONDS)
        self._weighing = PerServer(redis, tasks, _meta_of, self._weigh, WEIGH_SECONDS)
        self._watching = PerServer(redis, tasks, keys.leader, self._watch, WATCH_SECONDS)

    # ------------------------------------------------------------ own leaders

    async def renew(self) -> None:
        """Renew all terms that are held."""
        await asyncio.sleep(self._config.renew_interval / 1000)
        busy = await self._renewing.turn(self._runners)
        self._not_renewed(busy, StoreUnavailable("the server that keeps it does not answer"))

    async def _renew(self, groups: Sequence[str]) -> None:
        led = {group: runner for group in groups if (runner := self._runners.get(group)) is not None}
        terms = {group: runner.term for group, runner in led.items()}
        lineages = {group: runner.lineage for group, runner in led.items()}
        for page in _pages(list(terms)):
            began = now_ms()
            try:
                lost = await leadership.renew_all(
                    self._redis, self._host, {g: terms[g] for g in page}, lineages
                )
            except StreamleaseError as error:
                self._not_renewed(page, error)
                continue
            for group in page:
                runner = self._runners.get(group)
                if runner is None or runner.term != terms[group]:
                    continue
                if group in lost and lost[group] is None:
                    runner.leave_lineage()
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
        self._known = await self._groups.all_spaces()
        await self._looking.turn(self._runners)

    async def _look(self, groups: Sequence[str]) -> None:
        known = self._known
        assert known is not None, "all spaces are read before the leaders are told"
        for page in _pages(groups):
            try:
                counts = await group_needs.passed_all(self._redis, page)
            except StreamleaseError as error:
                log.warning("%d leaders cannot look for streams: %s", len(page), error)
                continue
            for group, passed in zip(page, counts, strict=True):
                runner = self._runners.get(group)
                if runner is None:
                    continue
                try:
                    await runner.look(known, passed)
                except StreamleaseError as error:
                    log.warning(
                        "leader of %s cannot list its streams: %s", group, error, extra={"group": group}
                    )
                except Exception as error:
                    # It ends this leader, not the host of all of them.
                    log.exception("leader of %s cannot list its streams", group, extra={"group": group})
                    runner.end(str(task_failed(f"leader of {group}", "the look at its streams", error)))

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
        await self._weighing.turn([self._to_weigh.popleft() for _ in range(count)])

    async def _weigh(self, chosen: Sequence[tuple[str, str]]) -> None:
        ids = {stream: StreamId.parse(stream) for _, stream in chosen}
        try:
            found = await self._log.next_offsets(ids.values())
        except StreamleaseError as error:
            log.warning("%d streams cannot be weighed now: %s", len(ids), error)
            return
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
        if known is not None:
            return known
        return Candidacy(group, self._host, self._host, self._config, declared=True)

    async def watch(self) -> list[str]:
        """Look at the leaders of other hosts; the groups of dead ones that are this host's to take."""
        await asyncio.sleep(WATCH_SECONDS)
        if self._watches % GROUPS_EVERY == 0:
            groups = {shared.id for shared in await self._groups.list()}
            self._watched = {group: self.candidacy(group) for group in groups}
        self._watches += 1
        overdue = self._overdue = {}
        await self._watching.turn([group for group in self._watched if group not in self._runners])
        if not overdue:
            return []
        alive = [host.host for host in await hosts.alive(self._redis)]
        now = now_ms()
        return [group for group, dead in overdue.items() if self._is_due(group, dead, alive, now)]

    async def _watch(self, groups: Sequence[str]) -> None:
        overdue = self._overdue
        for page in _pages(groups):
            try:
                records = await leadership.read_all(self._redis, page)
            except StreamleaseError as error:
                log.warning("the leaders of %d groups cannot be looked at: %s", len(page), error)
                continue
            for group, record in records.items():
                candidacy = self._watched.get(group)
                if candidacy is None:
                    continue
                if candidacy.observe(record, now_ms()) and record.held and record.host != self._host:
                    overdue[group] = record.host

    def _is_due(self, group: str, dead: str, alive: Sequence[str], now: int) -> bool:
        order = sorted((host for host in alive if host != dead), key=lambda host: _rank(group, host))
        turn = order.index(self._host) if self._host in order else len(order)
        since = self._watched[group].watch.since
        return since is not None and now - since >= self._config.ttl + turn * TURN_MS


def _rank(group: str, host: str) -> bytes:
    return hashlib.sha256(f"{group}\n{host}".encode()).digest()


def _meta_of(weighed: tuple[str, str]) -> str:
    return stream_meta(StreamId.parse(weighed[1]))


def _pages(groups: Sequence[str]) -> list[Sequence[str]]:
    return [groups[begin : begin + PAGE] for begin in range(0, len(groups), PAGE)]
