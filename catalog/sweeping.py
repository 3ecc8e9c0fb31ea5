"""Rows that processes made, changed by one script, which also removes those whose lease is over."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from streamlease.catalog.own_query import OwnQuery
from streamlease.protocol.errors import QueryRefused
from streamlease.streams.catalog.keys import CATALOG, MADE, OWNED, PROCESSES, REFUSED, TOKENS, WRITTEN, rows
from streamlease.streams.redis.connection import Argument, AsyncRedis
from streamlease.streams.redis.scripts import load_script

_PROCESS = load_script("streamlease.catalog", "process")
_REFUSED = 2


async def change_rows(
    redis: AsyncRedis,
    process: str,
    lease_ms: int,
    changes: Sequence[str] = (),
    *,
    former: str = "",
    mark: str = "",
    query: OwnQuery | None = None,
) -> bool:
    """Renew the lease of a process, and change its rows.

    Args:
        lease_ms: 0: it leaves, with all that it made.
        changes: collection, key, row (empty: it goes), and so on.
        former: the mark of what it wrote last; empty: it makes all of it anew.
        mark: that of what it writes now.
        query: that the process is of, as the rows say.

    Returns:
        Whether they were changed; they are not if the lease was over, or Redis lost what was written last.

    Raises:
        QueryRefused: the process has not the token of the query.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    names = [PROCESSES, OWNED, CATALOG.changes, *map(rows, MADE), TOKENS, REFUSED, WRITTEN]
    arguments: list[Argument] = [process, lease_ms, CATALOG.told, " ".join(MADE), former]
    arguments += [*(query or ("", "")), f"pid {os.getpid()} on {socket.gethostname()}", mark, *changes]
    done = int(await _PROCESS.run(redis, names, arguments))
    if done == _REFUSED and query is not None:
        raise QueryRefused(
            f"this process says that it is of query {query.query}, and has not its token, or that has ended"
        )
    return bool(done)


async def remove_what_is_over(redis: AsyncRedis) -> None:
    """Remove what processes made whose lease is over: whoever follows does so, if nobody else is there.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    await change_rows(redis, "", 0)
