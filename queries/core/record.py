"""One submitted query: all that is known of it, as it stands in Redis."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from streamlease.protocol.errors import Unsupported


class QueryStage(StrEnum):
    """In this order; nothing goes back. A query that is placed anew is another one (`former`, `next`)."""

    PLACING = "placing"
    """No executors are chosen for its workers yet."""
    SPAWNING = "spawning"
    """Executors start its workers, or wait until all have joined."""
    RUNNING = "running"
    ENDING = "ending"
    """Its workers are told to end."""
    ENDED = "ended"


class QueryOutcome(StrEnum):
    """How a query ended."""

    DONE = "done"
    """All workers exited with 0."""
    FAILED = "failed"
    TERMINATED = "terminated"
    ABORTED = "aborted"
    """It never ran: not all workers have joined."""
    LOST = "lost"
    """An executor died, or left."""


class Worker(BaseModel):
    """One worker, on the executor that was chosen for it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    worker: int
    executor: str
    life: str
    """Of the executor: its next life knows nothing of this worker."""
    host: str
    port: int | None = None
    pid: int | None = None
    """None: it was not started yet."""
    joined: bool = False
    over: bool = False
    exit: int | None = None
    """128 and the number of the signal that ended it; None, where it is over: nobody knows."""


class QueryRecord(BaseModel):
    """All that is known of a query. The job is what was signed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    query: str
    name: str
    state: QueryStage
    size: int
    """Workers that it has."""
    workers: tuple[Worker, ...] = ()
    """By number; empty while it is placed."""
    outcome: QueryOutcome | None = None
    """Known when it begins to end."""
    reason: str = ""
    """One line: why it ends."""
    who: str = ""
    restart: bool = False
    job: str = ""
    signature: str = ""
    submitted_at: int
    spawn_until: int = 0
    """Until when all workers must have joined (ms of the Redis clock)."""
    ended_at: int | None = None
    former: str | None = None
    """The query that was lost, and of which this is the next life."""
    next: str | None = None

    @property
    def left(self) -> tuple[Worker, ...]:
        """Workers that are not over."""
        return tuple(one for one in self.workers if not one.over)

    def of_life(self, life: str) -> tuple[Worker, ...]:
        """Its workers on an executor in that life."""
        return tuple(one for one in self.workers if one.life == life)

    @property
    def row(self) -> dict[str, Any]:
        """What the catalog says of it."""
        fields = {"query", "name", "state", "outcome", "reason", "who", "restart", "former", "next"}
        workers = [
            one.model_dump(include={"worker", "executor", "host", "port", "pid", "joined", "exit"})
            for one in self.workers
        ]
        return self.model_dump(include=fields) | {"workers": workers}


def parse_record(query: str, text: bytes) -> QueryRecord:
    """The record that stands in Redis.

    Raises:
        Unsupported: it is damaged.
    """
    try:
        return QueryRecord.model_validate_json(text)
    except ValidationError as error:
        raise Unsupported(
            f"the record of query {ascii(query)[:80]} cannot be read "
            f"({error.error_count()} fields, first: {error.errors()[0]['msg']}): remove it (HDEL)"
        ) from None
