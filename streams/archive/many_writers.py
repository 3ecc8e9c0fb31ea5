"""Archiving a space with many writers, such as the workers of Spark: they write pieces, one process commits.

It has its turn meanwhile (``archive_turns``), so hosts write nothing that would be written twice. If somebody
commits in between all the same, what fits behind that is committed, and only the rest was in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.archive_turns import turn
from streamlease.streams.archive.archiver import ATTEMPTS, Archived, Archiver, InTable
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.archive.files.places import remove
from streamlease.streams.archive.recording import ArchiveMoved, CommitRefused
from streamlease.streams.archive.stream_pieces import FILE_BYTES, Halt, StreamPiece

WritePieces = Callable[[Sequence[StreamPiece], pa.Schema], Sequence[Sequence[ArchivedFile | Halt]]]
"""Writes files for pieces: for each what `files_of` comes to."""

Files = dict[StreamId, list[ArchivedFile]]


def run_in_pieces(archiver: Archiver, write: WritePieces, most_bytes: int = 4 * FILE_BYTES) -> Archived:
    """Archive all that there is, in pieces that others write, and in one commit.

    Args:
        write: writes files for pieces, wherever; see `files_of`.
        most_bytes: about how much of Redis a piece has.

    Raises:
        As ``Archiver.run``.
    """
    with turn(archiver.redis, archiver.space.name):
        done = Archived(archiver.space.name)
        table, standing = archiver.look(done)
        pieces: list[StreamPiece] = []
        for stream, one in standing.items():
            begin, end = one.begin, one.known.state.next
            step = max(1, int(most_bytes / max(1.0, one.known.state.mean_bytes)))
            pieces += [StreamPiece(str(stream), at, min(end, at + step)) for at in range(begin, end, step)]
        outcomes = write(pieces, table.columns(archiver.space))
        written = _in_order(pieces, outcomes, done)
        for attempt in range(ATTEMPTS):
            begun = {stream: files[0].first for stream, files in written.items()}
            try:
                if written:
                    archiver.commit(table, standing, begun, written, done)
                return done
            except CommitRefused:
                if attempt == ATTEMPTS - 1:
                    archiver.discard_unnamed(written)
                    raise
            except ArchiveMoved:  # they are the table's
                archiver.look(done)
                return done
            table, standing = archiver.look(done)
            written, spare = fitting(standing, written)
            archiver.discard_unnamed(spare)
    raise AssertionError("unreachable")


def _in_order(
    pieces: Sequence[StreamPiece], outcomes: Sequence[Sequence[ArchivedFile | Halt]], done: Archived
) -> Files:
    """The files of each stream, up to where it cannot be archived further."""
    written: Files = {}
    for piece, found in zip(pieces, outcomes, strict=True):
        for outcome in found:
            if piece.stream in done.troubles:
                if isinstance(outcome, ArchivedFile):
                    remove(outcome.path)  # what is before it could not be read
            elif isinstance(outcome, Halt):
                done.troubles[piece.stream] = outcome.trouble or "it has got other columns: run again"
            else:
                written.setdefault(StreamId.parse(piece.stream), []).append(outcome)
    return written


def fitting(standing: Mapping[StreamId, InTable], written: Files) -> tuple[Files, Files]:
    """Which files can still be committed, behind what the table has meanwhile; and the others. Pure."""
    left: Files = {}
    spare: Files = {}
    for stream, files in written.items():
        end = standing[stream].begin if stream in standing else None
        new = [] if end is None else [file for file in files if file.next > end]
        if end is not None and new and new[0].first >= end:
            left[stream] = new
        spare[stream] = [file for file in files if file not in left.get(stream, ())]
    return left, spare
