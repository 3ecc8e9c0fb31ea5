"""The distinct topics of spaces, as those who publish note them; bounded for each space."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from streamlease.streams.catalog.keys import SPACES, TOPICS, TOPICS_ORDER
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script

MOST_TOPICS = 10_000
"""Topics of a space that are known."""

_NOTE = load_script("streamlease.streams.spaces", "note_topics")


class KnownTopics(NamedTuple):
    """Topics of a space, sorted."""

    topics: list[str]
    truncated: bool
    """There may be more."""


async def note_topics(redis: AsyncRedis, topics: Iterable[tuple[str, str]]) -> None:
    """Note (space, topic) pairs; what is known already, or of a space that is gone, changes nothing.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    arguments: list[Argument] = [SPACES.told, MOST_TOPICS]
    for space, topic in topics:
        row = json.dumps({"space": space, "topic": topic}, separators=(",", ":"))
        arguments += [space, topic, row]
    await _NOTE.run(redis, [TOPICS, TOPICS_ORDER, SPACES.changes, SPACE_DEFINITIONS], arguments)


async def known_topics(redis: AsyncRedis, space: str) -> KnownTopics:
    """The topics of a space that anybody has published to.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    (names,) = await ask(redis, [("ZRANGEBYLEX", TOPICS_ORDER, f"[{space}/", f"({space}0")])
    topics = [name.partition(b"/")[2].decode("utf-8", "replace") for name in names]
    return KnownTopics(topics, len(topics) >= MOST_TOPICS)
