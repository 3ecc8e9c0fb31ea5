"""Rows that processes made, changed by one script, which also removes those whose lease is over."""

from __future__ import annotations

from collections.abc import Sequence

from streamlease.streams.catalog.keys import CATALOG, MADE, OWNED, PROCESSES, rows
from streamlease.streams.redis.connection import Argument, AsyncRedis
from streamlease.streams.redis.scripts import load_script

_PROCESS = load_script("streamlease.catalog", "process")


async def change_rows(
    redis: AsyncRedis, process: str, lease_ms: int, changes: Sequence[str], *, anew: bool
) -> bool:
    """Renew the lease of a process, and change its rows.

    Args:
        lease_ms: 0: it leaves, with all that it made.
        changes: collection, key, row (empty: it goes), and so on.
        anew: change them even if the lease was over.

    Returns:
        Whether they were changed.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    names = [PROCESSES, OWNED, CATALOG.changes, *map(rows, MADE)]
    arguments: list[Argument] = [process, lease_ms, CATALOG.told, " ".join(MADE), int(anew), *changes]
    return bool(await _PROCESS.run(redis, names, arguments))


async def remove_what_is_over(redis: AsyncRedis) -> None:
    """Remove what processes made whose lease is over: whoever follows does so, if nobody else is there.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    await change_rows(redis, "", 0, [], anew=False)
