"""Who lives in a world with an archive: hosts, commands, publishers, and readers over the seam."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamlease.hosts.archiving import ArchiveUpkeep
from streamlease.hosts.trimming import Retainer
from streamlease.protocol.errors import Fenced, HistoryTruncated, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.archiver import Archiver
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.archive.many_writers import run_in_pieces
from streamlease.streams.archive.stream_pieces import Halt, StreamPiece, files_of
from streamlease.streams.archive.upkeep_steps import merge, tidy
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.testing.memory.memory_connection import connect, connect_redis
from streamlease.testing.timelines.loops import Process
from tests.simulation.archive.threads import blocking_redis
from tests.simulation.epochs.actors import UNANSWERED
from tests.simulation.epochs.readers import text_of
from tests.simulation.epochs.written import TEXT
from tests.simulation.judge import Violation
from tests.simulation.network import FaultyLine

if TYPE_CHECKING:
    from tests.simulation.archive.world import ArchiveWorld

SPACE = "s"
FILTER = "s/#"
FAILURES = (*UNANSWERED, Fenced)
"""What an archiver may be told: it says so, and begins anew."""


class Actor:
    """One process, and its line."""

    kind = ""

    def __init__(self, world: ArchiveWorld) -> None:
        self.world = world
        self.process: Process
        self.line: FaultyLine
        self.process, self.line = world.process(self.kind)
        self.name = self.process.name
        self.process.start(self._live())

    async def _live(self) -> None:
        try:
            await self.run()
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{self.name} ends with {type(error).__name__}: {error}") from error

    async def run(self) -> None:
        """What it does."""
        raise NotImplementedError

    def end(self) -> None:
        """The process ends by itself."""
        if not self.world.over:
            self.process.kill()


class Host(Actor):
    """A leader host: it archives, and trims, as far as it has the claims."""

    kind = "host"

    async def run(self) -> None:
        world = self.world
        redis = connect_redis(world.server, self.line)
        world.lines[id(redis)] = self.line

        def now() -> int:
            return int(self.process.clock() * 1000)

        upkeep = ArchiveUpkeep(redis, self.name, now)
        retainer = Retainer(redis, self.name, now, interval=0.9)

        async def archived() -> None:
            for done in await upkeep.round():
                world.archived(self.name, done)

        async def trimmed() -> None:
            before = await retainer.round()
            world.sometimes["a stream is trimmed"] += any(one.entries for one in before.trimmed)

        self.process.start(self._again(trimmed, 0.9))
        await self._again(archived, 0.5)

    async def _again(self, round: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            try:
                await round()
            except UNANSWERED:
                self.world.sometimes["a round of a host has no answer"] += 1
            await asyncio.sleep(seconds)


class Command(Actor):
    """Somebody archives by hand, beside the host that does it; or as Spark does; or joins and sweeps."""

    kind = "command"

    async def run(self) -> None:
        world = self.world
        work = world.random.choice((self._archive, self._archive, self._in_pieces, self._merge, self._tidy))
        try:
            space = await SpaceStore(connect_redis(world.server, self.line)).get(SPACE)
            assert space.archive is not None
            archiver = Archiver(blocking_redis(world, self.line), space, space.archive)
            await asyncio.to_thread(work, archiver)
        except FAILURES as error:
            world.kernel.note(self.name, "fails", type(error).__name__)
            world.sometimes["a command fails"] += 1
        self.end()

    def _archive(self, archiver: Archiver) -> None:
        self.world.archived(self.name, archiver.run())

    def _in_pieces(self, archiver: Archiver) -> None:
        space = archiver.space
        assert space.archive is not None
        uri = space.archive.uri

        def write(pieces: Any, schema: pa.Schema) -> list[list[ArchivedFile | Halt]]:
            return [[*self._piece(archiver, uri, one, schema)] for one in pieces]

        self.world.archived(self.name, run_in_pieces(archiver, write, most_bytes=200))
        self.world.sometimes["pieces are written"] += 1

    def _piece(
        self, archiver: Archiver, uri: str, piece: StreamPiece, schema: pa.Schema
    ) -> list[ArchivedFile | Halt]:
        if self.world.random.random() < 0.1:
            [*files_of(archiver.redis, uri, piece, schema, collection=False)]  # a task that is repeated
        return [*files_of(archiver.redis, uri, piece, schema, collection=False)]

    def _merge(self, archiver: Archiver) -> None:
        self.world.sometimes["files are joined"] += merge(archiver).files > 0

    def _tidy(self, archiver: Archiver) -> None:
        swept = tidy(
            archiver,
            self.world.timeline.now,
            grace=self.world.grace,
            keep_seconds=self.world.timeline.now - time.time() - 10,
        )[1]
        self.world.sometimes["files are swept"] += swept > 0


class Sender(Actor):
    """Publishes messages, each of which is known."""

    kind = "sender"

    def __init__(self, world: ArchiveWorld) -> None:
        self.leaving = False
        self._pace = world.random.choice((60, 150, 300))
        super().__init__(world)

    async def run(self) -> None:
        world, random = self.world, self.world.random
        client = connect(world.server, self.line, embedded=False)
        publisher = client.publisher(delivery_timeout=4.0)
        while not self.leaving:
            texts = [f"{self.name} {world.number()}" for _ in range(random.randint(1, 4))]
            sending = [publisher.send(f"s/{random.randrange(6)}", b"x", headers={TEXT: one}) for one in texts]
            for text, outcome in zip(
                texts, await asyncio.gather(*sending, return_exceptions=True), strict=True
            ):
                if not isinstance(outcome, BaseException):
                    world.truth.acknowledged.add(text)
                elif not isinstance(outcome, UNANSWERED):
                    raise outcome
            await asyncio.sleep(random.randint(1, 2 * self._pace) / 1000)
        self.end()


class AnyReader(Actor):
    """Reads, and begins anew when it cannot go on."""

    def excuse(self, error: HistoryTruncated) -> None:
        """Whether it may be told that."""
        world = self.world
        lossy = isinstance(error, MissingOffsets)
        if not (bool(world.written.former) if lossy else world.retention):
            raise Violation(f"[16] {self.name} is told what did not happen: {type(error).__name__}: {error}")
        if not lossy and error.stream:
            exists = world.truth.figures_of(StreamId.parse(error.stream))[3]
            if error.oldest > exists:
                raise Violation(
                    f"[16] {self.name} is told that {error.oldest} is the oldest, and it is {exists}"
                )
        world.sometimes[f"a reader is told {type(error).__name__}"] += 1

    @property
    def trouble(self) -> str:
        """What it still lacks; empty: nothing."""
        return ""


class Listener(AnyReader):
    """Reads each stream, from the earliest on, at its own pace."""

    kind = "listener"

    def __init__(self, world: ArchiveWorld) -> None:
        self._at: dict[str, int] = {}
        self._slow = world.random.choice((0.0, 0.02, 0.3))
        self._most = world.random.choice((3, 1000))
        super().__init__(world)

    async def run(self) -> None:
        client = connect(self.world.server, self.line, embedded=False)
        while True:
            try:
                await self._read(client)
            except UNANSWERED:
                self.world.sometimes["a reader begins anew"] += 1
            except HistoryTruncated as error:
                self.excuse(error)
                self._at = {}
            await asyncio.sleep(0.3)

    async def _read(self, client: Any) -> None:
        new = not self._at
        async with client.listen(FILTER, start=self._at or "earliest", max_batch=self._most) as batches:
            self._at = self._at or batches.positions
            untouched = {*self._at} if new else set()
            async for batch in batches:
                stream = str(batch.stream)
                if batch.start != self._at.get(stream, batch.start) and stream not in untouched:
                    raise Violation(
                        f"{self.name} is at {self._at[stream]} in {stream} and gets {batch.start}"
                    )
                untouched.discard(stream)
                truth = self.world.truth.texts(stream)
                for one in batch.messages:
                    if truth.get(one.offset) != text_of(one):
                        raise Violation(f"{self.name} gets {text_of(one)} at {one.offset} of {stream}")
                if [one.offset for one in batch.messages] != [*range(batch.start, batch.end)]:
                    raise Violation(f"{self.name} gets not all from {batch.start} to {batch.end} of {stream}")
                memory = self.world.truth.figures_of(StreamId.parse(stream))[1]
                self.world.sometimes["a listener reads what is in files only"] += batch.start < memory
                self._at[stream] = batch.end
                if self._slow and not self.world.healing:
                    await asyncio.sleep(self._slow)

    @property
    def trouble(self) -> str:
        there = {stream: end for stream, end in self._at.items() if end}
        ends = {stream: end for stream, end in self.world.written.now.ends.items() if end}
        return "" if there == ends else f"{self.name} is at {there} of {ends}"


class Cutter(AnyReader):
    """Reads ranges as Spark's tasks do, and the same ones again, when the seam has moved."""

    kind = "cutter"

    async def run(self) -> None:
        redis = blocking_redis(self.world, self.line)
        random = self.world.random
        cuts: dict[tuple[str, int, int], list[str]] = {}
        while True:
            ends = {stream: end for stream, end in self.world.written.now.ends.items() if end}
            if ends:
                stream = random.choice([*ends])
                begin = random.randrange(ends[stream])
                fresh = stream, begin, min(ends[stream], begin + random.randint(1, 30))
                cut = random.choice([fresh, *cuts])
                found = await asyncio.to_thread(self._rows, redis, *cut)
                if found is not None:
                    self._compare(cut, found, cuts)
            await asyncio.sleep(random.random() / 2)

    def _compare(
        self, cut: tuple[str, int, int], found: list[str], cuts: dict[tuple[str, int, int], list[str]]
    ) -> None:
        stream, begin, end = cut
        truth = self.world.truth.texts(stream)
        if found != [truth[offset] for offset in range(begin, end)]:
            raise Violation(f"[8] {self.name} gets {found} of {stream} from {begin} to {end}")
        self.world.sometimes["a cut is read again"] += cut in cuts
        floor = self.world.truth.figures_of(StreamId.parse(stream))[1]
        self.world.sometimes["a cut on both sides of the seam"] += begin < floor < end
        cuts[cut] = found

    def _rows(self, redis: Any, stream: str, begin: int, end: int) -> list[str] | None:
        try:
            tables = [*read_range(redis, StreamId.parse(stream), begin, end)]
        except StoreUnavailable:
            self.world.sometimes["a task fails"] += 1
            return None
        except HistoryTruncated as error:
            self.excuse(error)
            return None
        except StreamleaseError as error:
            raise Violation(f"[16] {self.name} is told {type(error).__name__}: {error}") from error
        return [
            next(one["value"].decode() for one in headers if one["key"] == TEXT)
            for table in tables
            for headers in table.column("headers").to_pylist()
        ]
