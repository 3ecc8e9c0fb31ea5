"""What is pushed about the epochs of spaces: it wakes whoever looks after them.

The push only saves time: whoever waits looks by himself after a while, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any, Protocol

from redis.exceptions import RedisError

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.epochs import keys
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.push_line import PushLine, open_push_line
from streamlease.streams.tasks import Supervisor, first_of

ASK_SECONDS = 1.0
"""How long the connection may be silent before it is asked whether it lives."""

QUIET_SECONDS = 5.0
"""How long it may be silent, though it was asked, before there is a new one."""

LONGEST_WAIT = 2.0


class Bell(Protocol):
    """Somebody who is woken."""

    def set(self) -> None: ...


class EpochNews:
    """One connection for the news of any number of spaces; it is there while a space is watched.

    Args:
        tasks: whose owner it belongs to.
    """

    def __init__(self, redis: AsyncRedis, tasks: Supervisor) -> None:
        self._redis = redis
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._bells: dict[str, list[Bell]] = {}
        """Channel -> who is woken."""
        self._changed = asyncio.Event()
        self._heard_at = 0.0

    def watch(self, space: str, bell: asyncio.Event | None = None) -> asyncio.Event:
        """What is set with every line and every boundary of `space`, and once the push stands.

        Args:
            bell: that of another space, to be woken by both.
        """
        bell = bell or asyncio.Event()
        self.watch_channel(keys.news(space), bell)
        return bell

    def watch_channel(self, channel: str, bell: Bell) -> None:
        """Set `bell` with everything that is published there, and once the push stands."""
        self._bells.setdefault(channel, []).append(bell)
        self._changed.set()
        if self._task is None:
            self._task = self._tasks.start("news of epochs", self._run(), endless=True)

    def forget(self, space: str, bell: asyncio.Event) -> None:
        """Wake nobody by `bell` any more."""
        channel = keys.news(space)
        self._bells[channel].remove(bell)
        if not self._bells[channel]:
            del self._bells[channel]
            self._changed.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            with contextlib.suppress(StreamleaseError, RedisError, OSError):
                # Those who wait look by themselves meanwhile; what is wrong with Redis, they say.
                await self._live()
            if asyncio.get_running_loop().time() - began > LONGEST_WAIT:
                failures = 0
            wait = min(LONGEST_WAIT, 0.05 * 2**failures)
            failures = min(failures + 1, 16)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _live(self) -> None:
        """One life of the connection."""
        line = await open_push_line(self._redis, self._take)
        try:
            await first_of(self._subscribe(line), self._mind(line))
        finally:
            await line.close()

    async def _subscribe(self, line: PushLine) -> None:
        have: set[str] = set()
        while True:
            self._changed.clear()
            wanted = {*self._bells}
            if wanted - have:
                line.send(("SUBSCRIBE", *sorted(wanted - have)))
            if have - wanted:
                line.send(("UNSUBSCRIBE", *sorted(have - wanted)))
            have = wanted
            await self._changed.wait()

    async def _mind(self, line: PushLine) -> None:
        time = asyncio.get_running_loop().time
        self._heard_at = time()
        while True:
            silent = time() - self._heard_at
            if silent >= QUIET_SECONDS:
                raise TimeoutError(f"nothing was heard for {QUIET_SECONDS:.0f} s, and no answer")
            if silent >= ASK_SECONDS:
                line.send(("PING",))
                silent = 0.0
            await line.over(ASK_SECONDS - silent)

    def _take(self, replies: list[Any]) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        for reply in replies:
            if isinstance(reply, list) and reply[0] in (b"message", b"subscribe"):
                for bell in self._bells.get(reply[1].decode(), ()):
                    bell.set()
