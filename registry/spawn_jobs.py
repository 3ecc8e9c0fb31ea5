"""What a spawn job may ask of the process that takes it: closed unions, one class for each kind. Pure.

A job travels through RQ as JSON that names its kind and its arguments: ``[KIND, null, [ARGUMENT, ...], {}]``.
A `JobQueue` has the one table of names that are known in its queue; nothing else is ever looked up by a
name that came from Redis. Leader hosts share a queue, and each executor has one of its own. A new kind is a
class here, a member of `SpawnJob`, and in the table of a queue; mypy then names the ``match`` in which jobs
are done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from streamlease.protocol.errors import InvalidTopic
from streamlease.protocol.ids import HIGHEST_TOLD
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.keys import QUEUE


class JobRefused(Exception):
    """A job is not a spawn job. One line: what is wrong with it."""


@dataclass(frozen=True, slots=True)
class LeadGroup:
    """Stand for the leadership of a group, under a term above one that was seen."""

    kind: ClassVar[str] = "streamlease.lead"
    id_prefix: ClassVar[str] = "streamlease-leader-"
    """How the ids of these jobs begin."""

    group: str
    above: int

    @property
    def arguments(self) -> tuple[str, int]:
        """As they stand in a job."""
        return self.group, self.above

    @classmethod
    def read(cls, arguments: list[object]) -> LeadGroup:
        """The job with these arguments.

        Raises:
            JobRefused: they are not a group and a term.
        """
        match arguments:
            case [str(group), int(above)] if not isinstance(above, bool):
                pass
            case _:
                raise JobRefused("its data is not a call with a group and a term")
        try:
            if SharedSubscription.parse(f"$shared/{group}").id != group or not 0 <= above <= HIGHEST_TOLD:
                raise JobRefused(f"there is no group {ascii(group)[:80]} with a term above {above}")
        except InvalidTopic as error:
            raise JobRefused(str(error)) from None
        return cls(group, above)

    def __str__(self) -> str:
        return f"lead {self.group}"


LONGEST_ORDER = 128 * 1024
"""Characters of an order, with the job in it."""


@dataclass(frozen=True, slots=True)
class SpawnWorkers:
    """Run workers of a query. What is to be run is in the order, which the executor believes only if it is
    signed (`streamlease.queries`)."""

    kind: ClassVar[str] = "streamlease.spawn"
    id_prefix: ClassVar[str] = "streamlease-spawn-"

    order: str
    signature: str

    @property
    def arguments(self) -> tuple[str, str]:
        """As they stand in a job."""
        return self.order, self.signature

    @classmethod
    def read(cls, arguments: list[object]) -> SpawnWorkers:
        """The job with these arguments.

        Raises:
            JobRefused: they are not an order and a signature.
        """
        match arguments:
            case [str(order), str(signature)] if len(order) <= LONGEST_ORDER and len(signature) <= 128:
                return cls(order, signature)
            case _:
                raise JobRefused("its data is not a call with an order and a signature")

    def __str__(self) -> str:
        return "spawn workers"


SpawnJob = LeadGroup | SpawnWorkers
"""All that a process may be asked to run."""


class JobQueue(NamedTuple):
    """A queue of RQ, and the kinds of jobs that are known in it."""

    name: str
    kinds: Mapping[str, type[SpawnJob]]

    @property
    def failed(self) -> str:
        """Key of the jobs that failed or were refused."""
        return f"rq:failed:{self.name}"


LEADERS = JobQueue(QUEUE, MappingProxyType({LeadGroup.kind: LeadGroup}))
"""That of the leader hosts."""

EXECUTOR_QUEUES = "streamlease-executor-"


def executor_queue(executor: str) -> JobQueue:
    """That of the executor of this name."""
    return JobQueue(f"{EXECUTOR_QUEUES}{executor}", MappingProxyType({SpawnWorkers.kind: SpawnWorkers}))


def spawn_job(call: object, queue: JobQueue = LEADERS) -> SpawnJob:
    """The job that a call, as JSON has it, stands for.

    Raises:
        JobRefused: it is of no kind that is known in the queue, or not in its form.
    """
    match call:
        case [str(kind), None, [*arguments], {**rest}] if not rest:
            known = queue.kinds.get(kind)
            if known is None:
                raise JobRefused(f"it calls {ascii(kind)[:80]}")
            return known.read(arguments)
        case _:
            raise JobRefused("its data is not a call by kind and arguments")
