"""Writes a consumer's commits: one write under way, and all that comes meanwhile goes with the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
        written: called with streams and how far each is committed durably.
        told_leader: called with a stream whose commit is for its leader: the lease does not stand, as far as
            Redis knows, or Redis does not answer.
    """

    def __init__(
        self,
        commits: GroupCommits,
        tasks: Supervisor,
        holds: Callable[[Held], bool],
        written: Callable[[Sequence[tuple[Held, int]]], None],
        told_leader: Callable[[Held], None],
    ) -> None:
        self._commits = commits
        self._tasks = tasks
        self._holds = holds
        self._written = written
        self._told_leader = told_leader
        self._waiting: dict[Held, None] = {}
        self._busy = False

    def add(self, held: Held, *, at_once: bool = False) -> None:
        """Commit the stream as far as the book says, in order.

        Args:
            at_once: somebody waits: if nothing is under way, it is written in this turn, where that can be.
                What nobody waits for is written with all else that comes in this turn.
        """
        self._waiting[held] = None
        if not self._busy:
            self._busy = True
            if not (at_once and self._write_on_line()):
                self._start()

    def _start(self) -> None:
        self._tasks.start("committing", self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._write(self._next())
        finally:
            self._busy = False

    def _next(self) -> list[Held]:
        """What is to be written next; it does not wait any more."""
        some = [*self._waiting][:MOST]
        for held in some:
            del self._waiting[held]
        return [held for held in some if self._holds(held)]

    async def _write(self, some: list[Held]) -> None:
        commits = _commits(some)
        try:
            stand = await self._commits.write(commits) if commits else []
        except StreamleaseError as error:
            log.info("commits go by way of the leader: %s", error)
            stand = [False] * len(commits)
        self._done(some, commits, stand)

    def _write_on_line(self) -> bool:
        """Write some of what waits in this turn; False: that cannot be, and all of it waits."""
        some = self._next()
        commits = _commits(some)
        if commits and self._commits.write_on_line(commits, partial(self._heard, some, commits)):
            return True
        self._waiting = {**dict.fromkeys(some), **self._waiting}
        return False

    def _heard(self, some: list[Held], commits: list[StreamCommit], stand: list[bool] | None) -> None:
        """What was written on a line is answered, or will not be: then it is written once more."""
        try:
            if stand is not None:
                self._done(some, commits, stand)
            else:
                self._waiting = {**dict.fromkeys(some), **self._waiting}
            if not any(map(self._holds, self._waiting)):  # the consumer may have ended meanwhile
                self._waiting.clear()
                self._busy = False
            elif stand is None or not self._write_on_line():
                self._start()
        except Exception as error:  # whoever reads from the line is not to blame
            self._busy = False
            self._tasks.tell("committing", error)

    def _done(self, some: list[Held], commits: list[StreamCommit], stand: list[bool]) -> None:
        written: list[tuple[Held, int]] = []
        for held, commit, stands in zip(some, commits, stand, strict=True):
            if not self._holds(held):
                continue
            if stands:
                written.append((held, commit.offset))
            else:
                self._told_leader(held)
        if written:
            self._written(written)


def _commits(some: Iterable[Consumed]) -> list[StreamCommit]:
    return [StreamCommit(held.stream, held.lease_epoch, held.committed) for held in some]
