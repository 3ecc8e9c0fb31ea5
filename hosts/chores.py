"""What one of the leader hosts does for all of them: inboxes, retention, compaction, epochs, snapshots,
archives.

Each is a loop of the host. What goes wrong with one is told in the log and tried again; the leaders and the
other chores do not wait for it.

The host of a client does them only while no leader host is there: it may have neither the packages nor the
rights for an archive, and its processor is the client's. Once one is there, each loop gives its claims up
when its round is over, and rests until the leader hosts are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from streamlease.hosts import archiving, compactor, snapshot_maker
from streamlease.hosts.archiving import ArchiveUpkeep
from streamlease.hosts.compactor import Compactor
from streamlease.hosts.hand_out import UNANSWERED
from streamlease.hosts.keepers import Keepers
from streamlease.hosts.snapshot_maker import SnapshotMaker
from streamlease.hosts.trimming import Retainer
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.registry import hosts
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.imports.inbox import LOOK_SECONDS, InboxMover
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.2
"""How soon a round is done again that failed: what it was told of is not told again."""

HOSTS_SECONDS = 2.0
"""How often the host of a client looks whether leader hosts are there."""


class Chores:
    """Those of one host.

    Args:
        retention_interval: seconds between two looks at what retention has to remove.
        spaces: those of the whole host, if it hears of each definition that changes.
        registered: it is a leader host; else it leaves them to those.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        retention_interval: float,
        spaces: SpaceStore | None = None,
        *,
        registered: bool = True,
    ) -> None:
        self._redis = redis
        self._registered = registered
        self._left = False
        """Leader hosts are there, and do them."""
        self._retention_interval = retention_interval
        self._seldom = Seldom(log)
        self._inboxes = InboxMover(redis, host, spaces)
        self._retainer = Retainer(redis, host, now_ms, interval=retention_interval)
        self._compactor = Compactor(redis, host, now_ms, spaces=spaces)
        self._snapshots = SnapshotMaker(redis, host, now_ms, spaces=spaces)
        self._archives = ArchiveUpkeep(redis, host, now_ms, spaces)
        self.keepers = Keepers(redis, host, now_ms, spaces)

    @property
    def works(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The turns of the loops, by their names."""
        works = {
            "retention": self._turn(self._retain, self._retainer.close),
            "inboxes": self._turn(self._move_inboxes),
            "compaction": self._turn(self._compact, self._compactor.close),
            "epochs": self._turn(self._keep_epochs, self.keepers.leave),
            "snapshots": self._turn(self._make_snapshots, self._snapshots.close),
            "archives": self._turn(self._archive, self._archives.close),
        }
        return works if self._registered else {**works, "leader hosts": self._look_for_hosts}

    async def close(self) -> None:
        """Let other hosts do it at once."""
        for chore in (self._retainer, self._compactor, self._snapshots, self._archives, self.keepers):
            with contextlib.suppress(*UNANSWERED):
                # The claim expires by itself.
                await chore.close()

    def _turn(
        self, work: Callable[[], Awaitable[None]], give_up: Callable[[], Awaitable[None]] | None = None
    ) -> Callable[[], Awaitable[None]]:
        async def turn() -> None:
            if not self._left:
                await work()
                return
            if give_up is not None:
                await give_up()
            await asyncio.sleep(HOSTS_SECONDS)

        return turn

    async def _look_for_hosts(self) -> None:
        await asyncio.sleep(HOSTS_SECONDS)
        self._left = bool(await hosts.alive(self._redis))

    async def _move_inboxes(self) -> None:
        try:
            if not await self._inboxes.wait():
                return
            await self._inboxes.round()
        except StreamleaseError as error:
            self._seldom.warning("inboxes: %s", error)
        await asyncio.sleep(LOOK_SECONDS)

    async def _retain(self) -> None:
        try:
            await self._retainer.round()
        except StreamleaseError as error:
            self._seldom.warning("retention: %s", error)
        await asyncio.sleep(self._retention_interval)

    async def _compact(self) -> None:
        try:
            if await self._compactor.round():
                return  # there may be more
        except StreamleaseError as error:
            self._seldom.warning("compaction: %s", error)
        await asyncio.sleep(compactor.INTERVAL_SECONDS)

    async def _make_snapshots(self) -> None:
        try:
            await self._snapshots.round()
        except StreamleaseError as error:
            self._seldom.warning("snapshots: %s", error)
        await asyncio.sleep(snapshot_maker.INTERVAL_SECONDS)

    async def _archive(self) -> None:
        try:
            if any(one.more for one in await self._archives.round()):
                return
        except StreamleaseError as error:
            self._seldom.warning("archives: %s", error)
        await asyncio.sleep(archiving.INTERVAL_SECONDS)

    async def _keep_epochs(self) -> None:
        try:
            await self.keepers.round()
        except StreamleaseError as error:
            self._seldom.warning("epochs: %s", error)
            await asyncio.sleep(AGAIN_SECONDS)
            return
        await self.keepers.until_defined()
