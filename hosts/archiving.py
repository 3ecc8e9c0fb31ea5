"""Archives: one of the leader hosts writes the older messages of the spaces that have one into their tables.

::

    claim --> for each space: archive what is worth a file --> retire what retention wants to go
          --> now and then: join small files, let old snapshots go, sweep

What protects the archive is said in `streams/archive/archiver.py`; the claim saves work, and its term lets
a host that was followed by another stop early.

A stream is worth a file when it has `FILE_BYTES` that are in none, or the oldest of these has waited for
`WAIT_SECONDS`, or for a quarter of the time that messages stay in memory; and where the memory of a space has
a size, also when it has its share of half of that.

The work is done in a thread. After each step (a look at the table, a file that is written or joined) it rests
for five times as long as that took, so it takes a sixth of a core at most, and leaders and publishers go
first. The fuller Redis is, the less it rests (`RESTS`). A space that somebody else works at, such as a job
with many writers, is left alone meanwhile; and while somebody waits for the turn of this host, it does not
rest, begins no further file, and lets them have it (`streams/archive/archive_turns.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import inf
from typing import Any, TypeVar

from streamlease.hosts.claim import Claim
from streamlease.protocol.errors import Fenced, Indefinite, StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId, random_token
from streamlease.registry import group_needs, keys
from streamlease.registry.group_needs import Holds, needs
from streamlease.registry.groups import Groups
from streamlease.streams.archive import archive_turns
from streamlease.streams.archive.archiver import Archived, Archiver
from streamlease.streams.archive.iceberg_table import Manifests
from streamlease.streams.archive.recording import Recorded, recorded
from streamlease.streams.archive.upkeep_steps import merge, retire, runs, tidy
from streamlease.streams.collections.snapshots import look_at_snapshots
from streamlease.streams.log.times import server_time
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis
from streamlease.streams.redis.memory_use import memory_use
from streamlease.streams.redis.urls import blocking_twin
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.retirement import retirable
from streamlease.streams.spaces.spaces import SpaceStore

log = logging.getLogger(__name__)

T = TypeVar("T")

CLAIM = keys.ARCHIVES
"""The name under which the claim stands."""

INTERVAL_SECONDS = 5.0
TURN_SECONDS = 20.0
"""After so long with one space it is the turn of the others."""

LOOK_SECONDS = 1.0
"""How often a host that works at a space looks whether somebody waits for its turn."""

FILE_BYTES = 32 * 1024 * 1024
LEAST_BYTES = 1024 * 1024
"""Fewer are not worth a file before they have waited, however little may stay in memory."""

WAIT_SECONDS = 60.0
RESTS = ((0.5, 5.0), (0.75, 2.0), (inf, 1.0))
"""Where Redis uses less than that of its memory, a rest lasts so many times as long as the step before it."""

MANY_FILES = 16
"""So many small files of a stream are joined."""

PRUNE_SECONDS = 30.0
"""How often the files of a space are looked at: which may go, and which are to be joined."""

TIDY_SECONDS = 3600.0


class ArchiveUpkeep:
    """Archives of one leader host.

    Args:
        clock: this process' own clock in milliseconds.
        spaces: those of the whole host, if it hears of each definition that changes; None: its own, which it
            reads in each round.
    """

    def __init__(
        self, redis: AsyncRedis, host: str, clock: Callable[[], int], spaces: SpaceStore | None = None
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._look = SpaceStore(redis).look if spaces is None else spaces.recent
        self._groups = Groups(redis)
        self._claim = Claim(redis, CLAIM, host, clock, INTERVAL_SECONDS)
        self._waiting: dict[StreamId, tuple[int, int]] = {}
        """From which offset on nothing is archived, and since when this host has seen it so."""
        self._pruned: dict[str, int] = {}
        self._tidied: dict[str, int] = {}
        self._last: dict[str, StreamId] = {}
        """Of each space, the stream at which its last turn ended: others go first then."""
        self._whose = f"{host} {random_token()}"
        self._manifests = Manifests()
        self._told: dict[str, str] = {}
        self._rest = RESTS[0][1]
        self._blocking: BlockingRedis | None = None

    async def round(self) -> list[Archived]:
        """Do what is due now, if this host has the claim or can get it; what was archived.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        spaces = [one for one in (await self._look()).listed if one.archive is not None]
        if spaces and find_spec("pyiceberg") is None:
            self._tell(spaces[0].name, "this host has no pyiceberg: pip install 'streamlease[archive]'")
            return []
        if not spaces or not await self._claim.get():
            self._waiting.clear()
            return []
        if self._blocking is None:
            self._blocking = blocking_twin(self._redis)
        await self._pace()
        done: list[Archived] = []
        for space in spaces:
            if not await self._claim.get():
                break
            try:
                done.append(await self._of(space, self._blocking))
                self._told.pop(space.name, None)
            except StreamleaseError as error:
                self._tell(space.name, str(error))
        return done

    async def _pace(self) -> None:
        """How long the thread rests: what is written now stays in memory until it is archived."""
        used = await memory_use(self._redis)
        self._rest = next(rest for below, rest in RESTS if used < below)

    def _tell(self, space: str, why: str) -> None:
        """Once for each reason."""
        if self._told.get(space) != why:
            self._told[space] = why
            log.warning("archive of space %s: %s", space, why)

    async def close(self) -> None:
        """Let another host have the claim at once.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: it expires by itself.
        """
        if self._blocking is not None:
            self._blocking.close()
            self._blocking = None
        await self._claim.give_up()

    async def _of(self, space: Space, redis: BlockingRedis) -> Archived:
        assert space.archive is not None
        turn = _Turn(space.name)
        archiver = Archiver(
            redis,
            space,
            space.archive,
            self._claim.term,
            sure=lambda: self._claim.sure and not turn.over,
            rest=lambda seconds: turn.rest(seconds * self._rest),
            enough=lambda: turn.wanted,
            manifests=self._manifests,
        )
        known = await asyncio.to_thread(recorded, redis, space.streams(), with_files=False)
        # All of them are looked at, so that each begins to wait.
        due = sum(self._is_due(space, stream, one, _begin(one)) for stream, one in known.items()) > 0
        prune = self._clock() - self._pruned.get(space.name, 0) >= PRUNE_SECONDS * 1000
        if not (due or prune) or not await archive_turns.take(self._redis, space.name, self._whose):
            return Archived(space.name)
        try:
            done = await self._archive(space, archiver, turn) if due else Archived(space.name)
            if prune:
                await self._prune(space, archiver, turn)
        finally:
            turn.end()
            with contextlib.suppress(StoreUnavailable, StoreRefused, Indefinite):  # it ends by itself
                await archive_turns.give_up(self._redis, space.name, self._whose)
        return done

    async def _archive(self, space: Space, archiver: Archiver, turn: _Turn) -> Archived:
        done = await self._held(
            turn,
            archiver.run,
            lambda *about: self._is_due(space, *about),
            seconds=TURN_SECONDS,
            last=self._last.get(space.name),
        )
        if done.last is not None:
            self._last[space.name] = done.last
        for stream, why in done.troubles.items():
            log.error("archive of %s stands still: %s", stream, why, extra={"stream": stream})
        return done

    async def _prune(self, space: Space, archiver: Archiver, turn: _Turn) -> None:
        """Let go of files, and of snapshots, that are not wanted any more; join small files."""
        self._pruned[space.name] = self._clock()
        known = await asyncio.to_thread(recorded, archiver.redis, space.streams())
        await self._retire(space, archiver, known, turn)
        if turn.wanted:
            return
        if any(len(run) >= MANY_FILES for one in known.values() for run in runs(one.files)):
            await self._held(turn, merge, archiver, seconds=TURN_SECONDS)
        tidied = self._tidied.setdefault(space.name, self._clock())
        if not turn.wanted and self._clock() - tidied >= TIDY_SECONDS * 1000:
            self._tidied[space.name] = self._clock()
            await self._held(turn, tidy, archiver, time.time())

    async def _held(self, turn: _Turn, work: Callable[..., T], *about: Any, **more: Any) -> T:
        """`work` in a thread, while the claim of this host, and its turn at the space, are renewed.

        What cannot be renewed now may be later: the thread asks by itself whether the claim is sure. It
        hurries while somebody waits for the turn.
        """
        task = asyncio.ensure_future(asyncio.to_thread(work, *about, **more))
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=LOOK_SECONDS)
                if done:
                    return task.result()
                with contextlib.suppress(StoreUnavailable, StoreRefused, Indefinite):
                    await self._claim.get()
                    if await archive_turns.wanted(self._redis, turn.space, self._whose):
                        turn.make_room()
                    await self._pace()
        finally:
            if not task.done():  # this host stops, and the thread ends with its next step
                task.add_done_callback(_tell_end)

    def _is_due(self, space: Space, stream: StreamId, known: Recorded, begin: int) -> bool:
        state = known.state
        if begin >= state.next:
            self._waiting.pop(stream, None)
            return False
        now = self._clock()
        first, since = self._waiting.get(stream, (begin, now))
        if first < begin:
            since = now
        self._waiting[stream] = begin, since
        keep = None if space.archive is None else space.archive.keep_ms
        wait = WAIT_SECONDS * 1000 if keep is None else min(WAIT_SECONDS * 1000, keep / 4)
        return now - since >= wait or (state.next - begin) * state.mean_bytes >= _file_bytes(space)

    async def _retire(
        self, space: Space, archiver: Archiver, known: dict[StreamId, Recorded], turn: _Turn
    ) -> None:
        """Take out of the archive what retention does not want any more and no group needs."""
        if not space.retention.limited:
            return
        now = await server_time(self._redis)
        limits = retirable(space, {stream: (one.files, one.state) for stream, one in known.items()}, now)
        if not _retiring(limits, known):
            return  # whatever groups need, of which there may be very many
        groups = await needs(self._redis, self._groups, [space])
        if space.collection:
            # What is behind a snapshot is in the files only, so not even force removes it.
            snapshots, _ = await look_at_snapshots(self._redis, [*limits])
            limits = {stream: min(limits[stream], one.upto) for stream, one in snapshots.items()}
        if not space.retention.force:
            holds = Holds({stream: one.state.next for stream, one in known.items()}, groups)
            limits = {stream: min(limit, holds.of(stream).limit) for stream, limit in limits.items()}
        if due := _retiring(limits, known):
            floors = await self._held(turn, retire, archiver, due)
            await group_needs.tell_passed(
                self._redis, [one.subscription.id for one in _passed(groups, floors)]
            )


class _Turn:
    """The turn of this host at a space, as the thread sees it that works there.

    It is over when this host stops. While somebody waits for it there are no rests, and no new files.
    """

    def __init__(self, space: str) -> None:
        self.space = space
        self.over = False
        self.wanted = False
        self._stir = threading.Event()

    def rest(self, seconds: float) -> None:
        """Sleep.

        Raises:
            Fenced: it is over.
        """
        self._stir.wait(seconds)
        if self.over:
            raise Fenced(f"archive of space {self.space}: this host stops")

    def make_room(self) -> None:
        """Somebody waits."""
        self.wanted = True
        self._stir.set()

    def end(self) -> None:
        """This host stops, or is done: a thread that is at work still ends with its next step."""
        self.over = True
        self._stir.set()


def _file_bytes(space: Space) -> float:
    """So much of a stream that is in no file is worth one."""
    most = None if space.archive is None else space.archive.keep_bytes
    if most is None:
        return FILE_BYTES
    return min(FILE_BYTES, max(LEAST_BYTES, most / 2 / space.generations[-1].streams))


def _tell_end(thread: asyncio.Task[Any]) -> None:
    """What a thread came to for which nobody waited."""
    if not thread.cancelled() and (error := thread.exception()) is not None:
        log.info("%s", error)


def _retiring(limits: Mapping[StreamId, int], known: Mapping[StreamId, Recorded]) -> dict[StreamId, int]:
    """Those of the limits up to which there is a file."""
    return {
        stream: limit
        for stream, limit in limits.items()
        if any(file.next <= limit for file in known[stream].files)
    }


def _begin(known: Recorded) -> int:
    return max(known.archived, 0 if known.archived else known.state.memory.first)


def _passed(
    groups: Sequence[group_needs.GroupProgress], floors: dict[StreamId, int]
) -> list[group_needs.GroupProgress]:
    return [
        group
        for group in groups
        if group.expired_at is None
        and any(need < floors.get(stream, 0) for stream, need in group.needs.items())
    ]
