"""What must be true of an archive, whatever goes wrong (invariant 16 of the design).

* Every offset below the newest is in Redis, or in a file that Redis names, that is there, and that holds the
  very message; or retention wanted it gone, and the lowest offset that exists says so.
* The files of the table hold every message once: no offset is in two of its files at any commit, and in the
  end they hold all that exists.
* Who reads gets the message of each offset, or is told that retention has passed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import parse_entry_id
from streamlease.streams.archive.files.index import ArchivedFile, in_order, parse_file
from streamlease.streams.log.keys import stream_files, stream_log, stream_merged, stream_meta
from tests.simulation.epochs.written import TEXT
from tests.simulation.judge import Violation

if TYPE_CHECKING:
    from tests.simulation.archive.world import ArchiveWorld


class ArchiveTruth:
    """Compares the store, the files and the table with what was written."""

    def __init__(self, world: ArchiveWorld) -> None:
        self._world = world
        self.acknowledged: set[str] = set()
        self._rows: dict[str, dict[int, str]] = {}
        """What stands in each file that was looked at: it is never written again."""
        self._proven: set[ArchivedFile] = set()
        """Files that have the bytes that were written."""

    def _asked(self, *command: str | bytes) -> Any:
        return self._world.server.execute(
            [part.encode() if isinstance(part, str) else part for part in command]
        )

    def texts(self, stream: str) -> dict[int, str]:
        """The message at each offset."""
        return {offset: one.text for offset, one in self._world.written.now.streams.get(stream, {}).items()}

    def look(self) -> None:
        """Every offset is somewhere.

        Raises:
            Violation
        """
        for stream in self._world.written.now.ends:
            self._look_at(StreamId.parse(stream))

    def figures_of(self, stream: StreamId) -> tuple[int, int, int, int]:
        """Where it ends, where its memory begins, what is archived, what exists."""
        found = self._asked("HMGET", stream_meta(stream), "next", "floor", "archived", "exists")
        next, floor, archived, exists = (int(one or 0) for one in found)
        return next, floor, archived, exists

    def _look_at(self, stream: StreamId) -> None:
        name, truth = str(stream), self.texts(str(stream))
        next, floor, archived, exists = self.figures_of(stream)
        keep = self._world.retention
        if exists > (max(0, next - keep) if keep else 0):
            raise Violation(f"[16] {name} exists from {exists} only, and retention wants more of {next}")
        there: set[int] = set()
        for key in (stream_log(stream), stream_merged(stream)):
            for id, _ in self._asked("XRANGE", key, "-", "+"):
                offsets = parse_entry_id(id)
                there.update(range(max(offsets.start, floor), offsets.end))
        for file in self.recorded(stream):
            rows = self.rows(file)
            if wrong := {at: text for at, text in rows.items() if truth.get(at) != text}:
                raise Violation(f"[16] {file.path} has {wrong} of {name}, which is not what stands there")
            there.update(rows)
        if missing := [offset for offset in truth if exists <= offset < next and offset not in there]:
            raise Violation(
                f"[16] offset {missing[0]} of {name} is in none of the two: the memory begins at {floor}, "
                f"{archived} is archived, {exists} exists"
            )

    def recorded(self, stream: StreamId) -> list[ArchivedFile]:
        """The files that Redis names."""
        return in_order(map(parse_file, self._asked("ZRANGEBYSCORE", stream_files(stream), "-inf", "+inf")))

    def rows(self, file: ArchivedFile) -> dict[int, str]:
        """The messages of a file, as it lies there.

        Raises:
            Violation: it does not, or is not what was recorded.
        """
        path = Path(file.path)
        if not path.exists():
            raise Violation(f"[16] the file {path} is named, and is not there")
        if file not in self._proven:
            data = path.read_bytes()
            if len(data) != file.size or sha256(data).hexdigest() != file.sum:
                raise Violation(f"[16] the file {path} is not what was written, of {file.size} bytes")
            self._proven.add(file)
        rows = self._in_file(path)
        if [*rows] != [*range(file.first, file.next)]:
            raise Violation(f"[16] the file {path} has {[*rows]}, and not {file.first} to {file.next}")
        return rows

    def _in_file(self, path: Path) -> dict[int, str]:
        if str(path) not in self._rows:
            try:
                table = pq.ParquetFile(path, page_checksum_verification=True).read()
            except (OSError, pa.ArrowException) as error:
                raise Violation(f"[16] the file {path} cannot be read: {error}") from error
            self._rows[str(path)] = {
                row["offset"]: next(one["value"].decode() for one in row["headers"] if one["key"] == TEXT)
                for row in table.to_pylist()
            }
        return self._rows[str(path)]

    def committed(self, paths: Iterable[str]) -> None:
        """The table has these files now.

        Raises:
            Violation: two of them hold the same message.
        """
        seen: dict[str, str] = {}
        for path in paths:
            if not Path(path).exists():
                raise Violation(f"[16] the table has the file {path}, which is not there")
            for text in self._in_file(Path(path)).values():
                if text in seen:
                    raise Violation(f"[16] {text} is twice in the table: in {seen[text]} and in {path}")
                seen[text] = path

    def whole(self, paths: Iterable[str]) -> None:
        """In the end, the table has all that exists.

        Raises:
            Violation
        """
        paths = [*paths]
        self.committed(paths)
        found: list[str] = []
        expected: list[str] = []
        for name in self._world.written.now.streams:
            exists = self.figures_of(StreamId.parse(name))[3]
            truth = self.texts(name)
            for path in paths:
                if Path(path).parent.name == name:
                    # A file that retention let go of may leave the table a little later.
                    found += [text for at, text in self._in_file(Path(path)).items() if at >= exists]
            expected += [text for offset, text in truth.items() if offset >= exists]
        found.sort()
        expected.sort()
        if found != expected:
            lacks, has = {*expected} - {*found}, {*found} - {*expected}
            raise Violation(f"[16] the table lacks {sorted(lacks)[:3]}, and has {sorted(has)[:3]} too much")
        if gone := self.acknowledged - self._world.written.texts.keys():
            raise Violation(f"{min(gone)} was acknowledged, and is gone")
