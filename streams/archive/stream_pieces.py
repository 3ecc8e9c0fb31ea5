"""Pieces of streams, from the memory of Redis into files that are written and proven; by any process."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.ids import StreamId, random_token
from streamlease.streams.archive.files.file_columns import read_columns
from streamlease.streams.archive.files.file_writing import FileWriter
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import BlockingRedis

log = logging.getLogger(__name__)

FILE_BYTES = 128 * 1024 * 1024
"""About how many bytes, expanded, go into one file."""


class StreamPiece(NamedTuple):
    """The messages ``begin <= offset < end`` of a stream."""

    stream: str
    begin: int
    end: int


class Halt(NamedTuple):
    """Why what comes next in a stream is not archived now."""

    trouble: str
    """Empty: the space has got columns that the table is to get first."""


def files_of(
    redis: BlockingRedis, uri: str, piece: StreamPiece, schema: pa.Schema, *, collection: bool
) -> Generator[ArchivedFile | Halt]:
    """Files with the messages of `piece`; perhaps a `Halt` in place of the rest.

    Args:
        schema: the columns of the files; see ``SpaceTable.columns``.

    Raises:
        ArchiveUnavailable: the store does not take them; the file that was begun is gone.
        StoreUnavailable, StoreRefused, HistoryTruncated.
    """
    stream, columns = StreamId.parse(piece.stream), read_columns(collection)
    position, upto, end = piece.begin, piece.end, piece.end
    halt: Halt | None = None
    while position < end and halt is None:
        writer: FileWriter | None = None
        hole: MissingOffsets | None = None
        try:
            with closing(read_range(redis, stream, position, upto, columns=columns)) as batches:
                try:
                    for batch in batches:
                        if set(batch.schema.names) - set(schema.names):
                            halt = Halt("")
                            break
                        if writer is None:
                            address = f"{uri}/data/{stream}/{position:020d}-{random_token()}.parquet"
                            writer = FileWriter(address, str(stream), schema, position)
                        writer.add(batch)
                        position += batch.num_rows
                        if writer.bytes >= FILE_BYTES:
                            break
                    upto = end
                except MissingOffsets as error:
                    upto = error.asked if isinstance(error.asked, int) else end
                    if upto <= position:  # else what is before it is read first
                        hole, upto = error, end
                except DamagedEntry as error:
                    upto = error.start
                    if upto <= position:
                        halt = Halt(str(error))
            file = None if writer is None else writer.finish()
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise
        if file is not None:
            yield file
        if hole is not None:
            log.warning("archive of %s: %s", stream, hole, extra={"stream": str(stream)})
            position = hole.oldest
    if halt is not None:
        yield halt
