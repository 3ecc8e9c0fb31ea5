"""Work that every leader needs again and again, done once per host for all its leaders.

Hundreds of leaders that each renew, tick and look for streams by themselves keep a host busy with nothing.
Here each of these is one loop and one exchange with Redis:

* **tick** those in which something is under way often, the others seldom;
* **look** at the definitions of all spaces once, and list the streams of those groups whose spaces changed;
* **weigh** the streams of groups whose strategy wants it: their ends, so many in one turn at most.

`hosts/renewing.py` does so for terms that are held, `hosts/other_leaders.py` for the leaders of other hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from streamlease.leader.core.events import Measured
from streamlease.leader.runner import Runner
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.seldom import Seldom
from streamlease.registry import group_needs, keys
from streamlease.registry.groups import Groups
from streamlease.streams.clock import milliseconds as now_ms
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
        runners: Mapping[str, Runner],
        heard: Callable[[], int | None],
        tasks: Supervisor,
        groups: Groups | None = None,
        told_ahead: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Args:
        groups: those of the whole host; None: its own.
        told_ahead: by how many milliseconds the clock of Redis is ahead of this process' own, if that is
            known anyway; else it is asked for.
        """
        self._redis = redis
        self._seldom = Seldom(log)
        self._runners = runners
        self._heard = heard
        self._told_ahead = told_ahead
        self._groups = groups or Groups(redis)
        self._log = AsyncLog(redis)
        self._begun = asyncio.Event()
        self._new: set[str] = set()
        """Groups whose leaders have begun and know no streams yet."""
        self._looked_at = 0.0
        """When it was looked for the streams of all leaders, by the clock of the event loop."""
        self._wall_ahead: int | None = None
        """By how many milliseconds the clock of Redis is ahead of this process' own."""
        self._turn = 0
        self._to_weigh: deque[tuple[str, str]] = deque()
        """Group and stream, in the order in which their ends are read."""
        self._known: Known | None = None
        """All spaces, as the present look at them found them."""
        self._passed: dict[str, int] = {}
        """Group -> how often retention passed it; of those where nothing can have changed since."""
        self._passed_any: int | None = None
        self._looking = PerServer(redis, tasks, keys.progress, self._look, LOOK_SECONDS)
        self._weighing = PerServer(redis, tasks, _meta_of, self._weigh, WEIGH_SECONDS)

    async def tick(self) -> None:
        """Let time pass for those that need it now."""
        await asyncio.sleep(TICK_SECONDS)
        self._turn += 1
        heard = self._heard()
        wall = None if self._wall_ahead is None else now_ms() + self._wall_ahead
        for place, runner in enumerate(self._runners.values()):
            if runner.lively or (place + self._turn) % SELDOM == 0:
                runner.tick(wall, heard)

    def look_soon(self, group: str) -> None:
        """A leader has begun and knows no streams yet."""
        self._new.add(group)
        self._begun.set()

    async def look(self) -> None:
        """Let all leaders know their streams, or those that have just begun."""
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._looked_at + LOOK_SECONDS):
                await self._begun.wait()
        self._begun.clear()
        all_of_them = clock() >= self._looked_at + LOOK_SECONDS
        groups = [group for group in self._runners if all_of_them or group in self._new]
        self._new.clear()
        if all_of_them:
            self._looked_at = clock()
        if not groups:
            return
        self._wall_ahead = self._told_ahead()
        if self._wall_ahead is None:
            ((seconds, microseconds),) = await ask(self._redis, [("TIME",)])
            self._wall_ahead = int(seconds) * 1000 + int(microseconds) // 1000 - now_ms()
        self._known = await self._groups.all_spaces()
        await self._forget_passed()
        await self._looking.turn(groups)

    async def _forget_passed(self) -> None:
        """Have read anew how often retention passed groups, if it has passed any since."""
        before, self._passed_any = self._passed_any, None
        try:
            self._passed_any = await group_needs.passed_any(self._redis)
        except StreamleaseError as error:
            self._seldom.warning("whether retention passed groups is asked one by one: %s", error)
        if self._passed_any is None or self._passed_any != before:
            self._passed.clear()
        for group in self._passed.keys() - self._runners.keys():
            del self._passed[group]

    async def _look(self, groups: Sequence[str]) -> None:
        known, sign = self._known, self._passed_any
        assert known is not None, "all spaces are read before the leaders are told"
        for page in _pages(groups):
            passed = {group: self._passed[group] for group in page if group in self._passed}
            unread = [group for group in page if group not in passed]
            try:
                counts = await group_needs.passed_all(self._redis, unread) if unread else []
            except StreamleaseError as error:
                self._seldom.warning("%d leaders cannot look for streams: %s", len(page), error)
                continue
            passed.update(zip(unread, counts, strict=True))
            if sign == self._passed_any:
                self._passed.update(passed)
            for group in page:
                runner = self._runners.get(group)
                if runner is None:
                    continue
                try:
                    await runner.look(known, passed[group])
                except StreamleaseError as error:
                    self._seldom.warning(
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
            self._seldom.warning("%d streams cannot be weighed now: %s", len(ids), error)
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


def _meta_of(weighed: tuple[str, str]) -> str:
    return stream_meta(StreamId.parse(weighed[1]))


def _pages(groups: Sequence[str]) -> list[Sequence[str]]:
    return [groups[begin : begin + PAGE] for begin in range(0, len(groups), PAGE)]
