"""What is pushed about the epochs of spaces: it wakes whoever looks after them."""

from __future__ import annotations

import asyncio

from streamlease.streams.epochs import keys
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.bells import Bells
from streamlease.streams.tasks import Supervisor


class EpochNews(Bells):
    """One connection for the news of any number of spaces; it is there while a space is watched.

    Args:
        tasks: whose owner it belongs to.
    """

    def __init__(self, redis: AsyncRedis, tasks: Supervisor) -> None:
        super().__init__("news of epochs", redis, tasks)

    def watch(self, space: str, bell: asyncio.Event | None = None) -> asyncio.Event:
        """What is set with every line and every boundary of `space`, and once the push stands.

        Args:
            bell: that of another space, to be woken by both.
        """
        bell = bell or asyncio.Event()
        self.watch_channel(keys.news(space), bell)
        return bell

    def forget(self, space: str, bell: asyncio.Event) -> None:
        """Wake nobody by `bell` any more."""
        self.forget_channel(keys.news(space), bell)
