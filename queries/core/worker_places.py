"""On which executors the workers of a job run. Pure."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from streamlease.protocol.errors import NoExecutor
from streamlease.queries.core.record import QueryRecord, Worker
from streamlease.queries.core.signed_orders import Job


class ExecutorSeen(NamedTuple):
    """An executor that is alive."""

    executor: str
    """Its name."""
    life: str
    host: str
    slots: int
    labels: tuple[tuple[str, str], ...]
    ports: tuple[int, int] | None
    strange: tuple[int, ...] = ()
    """Those of them that programs of others have."""


class Booked(NamedTuple):
    """What the workers of queries that have not ended take of an executor."""

    slots: int
    ports: frozenset[int]


def booked_by(records: Iterable[QueryRecord]) -> dict[str, Booked]:
    """By life of an executor."""
    slots: Counter[str] = Counter()
    ports: dict[str, set[int]] = {}
    for record in records:
        for one in record.left:
            slots[one.life] += 1
            if one.port is not None:
                ports.setdefault(one.life, set()).add(one.port)
    return {life: Booked(count, frozenset(ports.get(life, ()))) for life, count in slots.items()}


def place(
    job: Job, executors: Sequence[ExecutorSeen], booked: Mapping[str, Booked], *, anew: bool = False
) -> tuple[Worker, ...]:
    """The workers of a job, each on an executor with a free slot, and with a port if there are several.

    Args:
        executors: in the order in which they are to be taken, each again and again; shuffled for `random`.
        anew: in place of a query that was lost: of those that were named, some may be dead.

    Raises:
        NoExecutor: what is missing.
    """
    places = [_Place(one, booked.get(one.life)) for one in _wanted(job, executors, anew)]
    workers = []
    for number in range(job.workers):
        if job.placement == "pinned":
            tried = [places[number % len(places)]]
        else:
            tried = sorted(places, key=lambda one: one.taken)
        found = next((one for one in tried if one.has_room(job.workers > 1)), None)
        if found is None:
            raise NoExecutor(_missing(job, number, tried))
        port = found.take(job.workers > 1)
        seen = found.executor
        workers.append(
            Worker(worker=number, executor=seen.executor, life=seen.life, host=seen.host, port=port)
        )
    return tuple(workers)


class _Place:
    """An executor, and what is free there; made for one placement."""

    def __init__(self, executor: ExecutorSeen, booked: Booked | None) -> None:
        self.executor = executor
        self.free = executor.slots - (booked.slots if booked else 0)
        self.taken = 0
        first, last = executor.ports or (0, -1)
        gone = {*executor.strange, *(booked.ports if booked else ())}
        self.ports = [one for one in range(first, last + 1) if one not in gone]

    def has_room(self, with_port: bool) -> bool:
        return self.free > 0 and not (with_port and not self.ports)

    def take(self, with_port: bool) -> int | None:
        self.free -= 1
        self.taken += 1
        return self.ports.pop(0) if with_port else None


def _wanted(job: Job, executors: Sequence[ExecutorSeen], anew: bool) -> list[ExecutorSeen]:
    if not executors:
        raise NoExecutor(
            "there is no executor: start one with 'streamlease executor', with the same submit key"
        )
    by_name = {one.executor: one for one in executors}
    any_will_do = anew and job.placement == "random" and any(name in by_name for name in job.on)
    for name in job.on:
        if name not in by_name and not any_will_do:
            near = difflib.get_close_matches(name, by_name, 3, 0.0)
            raise NoExecutor(
                f"there is no executor {ascii(name)[:80]}: the nearest names are {', '.join(near)}"
            )
    named = [by_name[name] for name in job.on] if job.placement == "pinned" else []
    if not named:
        named = [one for one in executors if not job.on or one.executor in job.on]
    fitting = [one for one in named if set(job.labels) <= set(one.labels)]
    if not fitting or (job.placement == "pinned" and len(fitting) < len(named)):
        has = "; ".join(f"{one.executor} has {_labels(one.labels)}" for one in named[:5])
        raise NoExecutor(f"no executor has the labels {_labels(job.labels)}: {has}")
    return fitting


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    return " ".join("=".join(one) for one in labels) or "none"


def _missing(job: Job, placed: int, places: Sequence[_Place]) -> str:
    each = f"{job.workers} workers need" if job.workers > 1 else "the worker needs"
    free = [one for one in places if one.free > 0][:5]
    if free:
        what, hint = "port", "start executors with more --ports A-B"
        where = "; ".join(f"{one.executor.executor}: {_range(one.executor.ports)}" for one in free)
    else:
        what, hint = "slot", "end queries, or start executors with more --slots"
        where = "; ".join(f"{one.executor.executor}: {one.executor.slots}" for one in places[:5])
    return f"no free {what} for worker {placed}: {each} one each, and all are taken ({where}): {hint}"


def _range(ports: tuple[int, int] | None) -> str:
    return "none" if ports is None else f"{ports[0]}-{ports[1]}"
