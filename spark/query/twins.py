"""A query that reads one group by two readers, as in a join of a frame with itself: refused at its start.

Spark makes a reader for each side of such a join, in a process of its own. Each is a member of the group,
which divides its messages between them: each side has some, and of the pairs most are missing. No process can
know of the other: they see the same options, and no query. Its id and its run are known to *tasks*, so
the first micro-batch of each reader has a task, also where there is nothing to read, and its tasks say which
session reads for this run before they read a row. The second session of a run is refused.

Different queries of one application have different ids, and share a group as they like. A union of a frame
with itself has one reader, whose rows it reads twice.
"""

from __future__ import annotations

import time

from pyspark import TaskContext

from streamlease.protocol.errors import Indefinite, InvalidOption, StoreUnavailable
from streamlease.registry.runs import reader_of_run
from streamlease.spark.connections import connection

RETRY_SECONDS = 0.2


def admit(redis: str, group: str, session: str, patience: float) -> None:
    """Take note that `session` reads `group` for the query of this task; does nothing outside of a query.

    Args:
        patience: how long (s) to wait for a Redis that is away.

    Raises:
        InvalidOption: another session does.
        StoreUnavailable, StoreRefused.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if context is None or query is None:
        return
    # The run, unless the user's function has a job group of its own; then the checkpoint keeps the session.
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    give_up = time.monotonic() + patience
    while True:
        try:
            first = reader_of_run(connection(redis), group, f"{query}/{run}", session)
            break
        except (StoreUnavailable, Indefinite):  # safe to repeat
            if time.monotonic() >= give_up:
                raise
            time.sleep(RETRY_SECONDS)
    if first != session:
        raise InvalidOption(
            f"option 'subscribe' names group '{group}' in two readers of one query, as in a join of a frame "
            f"with itself; the group would divide its messages between them: give one side a group of its own"
        )
