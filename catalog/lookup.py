"""Finds who publishes to a topic, and waits for somebody who does."""

from __future__ import annotations

import asyncio

from streamlease.catalog.followed import Catalog
from streamlease.catalog.items import PublicationItem
from streamlease.protocol.errors import InvalidOption, TopicNotFound
from streamlease.protocol.topics import check_topic
from streamlease.streams.redis.connection import AsyncRedis

LONGEST_WAIT = 366 * 86_400.0


async def lookup(redis: AsyncRedis, topic: str, wait: float = 0.0) -> PublicationItem:
    """A publication of `topic`; see `Client.lookup`.

    Raises:
        InvalidTopic: it is none. InvalidOption: `wait` is no time.
        TopicNotFound: nobody publishes to it, or came to within `wait` seconds.
    """
    check_topic(topic)
    if not 0 <= wait <= LONGEST_WAIT:
        raise InvalidOption(f"wait is {wait}: give seconds, 0 or more")
    async with Catalog(redis, "publications") as publications:
        for one in publications.items:
            if isinstance(one, PublicationItem) and one.topic == topic:
                return one
        try:
            async with asyncio.timeout(wait):
                async for change in publications:
                    found = change.item
                    if change.diff > 0 and isinstance(found, PublicationItem) and found.topic == topic:
                        return found
        except TimeoutError:
            pass
    raise TopicNotFound(
        f"nobody publishes to {ascii(topic)[:80]}{f', and nobody came in {wait:g} s' if wait else ''}: "
        f"start its publisher, or wait longer"
    )
