"""Who is woken by what is published: one connection for any number of channels.

The push only saves time: whoever waits looks by himself after a while, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any, Protocol

from redis.exceptions import RedisError

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.redis.connection import AsyncRedis, is_cluster
from streamlease.streams.redis.lines.channels import ChannelLine
from streamlease.streams.tasks import Supervisor

LONGEST_WAIT = 2.0


class Bell(Protocol):
    """Somebody who is woken."""

    def set(self) -> None: ...


class Bells:
    """One connection for the bells of any number of channels; it is there while a channel is watched.

    Args:
        name: of what is heard, for people.
        tasks: whose owner it belongs to.
    """

    def __init__(self, name: str, redis: AsyncRedis, tasks: Supervisor) -> None:
        self._name = name
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._bells: dict[str, list[Bell]] = {}
        """Channel -> who is woken."""
        self._line = ChannelLine(redis, lambda: self._bells, self._take)
        self._relayed = is_cluster(redis)
        """Whether what is published may come from another server than the one that the connection is to."""

    @property
    def trusted(self) -> bool:
        """Whether bells are rung for what is published: the connection stands, and has answered of late."""
        return self._line.stands and self._line.speaks and not self._relayed

    def watch_channel(self, channel: str, bell: Bell) -> None:
        """Set `bell` with everything that is published there, and once the push stands."""
        self._bells.setdefault(channel, []).append(bell)
        self._line.changed.set()
        if self._task is None:
            self._task = self._tasks.start(self._name, self._run(), endless=True)

    def forget_channel(self, channel: str, bell: Bell) -> None:
        """Wake nobody by `bell` any more."""
        self._bells[channel].remove(bell)
        if not self._bells[channel]:
            del self._bells[channel]
            self._line.changed.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            with contextlib.suppress(StreamleaseError, RedisError, OSError):
                # Those who wait look by themselves meanwhile; what is wrong with Redis, they say.
                await self._line.live()
            if asyncio.get_running_loop().time() - began > LONGEST_WAIT:
                failures = 0
            wait = min(LONGEST_WAIT, 0.05 * 2**failures)
            failures = min(failures + 1, 16)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    def _take(self, replies: list[Any]) -> None:
        for reply in replies:
            if isinstance(reply, list) and reply[0] in (b"message", b"subscribe"):
                for bell in self._bells.get(reply[1].decode(), ()):
                    bell.set()
