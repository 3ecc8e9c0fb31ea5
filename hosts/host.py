"""A leader host: one mailbox and many leaders on one event loop.

``streamlease serve`` runs one: who misses a leader asks it by a message, it makes a spawn job, and the host
that takes the job is called by `lead` (`registry/spawn.py`). Where no host is registered, an agent embeds
one in its own process. Either way a host first becomes a candidate, and leads only what the leadership
record gives it.

A host whose work is not done any more is none: if one of its loops ends, which only a defect can do, the host
*fails*. It gives all its leaders up, leads nothing more, and says why in `failure`; whoever started it ends
it (``serve`` with an error, so that it is started anew; an agent begins another one). What Redis refuses, or
does not answer, is tried again for ever. A candidate, a leader or an errand that ends by a defect is told in
the log, and ends alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from streamlease.hosts.candidates import Candidates, Place
from streamlease.hosts.chores import Chores
from streamlease.hosts.hand_out import UNANSWERED, HandOut
from streamlease.hosts.other_leaders import OtherLeaders
from streamlease.hosts.reception import Reception
from streamlease.hosts.renewing import Renewing
from streamlease.hosts.shares.sharing import Sharing
from streamlease.hosts.signals.exporter import Exporter
from streamlease.hosts.signals.exposition import HostFacts
from streamlease.hosts.trimming import INTERVAL_SECONDS
from streamlease.hosts.upkeep import Upkeep
from streamlease.leader.core.machine import LeaderConfig
from streamlease.leader.runner import Runner
from streamlease.protocol.errors import (
    StreamleaseError,
)
from streamlease.protocol.ids import random_token
from streamlease.protocol.seldom import Seldom
from streamlease.registry import hosts
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import LeadershipConfig, LeaderWatch
from streamlease.registry.mail.neighbours import Neighbours
from streamlease.registry.mail.postbox import Postbox
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.log.times import server_time
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
FAULTY_SECONDS = 1.0
"""How long a loop waits that met an error which an outage does not explain, such as damaged data."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Settings of a host and of all its leaders."""

    name: str = ""
    leader: LeaderConfig = field(default_factory=LeaderConfig)
    leadership: LeadershipConfig = field(default_factory=LeadershipConfig)
    retention_interval: float = INTERVAL_SECONDS
    """Seconds between two looks at what retention has to remove."""
    registered: bool = True
    """Whether it takes spawn jobs and counts as a host; an embedded one does not."""


class LeaderHost:
    """Runs leaders. Everything happens on the event loop in which `start` was called."""

    def __init__(
        self,
        redis: AsyncRedis,
        config: HostConfig,
        pid: int = 0,
        place: Place | None = None,
        failed: Callable[[], None] = lambda: None,
        neighbours: Neighbours | None = None,
    ) -> None:
        """Args:
        place: makes a spawn job, which any host may take; None: this host leads what it is asked for.
        failed: called once, when it fails.
        neighbours: who lives on the same event loop.
        """
        self.id = f"{config.name or 'host'}-{random_token()[:8]}"
        self.config = config
        self.draining = False
        self.failure: StreamleaseError | None = None
        """Why it leads nothing any more; None: it works."""
        self.troubles: dict[str, str] = {}
        """Loop -> why what it does fails, again and again, though Redis answers."""
        self._told_failed = failed
        self._pid = pid
        self._redis = redis
        self._runners: dict[str, Runner] = {}
        self._leading: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._seldom = Seldom(log)
        self._loops = Supervisor(f"host {self.id}", self.fail)
        self._single = Supervisor(f"host {self.id}", lambda name, error: None)
        """Of tasks that end alone; the supervisor tells the log."""
        self._neighbours = neighbours or Neighbours()
        self._postbox = Postbox(redis, self.id, self._loops, neighbours=self._neighbours)
        self._hand_out = HandOut(redis, self.id, self._runners, self._postbox, self._beat_once)
        # One that is registered hears of each definition that changes, so its loops may share what they read.
        spaces = SpaceStore(redis)
        self._groups = Groups(redis, spaces)
        self._renewing = Renewing(redis, self.id, config.leadership, self._runners, self._loops)
        self._upkeep = Upkeep(
            redis,
            self._runners,
            lambda: self._reception.heard,
            self._loops,
            self._groups,
            self._renewing.ahead,
        )
        others = OtherLeaders(redis, self.id, config.leadership, self._runners, self._loops)
        self._candidates = Candidates(
            redis,
            self.id,
            self._runners,
            others,
            self._hand_out,
            self._postbox,
            self._single,
            self._begin,
            lambda: self.draining,
        )
        self._sharing = Sharing(
            redis,
            self.id,
            others,
            self._candidates,
            self._hand_out,
            self._postbox,
            lambda: self.draining,
            now_ms,
        )
        self._reception = Reception(
            redis,
            self.id,
            self._runners,
            self._candidates,
            self._hand_out,
            self._postbox,
            place,
            self._single,
        )
        self._chores = Chores(
            redis,
            self.id,
            config.retention_interval,
            spaces if config.registered else None,
            registered=config.registered,
        )
        self._exporter = Exporter(redis, self.id, now_ms)
        self._since = 0
        """When it began, in milliseconds of the clock of Redis."""
        self.beaten_at: int | None = None
        """When Redis last took note of this host; None before it began."""

    @property
    def drained(self) -> bool:
        """Whether an operator wants it to lead nothing, as long as there are other hosts."""
        return self._hand_out.drained

    @property
    def hindered(self) -> dict[str, str]:
        """Group that the host stands for -> why it could not begin to lead it when it tried last."""
        return self._candidates.hindered

    @property
    def leaders(self) -> list[str]:
        """Identities of the groups that this host leads."""
        return sorted(self._runners)

    @property
    def keeps(self) -> list[str]:
        """The spaces with epochs that this host keeps."""
        return self._chores.keepers.spaces

    async def facts(self) -> HostFacts:
        """What metrics show; of all declared groups only if this host is the one that tells of them."""
        led = [found for runner in self._runners.values() if (found := runner.facts()) is not None]
        return HostFacts(
            led,
            self.draining,
            len(self._postbox),
            self.dropped,
            self._chores.keepers.facts(),
            await self._exporter.signals(),
        )

    @property
    def dropped(self) -> int:
        """Messages that did not parse."""
        return self._reception.dropped

    async def start(self) -> None:
        """Open the mailbox and begin to listen.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        await self._reception.open()
        if self.config.registered:
            self._since = await server_time(self._redis) // 1000
        await self._beat_once()
        upkeep = self._upkeep
        works: dict[str, Callable[[], Awaitable[None]]] = {
            "renew": self._renewing.turn,
            "tick": upkeep.tick,
            "look": upkeep.look,
            "weigh": upkeep.weigh,
            "receive": self._reception.receive,
            "send": self._postbox.work,
            "keep alive": self._reception.keep_alive,
            "beat": self._beat,
            **self._chores.works,
        }
        self._neighbours.move_in(self.id, self._reception.deliver, self._loops)
        if self.config.registered:
            self._chores.keepers.watch_definitions()
            works["watch"] = self._candidates.watch
            works["hand out"] = self._hand_out.look
            works["share"] = self._sharing.turn
        for name, work in works.items():
            self._tasks.append(self._loops.start(name, self._forever(name, work), endless=True))

    async def _forever(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat `work` until cancelled; what Redis refuses, or does not answer, is tried again."""
        while True:
            try:
                await work()
                self.troubles.pop(name, None)
            except UNANSWERED as error:
                self._seldom.warning("%s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except StreamleaseError as error:
                self._seldom.error("host %s cannot do its work (%s): %s", self.id, name, error)
                self.troubles[name] = " ".join(str(error).split())
                await asyncio.sleep(FAULTY_SECONDS)

    def fail(self, name: str, error: StreamleaseError) -> None:
        """A part of the host, called `name`, has ended: lead nothing any more, and say why."""
        if self.failure is not None:
            return
        log.error("host %s leads nothing any more, since %s ended: %s", self.id, name, error)
        self.failure = error
        self.draining = True
        for runner in self._runners.values():
            runner.end(f"host {self.id} failed: {error}")
        self._told_failed()

    def lead(self, group: str, above: int = 0, watch: LeaderWatch | None = None) -> None:
        """Become a candidate for the group, unless the host leads it or is one already.

        Args:
            above: the new term must be higher: Redis may have lost one that somebody has seen.
            watch: what this process has seen of who leads.
        """
        self._candidates.lead(group, above, watch)

    async def led(self, group: str, seconds: float) -> int | None:
        """The term in which this host leads the group, as soon as it does; see `Candidates.led`."""
        return await self._candidates.led(group, seconds)

    async def drain(self, seconds: float) -> None:
        """Take no new leaders and step down from all, so that no client waits for a timeout.

        A leader that has not resigned after `seconds` is left to expire.
        """
        self.draining = True
        await self._candidates.stop()
        if self.config.registered:
            with contextlib.suppress(*UNANSWERED):
                # The registration expires by itself.
                await hosts.leave(self._redis, self.id)
        for runner in self._runners.values():
            runner.step_down()
        if self._leading:
            await asyncio.wait(list(self._leading.values()), timeout=seconds)
        await self._postbox.empty()

    async def close(self, drain_timeout: float = 5.0) -> None:
        """Drain, stop listening and remove the mailbox."""
        try:
            await self.drain(drain_timeout)
        finally:
            self._neighbours.move_out(self.id)
            await self._single.close()
            await self._loops.close()
        await self._chores.close()
        with contextlib.suppress(*UNANSWERED):
            # The mailbox expires by itself.
            await self._reception.close()

    # ------------------------------------------------------------ candidates and leaders

    def _begin(self, group: str, term: int, lineage: str, deaf: int) -> None:
        runner = Runner(
            self._redis,
            group,
            self.id,
            term,
            self._postbox.post,
            self.config.leader,
            self.config.leadership,
            self._upkeep.look_soon,
            lineage,
            self._groups,
            deaf,
        )
        self._runners[group] = runner
        self._neighbours.move_in(self.id, runner.waiting.hear, self._loops, group)
        self._leading[group] = self._single.start(f"leader of {group}", self._run(group, runner))

    async def _run(self, group: str, runner: Runner) -> None:
        try:
            await runner.run()
        finally:
            self._neighbours.move_out(self.id, group)
            del self._runners[group], self._leading[group]
            if runner.damage:
                self._candidates.leave_alone(group, runner.damage)
            if runner.over:
                self.lead(group)

    # ------------------------------------------------------------ chores

    async def _beat(self) -> None:
        await asyncio.sleep(hosts.BEAT_MS / 1000)
        if not self.draining:
            await self._beat_once()

    async def _beat_once(self) -> None:
        if self.config.registered:
            info = hosts.HostInfo(
                host=self.id,
                name=self.config.name,
                pid=self._pid,
                leaders=len(self._runners),
                drained=self.drained,
                since=self._since,
            )
            await hosts.beat(self._redis, info)
        self.beaten_at = now_ms()
