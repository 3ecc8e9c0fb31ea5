"""What this process has in the catalog: rows that leave with it.

A process has one lease for all that it made, renewed by a script every few seconds, which also removes what
others made whose lease is over. A process that was cut off for longer than its lease finds it over, and
makes all of it anew: it is itself again, under the same name. So does one of whose last write Redis lost the
mark, as in a failover.

Rows are written behind the caller's back, together with what comes meanwhile, unless somebody waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from streamlease.catalog.own_query import own_query
from streamlease.catalog.sweeping import change_rows
from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.published_topics import note_topics
from streamlease.streams.tasks import Supervisor

LEASE_SECONDS = 15.0
"""After so much silence what a process made is gone."""

BEAT_SECONDS = 5.0
GATHER_SECONDS = 0.01
"""How long what is put right behind a write waits for more: each write wakes all followers."""

MOST_TOGETHER = 500
"""Rows written in one act."""


class OwnRows:
    """The rows of this process, and the lease on which they stand.

    Args:
        redis: used until `close`.
        beat_seconds: how often the lease is renewed.
    """

    def __init__(
        self, redis: AsyncRedis, *, lease_seconds: float = LEASE_SECONDS, beat_seconds: float = BEAT_SECONDS
    ) -> None:
        self._redis = redis
        self._ttl = lease_seconds
        self._beat = beat_seconds
        self._rows: dict[tuple[str, str], str] = {}
        self._due: dict[tuple[str, str], str] = {}
        """What changed and was not written yet; empty text: it is to be removed."""
        self._topics: dict[tuple[str, str], None] = {}
        """Topics to be noted, with their spaces first."""
        self._noted: dict[tuple[str, str], None] = {}
        self._mark = ""
        """Of what was written last; empty: nothing stands, or it is not known what."""
        self._changed = asyncio.Event()
        self._written = 0
        self._wanted = 0
        self._settled = asyncio.Condition()
        self._tasks = Supervisor("rows of this process", self._failed)
        self._defect: StreamleaseError | None = None
        self._query = own_query()

    @cached_property
    def process(self) -> str:
        """Under this name its rows stand. Given at first use: a process that is forked before has its own."""
        return secrets.token_hex(8)

    @property
    def description(self) -> dict[str, Any]:
        """What each of its rows says of the process."""
        process = {"process": self.process, "host": socket.gethostname(), "pid": os.getpid()}
        return process if self._query is None else process | {"query": self._query.query}

    def put(self, collection: str, key: str, row: Mapping[str, Any]) -> None:
        """Have a row there soon, as long as the process lives."""
        text = json.dumps(self.description | dict(row), separators=(",", ":"), sort_keys=True)
        if self._rows.get((collection, key)) != text:
            self._rows[collection, key] = text
            self._change(collection, key, text)

    def note_topic(self, space: str, topic: str) -> None:
        """Have a topic of a space known, also when the process has gone."""
        self._topics[space, topic] = None
        self._wake()

    def remove(self, collection: str, key: str) -> None:
        """Have a row not there any more."""
        if self._rows.pop((collection, key), None) is not None:
            self._change(collection, key, "")

    async def settled(self) -> None:
        """Wait until all that was put and removed so far is written.

        Raises:
            TaskFailed: nothing is written any more.
        """
        wanted = self._wanted
        async with self._settled:
            await self._settled.wait_for(lambda: self._written >= wanted or self._defect is not None)
        if self._written < wanted and self._defect is not None:
            raise self._defect

    async def close(self) -> None:
        """Leave, with all rows. If Redis does not answer they leave when the lease is over."""
        started = bool(self._tasks)
        await self._tasks.close()
        if started:
            with contextlib.suppress(StoreUnavailable, StoreRefused, Indefinite):
                await change_rows(self._redis, self.process, 0)
                await self._note()
        self._rows.clear()
        self._due.clear()
        self._topics.clear()
        self._noted.clear()
        self._mark = ""

    def _change(self, collection: str, key: str, text: str) -> None:
        self._due.pop((collection, key), None)  # what changes last is written last
        self._due[collection, key] = text
        self._wake()

    def _wake(self) -> None:
        self._wanted += 1
        self._changed.set()
        if not self._tasks and self._defect is None:
            self._tasks.start("lease", self._run(), endless=True)

    async def _run(self) -> None:
        failures = 0
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            wanted, began = self._wanted, clock()
            try:
                stands = await self._write()
                await self._note()
                failures = 0
            except (StoreUnavailable, StoreRefused, Indefinite):
                failures = min(failures + 1, 6)
                await asyncio.sleep(0.05 * 2**failures * random.uniform(0.5, 1.0))
                continue
            if stands and not self._due:
                self._written = wanted
                async with self._settled:
                    self._settled.notify_all()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._beat):
                        await self._changed.wait()
            if self._due:
                await asyncio.sleep(max(0.0, began + GATHER_SECONDS - clock()))

    async def _write(self) -> bool:
        """Renew the lease and write what is due; all of it if it does not stand any more. Whether it does."""
        if not self._mark:
            self._topics = {**self._noted, **self._topics}
            self._due = {
                **dict.fromkeys((one for one in self._due if one not in self._rows), ""),
                **self._rows,
            }
        batch = dict([*self._due.items()][:MOST_TOGETHER])
        changes = [part for (collection, key), text in batch.items() for part in (collection, key, text)]
        mark = secrets.token_hex(4) if changes or not self._mark else self._mark
        own, former = (self._redis, self.process, round(self._ttl * 1000)), self._mark
        stands = await change_rows(*own, changes, former=former, mark=mark, query=self._query)
        self._mark = mark if stands else ""
        if not stands:
            return False
        for one, text in batch.items():
            if self._due.get(one) == text:
                del self._due[one]
        return True

    async def _note(self) -> None:
        while some := [*self._topics][:MOST_TOGETHER]:
            await note_topics(self._redis, some)
            for one in some:
                self._topics.pop(one, None)
                self._noted[one] = None

    def _failed(self, name: str, error: StreamleaseError) -> None:
        self._defect = error
        self._changed.set()
