"""Archiving a space: from the memory of Redis into files, into the table, into Redis' record of both.

::

    read the table --> record what it has and Redis does not know --> read messages --> write files, prove
        them --> commit them in one snapshot --> record them --> (retention may trim)

* What is archived next of a stream is what lies behind the files *of the snapshot that the commit stands
  on*. Two archivers that wrote the same messages cannot both commit; the one that cannot throws its files
  away, once it has seen that the table does not name them. The term keeps the later one from being disturbed
  for long, and nothing more depends on it.
* After a crash, or an answer that never came, the next run begins with the table: files that were committed
  are read again and recorded; files that were not are no part of anything, and are swept away one day.
* Trimming is not done here. It goes up to what is recorded, whoever asks for it.
* Offsets that Redis has lost (``MissingOffsets``) are in no file. The stream goes on behind them, and a
  reader is told there what it would be told by Redis.

In memory are one row group, one step of reading, and what the client of the store holds back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import Fenced, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.files.file_reading import OpenFile
from streamlease.streams.archive.files.index import ArchivedFile, covers
from streamlease.streams.archive.files.places import remove
from streamlease.streams.archive.iceberg_table import Manifests, SpaceTable, TableFile
from streamlease.streams.archive.lost_past import let_go, of_a_lost_past
from streamlease.streams.archive.recording import (
    ArchiveMoved,
    CommitRefused,
    FileChange,
    Recorded,
    record,
    recorded,
)
from streamlease.streams.archive.stream_pieces import Halt, StreamPiece, files_of
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space

log = logging.getLogger(__name__)

COMMIT_FILES = 64
COMMIT_BYTES = 1024 * 1024 * 1024
"""After so much the files are committed, and what they hold may leave the memory."""

ATTEMPTS = 5


@dataclass(slots=True)
class Archived:
    """What a run came to."""

    space: str
    messages: int = 0
    files: list[ArchivedFile] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)
    healed: int = 0
    """Files that were in the table, or recorded, and are now both."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Streams that cannot be archived further, and why."""
    more: bool = False
    """Whether it stopped before its work."""
    last: StreamId | None = None
    """The stream that it wrote for when it committed early, or stopped: others go first then."""

    def add(self, stream: StreamId, files: Sequence[ArchivedFile]) -> None:
        """Count files of a stream that were committed."""
        self.files += files
        self.streams.add(str(stream))
        self.messages += sum(one.next - one.first for one in files)

    @property
    def bytes(self) -> int:
        """Of the files."""
        return sum(one.size for one in self.files)


Wanted = Callable[[StreamId, Recorded, int], bool]
"""Whether a stream is worth a file now, of which all below an offset is archived."""


def everything(stream: StreamId, known: Recorded, begin: int) -> bool:
    """Each that has any message."""
    return True


class InTable(NamedTuple):
    """A stream, in Redis and in the table."""

    known: Recorded
    there: dict[str, TableFile]

    @property
    def end(self) -> int:
        """What is below it is in the table, or was retired."""
        ends = [file.next for file in self.there.values()]
        retired = self.known.exists if self.known.exists == self.known.archived else 0
        return max(ends, default=retired)

    @property
    def begin(self) -> int:
        """Where what is archived next begins: what is in no file, and no more in memory, is gone already."""
        return max(self.end, 0 if self.known.archived else self.known.state.memory.first)

    def lacks(self) -> list[ArchivedFile]:
        """Files that are recorded and hold what no file of the table does."""
        return [
            one
            for one in self.known.files
            if one.path not in self.there and not covers(self.there.values(), one.first, one.next)
        ]


class Archiver:
    """Archives one space, under one term.

    Args:
        term: of the claim; None: of nobody's, for a command that works beside whoever has it.
        sure: whether the claim is certainly held still.
        rest: called after each step with how many seconds it took: a look at the table, a file. It ends the
            work by raising.
        enough: whether no further file is to be begun.
        manifests: what the caller has seen of tables before.
    """

    def __init__(
        self,
        redis: BlockingRedis,
        space: Space,
        settings: ArchiveSettings,
        term: int | None = None,
        *,
        sure: Callable[[], bool] = lambda: True,
        rest: Callable[[float], None] = lambda seconds: None,
        enough: Callable[[], bool] = lambda: False,
        manifests: Manifests | None = None,
    ) -> None:
        self.redis = redis
        self.space = space
        self._settings = settings
        self._own_term = term
        self.term = term or 0
        self._sure = sure
        self._rest = rest
        self._enough = enough
        self._manifests = manifests or Manifests()

    @contextmanager
    def resting(self) -> Generator[None]:
        """Do something, and rest from it."""
        at = time.monotonic()
        yield
        self._rest(time.monotonic() - at)

    def late(self, until: float | None) -> bool:
        """Whether to begin no further file: it is enough, or `until`, by the monotonic clock, has come."""
        return self._enough() or (until is not None and time.monotonic() >= until)

    def run(
        self, wanted: Wanted = everything, *, seconds: float | None = None, last: StreamId | None = None
    ) -> Archived:
        """Archive what is wanted, as far as there is anything when it begins.

        Args:
            seconds: begin no file after so long.
            last: the stream that an earlier run stopped at.

        Raises:
            ArchiveUnavailable: the store or the catalog fails; what was committed stands.
            Fenced: another archiver has followed.
            Lost: a file is neither in the table nor in its place.
            Unsupported, StoreUnavailable, StoreRefused, Indefinite.
        """
        done = Archived(self.space.name, last=last)
        until = None if seconds is None else time.monotonic() + seconds
        ends: dict[StreamId, int] | None = None
        for attempt in range(ATTEMPTS):
            try:
                while True:
                    table, standing = self.look(done)
                    if ends is None:
                        ends = {stream: one.known.state.next for stream, one in standing.items()}
                    if not self._round(table, standing, ends, wanted, done, until):
                        return done
            except ArchiveMoved:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def look(self, done: Archived) -> tuple[SpaceTable, dict[StreamId, InTable]]:
        """The table and what Redis knows of it, brought together.

        Raises:
            ArchiveUnavailable, Fenced, Lost, StreamleaseError.
        """
        with self.resting():
            table = SpaceTable.open(self.redis, self.space, self._settings, self._manifests)
            there = table.files()
            known = recorded(self.redis, self.space.streams())
        if self._own_term is None:
            self.term = max((one.term for one in known.values()), default=0)
        standing = {stream: InTable(one, there.get(str(stream), {})) for stream, one in known.items()}
        lost = {
            stream: gone
            for stream, one in standing.items()
            if (gone := of_a_lost_past(self.redis, stream, one.known, one.there.values()))
        }
        if lost:
            let_go(table, known, there, lost, self.term)
            return self.look(done)
        lacking = {stream: files for stream, one in standing.items() if (files := one.lacks())}
        if lacking:
            self._put_back(table, lacking)
            done.healed += sum(map(len, lacking.values()))
            return self.look(done)
        changes = [change for stream, one in standing.items() if (change := _heal(stream, one)) is not None]
        if not changes:
            return table, standing
        record(self.redis, self.term, changes)
        done.healed += sum(len(one.new) for one in changes)
        return self.look(done)

    def _put_back(self, table: SpaceTable, lacking: Mapping[StreamId, Sequence[ArchivedFile]]) -> None:
        """Files that are recorded belong to the table, also to one that was restored from a backup."""
        for stream, files in lacking.items():
            for file in files:
                OpenFile(file, str(stream)).check_offsets()
        table.commit(lacking, [], {}, self.term)

    def _round(
        self,
        table: SpaceTable,
        standing: Mapping[StreamId, InTable],
        ends: Mapping[StreamId, int],
        wanted: Wanted,
        done: Archived,
        until: float | None,
    ) -> bool:
        """Files for one commit; whether there may be more."""
        schema = table.columns(self.space)
        written: dict[StreamId, list[ArchivedFile]] = {}
        more, late, size, begun = False, False, 0, {}
        try:
            for stream, one in self._in_turn(standing, done):
                begin, end = one.begin, min(ends.get(stream, 0), one.known.state.next)
                if begin >= end or str(stream) in done.troubles or not wanted(stream, one.known, begin):
                    continue
                begun[stream], at = begin, time.monotonic()
                with closing(self._files(StreamPiece(str(stream), begin, end), schema, done)) as files:
                    for file in files:
                        written.setdefault(stream, []).append(file)
                        size += file.size
                        more = sum(map(len, written.values())) >= COMMIT_FILES or size >= COMMIT_BYTES
                        self._rest(time.monotonic() - at)
                        at = time.monotonic()
                        late = self.late(until)
                        if more or late:
                            done.last = stream
                            break
                if more or late:
                    break
        except BaseException:
            _discard(written)
            raise
        if not written:
            return False
        try:
            with self.resting():
                self.commit(table, standing, begun, written, done)
        except CommitRefused:
            self.discard_unnamed(written)
            raise
        done.more = done.more or late
        return more and not late

    def _in_turn(
        self, standing: Mapping[StreamId, InTable], done: Archived
    ) -> list[tuple[StreamId, InTable]]:
        """All streams, those first that come after the one that had a file last."""
        streams, last = [*standing], done.last
        place = 0 if last is None or last not in standing else streams.index(last) + 1
        return [(stream, standing[stream]) for stream in (*streams[place:], *streams[:place])]

    def _files(self, piece: StreamPiece, schema: pa.Schema, done: Archived) -> Generator[ArchivedFile]:
        """Files with the messages of `piece`."""
        with closing(
            files_of(self.redis, self._settings.uri, piece, schema, collection=self.space.collection)
        ) as outcomes:
            for outcome in outcomes:
                if isinstance(outcome, Halt):
                    done.more = done.more or not outcome.trouble
                    if outcome.trouble:
                        done.troubles[piece.stream] = outcome.trouble
                    return
                yield outcome

    def commit(
        self,
        table: SpaceTable,
        standing: Mapping[StreamId, InTable],
        begun: Mapping[StreamId, int],
        written: Mapping[StreamId, Sequence[ArchivedFile]],
        done: Archived,
    ) -> None:
        """Commit and record files that begin at `begun`, and count them.

        Raises:
            CommitRefused: another archiver was faster.
            ArchiveMoved: they are committed, and another archiver has recorded them meanwhile.
            Fenced: the claim is not sure any more; or they are committed, and another archiver has followed.
            ArchiveUnavailable, StoreUnavailable, StoreRefused, Indefinite: they may be committed.
        """
        if not self._sure():
            self.discard_unnamed(written)
            raise Fenced(f"the claim to archive space {self.space.name} is not sure any more")
        floors = {
            stream: (_oldest(standing[stream], begun[stream]), files[-1].next)
            for stream, files in written.items()
        }
        try:
            table.commit(written, [], floors, self.term)
        except ArchiveMoved as error:
            raise CommitRefused(str(error)) from None
        for stream, files in written.items():
            done.add(stream, files)
        # From here on the files are the table's, whatever becomes of this.
        changes = [
            FileChange(stream, standing[stream].known.archived, files[-1].next, floors[stream][0], files)
            for stream, files in written.items()
        ]
        record(self.redis, self.term, changes)

    def discard_unnamed(self, written: Mapping[StreamId, Sequence[ArchivedFile]]) -> None:
        """Remove files that were not committed, if the table says so too.

        A catalog whose answer was lost on its way may have been asked again, and have refused then what it
        had done before.
        """
        if not any(written.values()):
            return
        try:
            named = SpaceTable.open(self.redis, self.space, self._settings).named_paths()
        except StreamleaseError as error:
            log.warning("archive of space %s: files stay that may be of no use: %s", self.space.name, error)
            return
        _discard(
            {stream: [one for one in files if one.path not in named] for stream, files in written.items()}
        )


def _oldest(one: InTable, begin: int) -> int:
    return min((file.first for file in one.there.values()), default=begin)


def _heal(stream: StreamId, one: InTable) -> FileChange | None:
    """What is to be recorded of what the table has, after a crash between the two."""
    known = {file.path: file for file in one.known.files}
    exists = one.known.exists
    there = {path: file for path, file in one.there.items() if file.next > exists or not one.known.archived}
    if known.keys() == there.keys():
        return None
    new = [file.read_again() for path, file in there.items() if path not in known]
    gone = [file for path, file in known.items() if path not in there]
    first = min((file.first for file in there.values()), default=exists)
    return FileChange(stream, one.known.archived, one.end, first, new, gone)


def _discard(written: Mapping[StreamId, Iterable[ArchivedFile]]) -> None:
    for files in written.values():
        for file in files:
            remove(file.path)
