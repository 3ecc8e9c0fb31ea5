"""What of an archive retention does not want any more. Pure.

The limits of a space are those of all that exists of a stream: its files, and what is in memory only. What
stands in the streams that follow a sealed one counts first, as in ``retention``. Files go as wholes, from the
oldest on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.log.state import LogState
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.retention import NOTHING_NEWER, Newer, standing_behind


def retirable(
    space: Space, held: Mapping[StreamId, tuple[Sequence[ArchivedFile], LogState]], now: int
) -> dict[StreamId, int]:
    """For each stream the offset below which its files may go.

    Args:
        held: the files of each stream in order, and what Redis knows of it.
        now: by the clock of Redis, in microseconds.
    """
    keep = space.retention
    found: dict[StreamId, int] = {}
    newer = standing_behind(
        space.predecessors(),
        {
            stream: Newer(state.next, sum(file.size for file in files))
            for stream, (files, state) in held.items()
        },
    )
    for stream, (files, state) in held.items():
        counted = newer.get(stream, NOTHING_NEWER)
        behind = counted.bytes + sum(file.size for file in files)
        limit = 0
        for file in files:
            too_old = keep.age_ms is not None and now - file.until > keep.age_ms * 1000
            later = counted.messages + state.next - file.next
            too_many = keep.messages is not None and later >= keep.messages
            behind -= file.size
            too_large = keep.bytes is not None and behind >= keep.bytes
            if not (too_old or too_many or too_large):
                break
            limit = file.next
        found[stream] = limit
    return found
