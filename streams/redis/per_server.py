"""Work on many keys, split by server, with all servers at once.

In a Redis Cluster one exchange for keys of all servers takes as long as the slowest of them, and a server
that is down or stands still takes seconds. What has a deadline, such as the renewal of leaderships, must not
wait for another server's keys. So the work is split by server; a server that has not finished its last turn
gets no new one, and holds up nobody but itself.

With a single server nothing is split, and no task is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from redis.crc import key_slot

from streamlease.streams.redis.cluster import AsyncCluster
from streamlease.streams.redis.cluster_slots import Address
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

T = TypeVar("T")


class PerServer(Generic[T]):
    """One kind of work, in turns.

    Args:
        tasks: owns what runs; told if it ends by an error.
        key: the key of Redis that decides which server an item belongs to.
        work: does the work for items of one server, at most one call at a time for each.
        patience: how long (s) a turn waits for a server before it leaves it to itself.
    """

    def __init__(
        self,
        client: AsyncRedis,
        tasks: Supervisor,
        key: Callable[[T], str],
        work: Callable[[Sequence[T]], Awaitable[None]],
        patience: float,
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._key = key
        self._work = work
        self._patience = patience
        self._running: dict[Address | None, asyncio.Task[None]] = {}

    async def turn(self, items: Iterable[T]) -> list[T]:
        """Do the work for `items`; returns when it is done, or a server has not answered for `patience`.

        Returns:
            items of servers that are still busy with a former turn, in order: nothing was done for them.

        Raises:
            What `work` raises, with a single server. With several it is the supervisor who hears of it.
        """
        wanted = [*items]
        if not isinstance(self._client, AsyncCluster):
            if wanted:
                await self._work(wanted)
            return []
        if not self._client.topology.known:
            await self._client.refresh()
        split: dict[Address | None, list[T]] = {}
        left: list[T] = []
        for item in wanted:
            server = self._client.topology.owners[key_slot(self._key(item).encode())]
            if server in self._running:
                left.append(item)
            else:
                split.setdefault(server, []).append(item)
        for server, share in split.items():
            self._running[server] = self._tasks.start(f"work for {server}", self._do(server, share))
        # Those that were started now; or, so that nobody spins, those that all is waiting for.
        awaited = [self._running[server] for server in split] or [*self._running.values()]
        if awaited:
            await asyncio.wait(awaited, timeout=self._patience)
        return left

    async def _do(self, server: Address | None, share: Sequence[T]) -> None:
        try:
            await self._work(share)
        finally:
            del self._running[server]
