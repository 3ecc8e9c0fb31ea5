"""Submitted queries, as commands print them."""

from __future__ import annotations

from typing import Literal, Self

from streamlease.admin.facts.rows import Count, FactRow, Moment, moment
from streamlease.queries.core.record import QueryRecord

State = Literal["placing", "spawning", "running", "ending", "ended"]
QueryEnd = Literal["done", "failed", "terminated", "aborted", "lost"]


class WorkerRow(FactRow):
    """One worker of a query."""

    worker: Count
    executor: str
    host: str
    pid: int | None
    """Null: it was not started."""
    port: int | None
    exit: int | None
    """128 and the number of the signal that ended it; null: it runs, or nobody knows."""


class QueryRow(FactRow):
    """One query."""

    query: str
    name: str
    state: State
    workers: list[WorkerRow]
    outcome: QueryEnd | None
    reason: str
    who: str
    submitted: Moment
    ended: Moment | None
    restart: bool
    former: str | None
    """The query that was lost, in place of which this one was placed."""
    next: str | None
    """The one that was placed in place of this one."""

    @classmethod
    def of(cls, record: QueryRecord, **more: list[str]) -> Self:
        """The row of a record; `more`: the fields that this kind of row has besides."""
        submitted = moment(record.submitted_at)
        assert submitted is not None
        fields = {"worker", "executor", "host", "pid", "port", "exit"}
        return cls(
            query=record.query,
            name=record.name,
            state=record.state.value,
            workers=[WorkerRow(**one.model_dump(include=fields)) for one in record.workers],
            outcome=None if record.outcome is None else record.outcome.value,
            reason=record.reason,
            who=record.who,
            submitted=submitted,
            ended=moment(record.ended_at),
            restart=record.restart,
            former=record.former,
            next=record.next,
            **more,
        )


class QueryShown(QueryRow):
    """One query, with what its programs do now."""

    publishes: list[str]
    """Topics that they publish to."""
    reads: list[str]
    """Filters that they read, and subscriptions of groups."""


class QueryList(FactRow):
    """All queries that are known."""

    queries: list[QueryRow]


class LogLine(FactRow):
    """Output of a worker."""

    worker: Count
    stream: Literal["out", "err"]
    offset: Count
    """Bytes of output of this worker before it: where it is not the end of what came before, something was
    left out."""
    text: str
