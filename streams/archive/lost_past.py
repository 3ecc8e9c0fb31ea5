"""Files of the table whose messages Redis has lost.

A failover may take from Redis its newest messages, after they were written into a file, and with them the
record of that file. A catalog that is not in Redis still has the file. New messages get those offsets then,
so what the file has is another history than the one that goes on. It leaves the table, and what stands at
these offsets now is archived.

A file that is recorded is never in question: the act that records it looks whether its messages are there
(``lua/record.lua``), so its record is lost no later than they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.iceberg_table import SpaceTable, TableFile
from streamlease.streams.archive.recording import Recorded
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import BlockingRedis

log = logging.getLogger(__name__)


def of_a_lost_past(
    redis: BlockingRedis, stream: StreamId, known: Recorded, there: Iterable[TableFile]
) -> list[TableFile]:
    """Those files of a stream in the table that have other messages than Redis.

    Append times rise from message to message, and Redis has lost an end of the stream, so the last message
    of a file stands for all. It is in memory: Redis is trimmed up to what is recorded.

    Raises:
        StoreUnavailable, StoreRefused, HistoryTruncated: another archiver has recorded the file meanwhile.
    """
    unknown = [file for file in there if file.next > known.archived]
    return [file for file in unknown if _appended(redis, stream, file.next - 1) != file.until]


def let_go(
    table: SpaceTable,
    known: Mapping[StreamId, Recorded],
    there: Mapping[str, Mapping[str, TableFile]],
    lost: Mapping[StreamId, Sequence[TableFile]],
    term: int,
) -> None:
    """Take such files out of the table.

    Raises:
        ArchiveMoved, ArchiveUnavailable: as of ``SpaceTable.commit``.
    """
    floors: dict[StreamId, tuple[int, int]] = {}
    for stream, files in lost.items():
        left = [file for file in there[str(stream)].values() if file not in files]
        end = max((file.next for file in left), default=known[stream].archived)
        floors[stream] = min((file.first for file in left), default=end), end
        log.warning(
            "archive of %s: Redis has lost messages that were archived and not recorded yet, as in a "
            "failover: %s leave the table",
            stream,
            ", ".join(file.path for file in files),
            extra={"stream": str(stream)},
        )
    table.commit({}, [file for files in lost.values() for file in files], floors, term)


def _appended(redis: BlockingRedis, stream: StreamId, offset: int) -> int | None:
    """When Redis took the message at an offset, in microseconds; None: there is none."""
    try:
        (batch,) = read_range(redis, stream, offset, offset + 1, columns=frozenset({"append_timestamp"}))
    except MissingOffsets:
        return None
    times = batch.column(batch.schema.get_field_index("append_timestamp"))
    value: int = times.cast(pa.int64())[0].as_py()
    return value
