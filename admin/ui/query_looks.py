"""What the console reads of submitted queries and their executors, when somebody opens them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlease.admin.facts.queries import QueryRow
from streamlease.admin.queries.query_ways import ways_of
from streamlease.admin.ui.shown_processes import items
from streamlease.queries import store
from streamlease.queries.logs import log_pieces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamlease.agent.client import Client

LOG_BYTES = 64 * 1024
"""So much of the end of each worker's log is shown."""


async def queries(client: Client, _: Mapping[str, str]) -> dict[str, Any]:
    """All queries that are known, newest first, and the executors that are there."""
    rows = [QueryRow.of(one).as_json() for one in await store.list_all(client.redis)]
    rows.sort(key=lambda row: row["submitted"], reverse=True)
    executors = [one.model_dump(mode="json") for one in await items(client, "executors")]
    return {"queries": rows, "executors": sorted(executors, key=lambda one: one["executor"])}


async def query(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """One query with its workers, the end of their logs, and what it publishes and reads."""
    name = wanted.get("query", "")
    row = QueryRow.of((await store.read(client.redis, name)).record).as_json()
    logs: dict[int, list[tuple[str, bytes]]] = {}
    async for piece in log_pieces(client.redis, name, follow=False):
        kept = logs.setdefault(piece.worker, [])
        kept.append((piece.stream, piece.text))
        while len(kept) > 1 and sum(len(text) for _, text in kept[1:]) >= LOG_BYTES:
            kept.pop(0)
    ways = await ways_of(client, name)
    return {
        **row,
        "logs": [
            {"worker": worker, "lines": [[stream, text.decode("utf-8", "replace")] for stream, text in kept]}
            for worker, kept in sorted(logs.items())
        ],
        "publishes": ways.publishes,
        "reads": ways.reads,
    }
