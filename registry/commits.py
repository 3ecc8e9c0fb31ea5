"""Commits by those who have the streams: one script, fenced by the lease epoch.

Who may commit a stream stands beside the group's journal, written by the leader in the same act as the lease;
when a stream changes hands, its leader learns in that act how far it is. So nobody waits for the leader with
a commit, and nobody commits what he has no more (``docs/decisions/0247-who-has-a-stream-commits-it.md``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from streamlease.protocol.errors import NotDurable
from streamlease.registry import keys
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.durability import Durability
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.redis.lines.direct_line import DirectLine
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.redis.scripts import Call, load_script

_COMMIT = load_script("streamlease.registry", "commit")

MOST = 1000
"""Streams in one call."""


class StreamCommit(NamedTuple):
    """All below `offset` of the stream is done, says who has it under that lease epoch."""

    stream: str
    lease_epoch: int
    offset: int


class GroupCommits:
    """Commits streams of the group with identity `group` (``GROUP/FILTER``).

    Args:
        lines: where a commit goes that need not be more durable than in memory, if one is free.
    """

    def __init__(self, redis: AsyncRedis, group: str, lines: DirectLines | None = None) -> None:
        self._redis = redis
        self._lines = lines
        self._line: DirectLine | None = None
        """The one that the last commit was written on."""
        self._group = group
        self._keys = [keys.leases(group), keys.progress(group)]
        self._durable = b""
        """What the leader demands, as it was last read; the first commit shows it."""
        self._choices: tuple[Durability, ...] = ()

    async def write(self, commits: Sequence[StreamCommit]) -> list[bool]:
        """Commit streams, at most `MOST`; which of these leases stand. Of the others nothing is changed.

        Raises:
            StoreUnavailable, StoreRefused: nothing was committed.
            NotDurable: they are committed, but not as durably as their spaces demand.
            Indefinite: they are committed, or not.
        """
        if self._lines is not None:
            heard: asyncio.Future[list[bool] | None] = asyncio.get_running_loop().create_future()
            if self.write_on_line(commits, lambda stand: None if heard.done() else heard.set_result(stand)):
                stand = await heard
                if stand is not None:
                    return stand
        call = self._call(commits)
        while True:
            (durable, *stands), why = await run_durably(self._redis, call, self._choices)
            if durable == self._durable:
                break
            self._durable = durable
            self._choices = tuple(map(Durability.parse, durable.decode().split()))
        if why:
            raise NotDurable(f"streams of {self._group} are committed, but not durably: {why}")
        if self._lines is not None and not self._choices:
            self._lines.want(self._keys[0])
        return [one == 1 for one in stands]

    def write_on_line(
        self, commits: Sequence[StreamCommit], heard: Callable[[list[bool] | None], None]
    ) -> bool:
        """Commit streams in the caller's turn, if there is a free line on which that is durable enough.

        Args:
            heard: told later, once, as `write` answers; None: it was done, or not, and is to be repeated.

        Returns:
            whether it was written.
        """
        if self._lines is None or self._choices:
            return False
        if self._line is None or not self._line.is_free:
            self._line = self._lines.to(self._keys[0])
        if self._line is None:
            return False
        self._line.ask(self._call(commits).command, lambda reply: heard(self._stand(reply)))
        return True

    def _stand(self, reply: Any) -> list[bool] | None:
        if not isinstance(reply, list) or reply[0] != self._durable:
            return None
        return [one == 1 for one in reply[1:]]

    def _call(self, commits: Sequence[StreamCommit]) -> Call:
        return _COMMIT.call(self._keys, [part for commit in commits for part in commit])


async def committed(redis: AsyncRedis, group: str, streams: Sequence[str]) -> dict[str, int]:
    """How far these streams are, whoever committed them; without those of which nothing is known.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    if not streams:
        return {}
    (found,) = await ask(redis, [("HMGET", keys.progress(group), *streams)])
    return {s: int(at) for s, at in zip(streams, found, strict=True) if at is not None and at.isdigit()}
