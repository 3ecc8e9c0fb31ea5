"""What is published on a changing set of channels, heard over one connection that is known to live.

A life of the connection is :meth:`ChannelLine.live`; whoever wants another one behind it calls that again.
One task subscribes, another one looks whether the connection lives: it is asked when it is silent,
and is over when it stays so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.push_line import Heard, PushLine, open_push_line
from streamlease.streams.tasks import first_of

ASK_SECONDS = 1.0
"""How long the connection may be silent before it is asked whether it lives."""

QUIET_SECONDS = 5.0
"""How long it may be silent, though it was asked, before it is over."""


class ChannelLine:
    """One connection for some channels.

    Args:
        wanted: which channels; asked again after `changed` was set.
        heard: told the replies that came together, those to subscriptions too.
        gather_seconds: how long a change waits for more of them.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        wanted: Callable[[], Iterable[str]],
        heard: Heard,
        gather_seconds: float = 0.0,
    ) -> None:
        self._redis = redis
        self._wanted = wanted
        self._heard = heard
        self._gather_seconds = gather_seconds
        self.changed = asyncio.Event()
        """Set it when other channels are wanted."""
        self.stands = False
        """Whether the present channels are subscribed to, or will be without another word."""
        self.heard_at = 0.0
        """When something came, by the event loop's clock."""

    @property
    def silent(self) -> float:
        """For how many seconds nothing has come."""
        return asyncio.get_running_loop().time() - self.heard_at

    @property
    def speaks(self) -> bool:
        """Whether something came of late: it is asked soon enough for that."""
        return self.silent < 2 * ASK_SECONDS

    async def live(self) -> None:
        """One life of the connection.

        Raises:
            StoreUnavailable, StoreRefused: there was none. OSError, RedisError: it has ended.
        """
        line = await open_push_line(self._redis, self._take)
        try:
            await first_of(self._subscribe(line), self._mind(line))
        finally:
            self.stands = False
            await line.close()

    async def _subscribe(self, line: PushLine) -> None:
        have: set[str] = set()
        while True:
            self.changed.clear()
            wanted = {*self._wanted()}
            if wanted - have:
                line.send(("SUBSCRIBE", *sorted(wanted - have)))
            if have - wanted:
                line.send(("UNSUBSCRIBE", *sorted(have - wanted)))
            have = wanted
            self.stands = bool(have)
            await self.changed.wait()
            await asyncio.sleep(self._gather_seconds)

    async def _mind(self, line: PushLine) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        while True:
            silent = self.silent
            if silent >= QUIET_SECONDS:
                raise TimeoutError(f"nothing was heard for {QUIET_SECONDS:.0f} s, and no answer")
            if silent >= ASK_SECONDS:
                line.send(("PING",))
                silent = 0.0
            await line.over(ASK_SECONDS - silent)

    def _take(self, replies: list[Any]) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self._heard(replies)
