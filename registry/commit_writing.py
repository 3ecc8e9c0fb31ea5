"""Writes a consumer's commits: one write under way, and all that comes meanwhile goes with the next."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from streamlease.protocol.errors import StreamleaseError
from streamlease.registry.commits import MOST, GroupCommits, StreamCommit
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)


class Consumed(Protocol):
    """A stream on which a consumer works."""

    @property
    def stream(self) -> str:
        """Its name."""
        ...

    @property
    def lease_epoch(self) -> int:
        """That of the newest lease."""
        ...

    @property
    def committed(self) -> int:
        """Next offset that the consumer has not committed."""
        ...

    @property
    def acknowledged(self) -> int:
        """Next offset that is not durably committed."""
        ...


Held = TypeVar("Held", bound=Consumed)


class CommitWriting(Generic[Held]):
    """The commits of one consumer on their way to Redis.

    Args:
        holds: whether the work on a stream goes on; only then its commit is written.
        written: called with a stream and how far it is committed durably.
        told_leader: called with a stream whose commit is for its leader: the lease does not stand, as far as
            Redis knows, or Redis does not answer.
    """

    def __init__(
        self,
        commits: GroupCommits,
        tasks: Supervisor,
        holds: Callable[[Held], bool],
        written: Callable[[Held, int], None],
        told_leader: Callable[[Held], None],
    ) -> None:
        self._commits = commits
        self._tasks = tasks
        self._holds = holds
        self._written = written
        self._told_leader = told_leader
        self._waiting: dict[Held, None] = {}
        self._busy = False

    def add(self, held: Held) -> None:
        """Commit the stream as far as the book says, in order."""
        self._waiting[held] = None
        if not self._busy:
            self._busy = True
            self._tasks.start("committing", self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                some = [*self._waiting][:MOST]
                for held in some:
                    del self._waiting[held]
                await self._write([held for held in some if self._holds(held)])
        finally:
            self._busy = False

    async def _write(self, some: list[Held]) -> None:
        commits = [StreamCommit(held.stream, held.lease_epoch, held.committed) for held in some]
        try:
            stand = await self._commits.write(commits) if commits else []
        except StreamleaseError as error:
            log.info("commits go by way of the leader: %s", error)
            stand = [False] * len(commits)
        for held, commit, stands in zip(some, commits, stand, strict=True):
            if not self._holds(held):
                continue
            if stands:
                self._written(held, commit.offset)
            else:
                self._told_leader(held)
