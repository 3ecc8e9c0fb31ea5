"""Who serves what, as a caller knows it: rows that were looked at, and news that say when to look again.

While the subscription to the news stands, what was seen of a name holds until the name is heard. While it
does not, a look holds for a second. Whoever waits for a service is woken by its name, and looks by himself
every few seconds, should a push be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from redis.exceptions import RedisError

from streamlease.protocol.errors import StreamleaseError
from streamlease.services import keys, registration
from streamlease.services.handlers import ServiceTypes
from streamlease.services.registration import Seen, ServiceRow
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.channels import ChannelLine
from streamlease.streams.tasks import Supervisor

HOLDS_SECONDS = 1.0
"""How long a look holds without news."""

LOOK_SECONDS = 5.0
"""How often who waits looks by himself."""

MOST_NAMES = 1000
"""So many names are remembered."""

LONGEST_WAIT = 2.0


class Directory:
    """What one process knows of who serves what. It starts with its first question."""

    def __init__(self, redis: AsyncRedis, tasks: Supervisor) -> None:
        self._redis = redis
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._rows: dict[str, list[ServiceRow]] = {}
        """Of each name that was asked for, sorted by address."""
        self._stale: set[str] = set()
        """Names that are to be looked at again, until that is done."""
        self._doubted: set[str] = set()
        """Those of them that came since the look under way was begun."""
        self._seen_at = 0.0
        self._types: dict[str, ServiceTypes] = {}
        self._looking = asyncio.Lock()
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._line = ChannelLine(redis, lambda: [keys.NEWS], self._heard)
        self.until: dict[str, int] = {}
        """Of each address the end of its lease, by the clock of Redis, as it was at the last look."""
        self._ahead = 0.0
        """By how much the clock of Redis is ahead of the event loop's, in milliseconds."""

    def redis_ms(self, at: float | None = None) -> int:
        """What the clock of Redis says at that time of the event loop, or now; about."""
        return int((self._loop.time() if at is None else at) * 1000 + self._ahead)

    def set_clock(self, redis_ms: int, began: float) -> None:
        """Redis said this time in answer to a question that was asked at `began`."""
        self._ahead = redis_ms - (began + self._loop.time()) / 2 * 1000

    async def rows(self, name: str) -> list[ServiceRow]:
        """Who takes requests for that name now.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        if not self._holds(name):
            async with self._looking:
                if not self._holds(name):
                    self._want(name)
                    await self._look()
        return self._rows[name]

    def known(self, name: str) -> list[ServiceRow] | None:
        """The same, if no look is needed."""
        return self._rows[name] if self._holds(name) else None

    async def types(self, digest: str) -> ServiceTypes | None:
        """The types with that digest; None: they are gone."""
        types = self._types.get(digest)
        if types is None:
            types = (await registration.read_types(self._redis, [digest])).get(digest)
            if types is not None:
                if len(self._types) >= MOST_NAMES:
                    self._types.clear()
                self._types[digest] = types
        return types

    async def look(self) -> Seen:
        """Look now; :attr:`until` is as it stands in Redis afterwards.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        async with self._looking:
            return await self._look()

    async def news(self, seconds: float) -> None:
        """Wait for news, or so long."""
        bell = self._bell
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await bell.wait()

    def doubt(self, name: str) -> None:
        """What is known of `name` has proved wrong, or may have."""
        self._stale.add(name)
        self._doubted.add(name)

    # ------------------------------------------------------------ looking

    def _holds(self, name: str) -> bool:
        if name not in self._rows or name in self._stale:
            return False
        return self._line.stands or self._loop.time() - self._seen_at < HOLDS_SECONDS

    def _want(self, name: str) -> None:
        if self._task is None:
            self._task = self._tasks.start("news of services", self._listen(), endless=True)
        if name not in self._rows and len(self._rows) >= MOST_NAMES:
            del self._rows[next(iter(self._rows))]
        if name not in self._rows:
            self._rows[name] = []
            self._stale.add(name)

    async def _look(self) -> Seen:
        names = [*self._rows]
        self._doubted.clear()
        began = self._loop.time()
        seen = await registration.look(self._redis, names)
        self._stale.intersection_update(self._doubted)
        self.set_clock(seen.at, began)
        self._seen_at = began
        self.until = seen.until
        by_name: dict[str, list[ServiceRow]] = {name: [] for name in names}
        for one in seen.rows:
            if one.server in seen.until and not one.leaving and one.service in by_name:
                by_name[one.service].append(one)
        for name, rows in by_name.items():
            rows.sort(key=lambda one: one.server)
            if name in self._rows:
                self._rows[name] = rows
        return seen

    # ------------------------------------------------------------ news

    def _heard(self, replies: list[Any]) -> None:
        heard = False
        for reply in replies:
            if not isinstance(reply, list):
                continue
            if reply[0] == b"message":
                name = bytes(reply[2]).decode("utf-8", "replace")
                heard = True
                if name in self._rows:
                    self.doubt(name)
            elif reply[0] == b"subscribe":
                self._doubt_all()  # what was published before that was not heard
                heard = True
        if heard:
            self._ring()

    def _doubt_all(self) -> None:
        for name in self._rows:
            self.doubt(name)

    def _ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()

    async def _listen(self) -> None:
        failures = 0
        while True:
            began = self._loop.time()
            with contextlib.suppress(StreamleaseError, RedisError, OSError):
                # Without it looks hold for a second only; what is wrong with Redis, they say.
                await self._line.live()
            self._doubt_all()
            self._ring()
            if self._loop.time() - began > LONGEST_WAIT:
                failures = 0
            wait = min(LONGEST_WAIT, 0.05 * 2**failures)
            failures = min(failures + 1, 16)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
