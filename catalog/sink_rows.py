"""What a sink that writes batches shows in the catalog: the topics that it publishes to.

A sink is no process: each batch may be decided by another one, which ends with it. So its rows stand on a
lease of the sink's own, which each batch renews. A batch that brings no topic that is not shown yet costs two
small reads and the renewal, however many messages it has.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Mapping

from streamlease.catalog.own_query import own_query
from streamlease.catalog.shown import MOST_SHOWN
from streamlease.catalog.sweeping import change_rows
from streamlease.protocol.errors import QueryRefused
from streamlease.streams.catalog.keys import OWNED, rows
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.published_topics import note_topics

log = logging.getLogger(__name__)

LEASE_MS = 300_000
"""For so long behind its last batch a sink publishes to its topics."""

MOST_NOTED = 500
"""Topics noted by one script."""

_MARK = "sink"


async def show_batch(redis: AsyncRedis, sink: str, topics: Mapping[str, str]) -> None:
    """A batch of a sink goes to these topics, which are known from then on.

    Args:
        topics: with their spaces.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    noted = [(space, topic) for topic, space in topics.items()]
    for first in range(0, len(noted), MOST_NOTED):
        await note_topics(redis, noted[first : first + MOST_NOTED])
    process, query = _process(sink), own_query()
    shown = sorted(topics)[:MOST_SHOWN]
    there, room = await _there(redis, process, shown)
    row = {"process": process, "host": socket.gethostname(), "pid": os.getpid()}
    row |= {} if query is None else {"query": query.query}
    try:
        for former in (_MARK, ""):
            new = [topic for topic in shown if topic not in there] if former else shown
            changes = [
                part
                for topic in new[:room]
                for part in (
                    "publications",
                    topic,
                    json.dumps(row | {"topic": topic, "space": topics[topic]}, separators=(",", ":")),
                )
            ]
            if await change_rows(redis, process, LEASE_MS, changes, former=former, mark=_MARK, query=query):
                return
            room = MOST_SHOWN
    except QueryRefused as error:
        log.warning("sink %s is not shown in the catalog: %s", sink, error)


async def _there(redis: AsyncRedis, process: str, topics: list[str]) -> tuple[set[str], int]:
    """Those of the topics that are shown, and how many more may be."""
    own = f"{process}/publications/"
    found: set[str] = set()
    (count,) = await ask(redis, [("ZLEXCOUNT", OWNED, f"[{own}", f"({own[:-1]}0")])
    if topics and count:
        fields = [f"{process}/{topic}" for topic in topics]
        (values,) = await ask(redis, [("HMGET", rows("publications"), *fields)])
        found = {topic for topic, value in zip(topics, values, strict=True) if value is not None}
    return found, max(0, MOST_SHOWN - int(count))


async def end_sink(redis: AsyncRedis, sink: str) -> None:
    """A sink writes no other batch.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    await change_rows(redis, _process(sink), 0)


def _process(sink: str) -> str:
    return hashlib.sha256(f"sink {sink}".encode()).hexdigest()[:16]
