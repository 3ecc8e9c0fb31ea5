"""What becomes of a query: one table of states, and one function that changes its record.

::

    placing ---> spawning ---> running ---> ending ---> ended
       |            |             |            ^           ^
       |            +-------------|------------+           |     a worker failed, TERMINATE, time, an
       executor lost +------------+-------------+------------------------+     and no worker is left

Nobody runs this machine: whoever knows an event reads the record, steps it, and writes it if nobody else did
meanwhile (`queries/store.py`). So every event may come twice, late, or from a process that knows less than
the record: what is not in the table changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage, Worker

PLACING, SPAWNING, RUNNING, ENDING, ENDED = QueryStage


class Move(Enum):
    """What an event means for the query as a whole."""

    PLACED = auto()
    STARTED = auto()
    """A worker's process runs, and others have yet to join."""
    ASSEMBLED = auto()
    """All workers have joined; or the only one, which need not join, was started."""
    JOINED = auto()
    WELL = auto()
    """A worker exited with 0, and others are left."""
    BADLY = auto()
    """A worker failed or was lost, and others are left."""
    LAST = auto()
    """No worker is left."""
    STOP = auto()
    """It is to end: somebody wants it, or its time to spawn is over."""


TABLE: Mapping[tuple[QueryStage, Move], QueryStage] = MappingProxyType(
    {
        (PLACING, Move.PLACED): SPAWNING,
        (PLACING, Move.LAST): ENDED,
        (SPAWNING, Move.STARTED): SPAWNING,
        (SPAWNING, Move.JOINED): SPAWNING,
        (SPAWNING, Move.ASSEMBLED): RUNNING,
        (SPAWNING, Move.BADLY): ENDING,
        (SPAWNING, Move.STOP): ENDING,
        (SPAWNING, Move.LAST): ENDED,
        (RUNNING, Move.JOINED): RUNNING,
        (RUNNING, Move.WELL): RUNNING,
        (RUNNING, Move.BADLY): ENDING,
        (RUNNING, Move.STOP): ENDING,
        (RUNNING, Move.LAST): ENDED,
        (ENDING, Move.STARTED): ENDING,
        (ENDING, Move.WELL): ENDING,
        (ENDING, Move.BADLY): ENDING,
        (ENDING, Move.LAST): ENDED,
    }
)


@dataclass(frozen=True, slots=True)
class WorkersPlaced:
    """Executors were chosen for all workers."""

    workers: tuple[Worker, ...]
    spawn_until: int


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The process of a worker runs."""

    worker: int
    life: str
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker's program has called ``join``."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The process of a worker is over, or will never be."""

    worker: int
    life: str
    exit: int | None
    why: str = ""
    """Where it is not the program's own end."""
    lost: bool = False
    """It was ended because its executor was cut off."""


@dataclass(frozen=True, slots=True)
class WorkersLost:
    """The life of an executor is over: nothing runs under it any more, or will be seen to."""

    life: str
    why: str


@dataclass(frozen=True, slots=True)
class EndWanted:
    """It is to end."""

    outcome: QueryOutcome
    why: str


Event = WorkersPlaced | WorkerStarted | WorkerJoined | WorkerExited | WorkersLost | EndWanted


def step(record: QueryRecord, event: Event, now: int) -> QueryRecord:
    """The record behind an event; the same one if the event changes nothing."""
    match event:
        case WorkersPlaced():
            return _moved(record, Move.PLACED, now, workers=event.workers, spawn_until=event.spawn_until)
        case WorkerStarted():
            return _started(record, event, now)
        case WorkerJoined():
            return _joined(record, event, now)
        case WorkerExited():
            here = [one for one in record.of_life(event.life) if one.worker == event.worker]
            return _over(record, [*here], event.exit, _blame(record, event), now)
        case WorkersLost():
            return _over(record, [*record.of_life(event.life)], None, (QueryOutcome.LOST, event.why), now)
        case EndWanted():
            kind = Move.STOP if record.left else Move.LAST
            return _moved(record, kind, now, **_first(record, event.outcome, event.why))


def _started(record: QueryRecord, event: WorkerStarted, now: int) -> QueryRecord:
    (found,) = [one for one in record.left if (one.worker, one.life) == (event.worker, event.life)] or (None,)
    if found is None or found.pid is not None:
        return record
    changed = found.model_copy(update={"pid": event.pid})
    alone = record.size == 1 and record.state is SPAWNING
    return _moved(
        record, Move.ASSEMBLED if alone else Move.STARTED, now, workers=_with(record.workers, changed)
    )


def _joined(record: QueryRecord, event: WorkerJoined, now: int) -> QueryRecord:
    (found,) = [one for one in record.left if one.worker == event.worker] or (None,)
    if found is None or found.joined:
        return record
    workers = _with(record.workers, found.model_copy(update={"joined": True}))
    all_here = record.state is SPAWNING and all(one.joined for one in workers)
    return _moved(record, Move.ASSEMBLED if all_here else Move.JOINED, now, workers=workers)


def _blame(record: QueryRecord, event: WorkerExited) -> tuple[QueryOutcome, str] | None:
    """What is to be said if the query ends by this; None: it need not."""
    if event.lost:
        return QueryOutcome.LOST, event.why
    if event.why:
        return (QueryOutcome.ABORTED if record.state is SPAWNING else QueryOutcome.FAILED), event.why
    if record.state is SPAWNING and record.size > 1:
        joined = sum(one.joined for one in record.workers)
        return QueryOutcome.ABORTED, (
            f"worker {event.worker} exited with {event.exit} when {joined} of {record.size} workers had "
            f"joined: each worker calls streamlease.queries.join()"
        )
    if event.exit:
        return QueryOutcome.FAILED, f"worker {event.worker} exited with {event.exit}"
    return None


def _over(
    record: QueryRecord,
    gone: list[Worker],
    exit: int | None,
    blame: tuple[QueryOutcome, str] | None,
    now: int,
) -> QueryRecord:
    gone = [one for one in gone if not one.over]
    if not gone:
        return record
    workers = record.workers
    for one in gone:
        workers = _with(workers, one.model_copy(update={"over": True, "exit": exit}))
    changes = {} if blame is None else _first(record, *blame)
    if all(one.over for one in workers):
        done = {"outcome": QueryOutcome.DONE} if record.outcome is None and not changes else {}
        return _moved(record, Move.LAST, now, workers=workers, **changes, **done)
    kind = Move.WELL if blame is None else Move.BADLY
    return _moved(record, kind, now, workers=workers, **changes)


def _first(record: QueryRecord, outcome: QueryOutcome, why: str) -> dict[str, object]:
    """What is said first stays; but a query of which an executor was lost meanwhile is lost only if nobody
    wanted its end."""
    return {} if record.outcome is not None else {"outcome": outcome, "reason": why}


def _with(workers: tuple[Worker, ...], changed: Worker) -> tuple[Worker, ...]:
    return tuple(changed if one.worker == changed.worker else one for one in workers)


def _moved(record: QueryRecord, kind: Move, now: int, **changes: object) -> QueryRecord:
    state = TABLE.get((record.state, kind))
    if state is None:
        return record
    if state is ENDED:
        changes["ended_at"] = now
    return record.model_copy(update={"state": state, **changes})
