"""What there is of a stream, and what of it is in memory. Pure.

The history of a stream is made of segments, each held by one source (``segments``). The newest is the memory
of Redis. So there are two floors, and who asks for one says which:

* ``LogState.floor``: the lowest offset that *exists*. Whoever wants something below it gets
  ``HistoryTruncated`` (``check_exists``).
* ``LogState.memory.first``: the lowest offset *in memory*. Only who sends commands to Redis asks for it
  (``check_in_memory``).

Where another source holds what is below the memory, the field ``exists`` of the meta has its lowest offset.
Without that field, what exists is what is in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamlease.protocol.errors import HistoryTruncated, StreamleaseError, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.redis.connection import Command


class Extent(NamedTuple):
    """What one source holds of a stream: the offsets ``first <= offset < next``, without a hole."""

    first: int
    next: int


class MissingOffsets(HistoryTruncated):
    """Offsets that were once given out are not there, though retention never reached them.

    So after a failover that lost acknowledged writes. `oldest` is where the stream goes on.
    """

    def _loss(self) -> str:
        return (
            f"stream {self.stream} has nothing at offsets {self.asked} to {self.oldest - 1}: "
            f"acknowledged messages were lost, as in a failover of Redis"
        )

    def _usual_remedy(self) -> str:
        return f"go on from offset {self.oldest}"


class LogState(NamedTuple):
    """What is known about a stream: what Redis holds, whether ``next`` is its end, the time of the last
    append in microseconds, whether it waits for its predecessors to be sealed, and its size."""

    memory: Extent
    sealed: bool
    last_append: int
    pending: bool = False
    bytes: int = 0
    """Of all that is in memory, as stored."""
    exists: int | None = None
    """The lowest offset that another source holds; None if there is none."""
    merged: int = 0
    """What is in memory below this offset stands in merged entries, the rest in the log (``compacting``)."""

    @property
    def next(self) -> int:
        """The offset that the next message will get."""
        return self.memory.next

    @property
    def floor(self) -> int:
        """The lowest offset that exists."""
        first = self.memory.first
        return first if self.exists is None else min(first, self.exists)

    @property
    def mean_bytes(self) -> float:
        """Stored size of a message in memory; 0 if there is none."""
        first, next = self.memory
        return self.bytes / (next - first) if next > first else 0.0

    def check_exists(self, stream: StreamId, offset: int) -> None:
        """Whether the history from `offset` on is whole.

        Raises:
            HistoryTruncated: retention removed that offset.
        """
        if offset < self.floor:
            raise HistoryTruncated(str(stream), offset, self.floor)

    def check_in_memory(self, stream: StreamId, offset: int) -> None:
        """Whether Redis has all from `offset` on.

        Raises:
            HistoryTruncated: `offset` is below what is in memory.
        """
        if offset < self.memory.first:
            raise HistoryTruncated(str(stream), offset, self.memory.first)


class Wanted(NamedTuple):
    """What a reader wants of a stream: all of ``start <= offset < end``."""

    stream: StreamId
    start: int
    end: int
    schema: Schema | None = None
    """The typed columns, in a space with a schema; None for all."""
    columns: frozenset[str] | None = None
    """The columns of every message; see ``decode_entries``; None for all."""


class Legacy(NamedTuple):
    """What streams that are dropped leave to one that follows them."""

    newest: int
    """Append time of their newest message, in microseconds; 0 if they had none."""
    ends: Mapping[StreamId, int]
    """Where they ended."""

    @property
    def written(self) -> str:
        """The ends as text, the oldest first."""
        return " ".join(f"{one.generation}.{one.shard}:{end}" for one, end in sorted(self.ends.items()))


MOST_ENDS = 4096
"""Ends that a stream remembers."""


def parse_ends(stream: StreamId, text: bytes | None) -> dict[StreamId, int]:
    """What `Legacy.written` has become in the meta of `stream`; what is damaged is left out."""
    found = {}
    for one in (text or b"").split():
        place, _, end = one.partition(b":")
        generation, _, shard = place.partition(b".")
        if generation.isdigit() and shard.isdigit() and end.isdigit():
            found[StreamId(stream.space, int(generation), int(shard))] = int(end)
    return found


def meta_command(stream: StreamId) -> Command:
    """Asks for what :func:`parse_meta` reads."""
    return (
        "HMGET",
        stream_meta(stream),
        "next",
        "floor",
        "state",
        "last_append",
        "bytes",
        "exists",
        "merged",
    )


def parse_meta(stream: StreamId, reply: Any) -> LogState | None:
    """The reply to :func:`meta_command`; None if there is no such stream.

    Raises:
        StreamleaseError: it is damaged.
    """
    if reply[0] is None:
        return None
    next, floor, state, last_append, size, exists, border = reply[:7]
    try:
        end, first, appended, bytes = int(next), int(floor or 0), int(last_append or 0), int(size or 0)
        oldest, merged = None if exists is None else int(exists), int(border or 0)
    except ValueError:
        raise damaged_stream(stream) from None
    if end < 0 or first < 0 or appended < 0 or bytes < 0 or (oldest or 0) < 0 or merged < 0:
        raise damaged_stream(stream)
    memory = Extent(first, end)
    return LogState(memory, state == b"sealed", appended, state == b"pending", bytes, oldest, merged)


def damaged_stream(stream: StreamId) -> StreamleaseError:
    return StreamleaseError(
        f"what is kept about stream {stream} is damaged: restore key {stream_meta(stream)} from a backup"
    )


def no_stream(stream: StreamId) -> UnknownSpace:
    """The error for a stream without meta."""
    return UnknownSpace(
        f"there is no stream {stream}: its space was deleted or never created; "
        f"create it: streamlease space create {stream.space} --topics ..."
    )


def lost_stream(stream: StreamId) -> UnknownSpace:
    """The error for a stream without meta whose space is there."""
    return UnknownSpace(
        f"space {stream.space} has no stream {stream} any more, though its definition names it: "
        f"Redis lost it, as in a failover; give the space new streams: "
        f"streamlease space alter {stream.space} --rotate"
    )


def parse_metas(
    streams: Sequence[StreamId], replies: list[Any], damaged: dict[StreamId, StreamleaseError] | None = None
) -> dict[StreamId, LogState]:
    """What is known about those of the streams that exist, from the replies to their meta commands.

    Args:
        damaged: gets the errors of streams whose reply cannot be read; None: the first one is raised.
    """
    states = {}
    with collector_at_rest(len(streams)):
        for stream, reply in zip(streams, replies, strict=True):
            try:
                state = parse_meta(stream, reply)
            except StreamleaseError as error:
                if damaged is None:
                    raise
                damaged[stream] = error
                continue
            if state is not None:
                states[stream] = state
    return states
