"""What there is of a stream. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from streamlease.protocol.errors import HistoryTruncated, StreamleaseError, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.redis.connection import Command


class LogState(NamedTuple):
    """What Redis holds of a stream: the offsets ``floor <= offset < next``, without a hole; whether `next` is
    its end, the time of the last append in microseconds, whether it waits for its predecessors to be
    sealed, and its size."""

    floor: int
    next: int
    sealed: bool
    last_append: int
    pending: bool = False
    bytes: int = 0
    """Of all that is left, as stored."""

    @property
    def mean_bytes(self) -> float:
        """Stored size of a message that is left; 0 if there is none."""
        return self.bytes / (self.next - self.floor) if self.next > self.floor else 0.0

    def check_left(self, stream: StreamId, offset: int) -> None:
        """Whether all from `offset` on is left.

        Raises:
            HistoryTruncated: retention removed that offset.
        """
        if offset < self.floor:
            raise HistoryTruncated(str(stream), offset, self.floor)


def meta_command(stream: StreamId) -> Command:
    """Asks for what :func:`parse_meta` reads."""
    return ("HMGET", stream_meta(stream), "next", "floor", "state", "last_append", "bytes")


def parse_meta(stream: StreamId, reply: Any) -> LogState | None:
    """The reply to :func:`meta_command`; None if there is no such stream.

    Raises:
        StreamleaseError: it is damaged.
    """
    if reply[0] is None:
        return None
    next, floor, state, last_append, size = reply[:5]
    try:
        end, first, appended, bytes = int(next), int(floor or 0), int(last_append or 0), int(size or 0)
    except ValueError:
        raise damaged_stream(stream) from None
    if end < 0 or first < 0 or appended < 0 or bytes < 0:
        raise damaged_stream(stream)
    return LogState(first, end, state == b"sealed", appended, state == b"pending", bytes)


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
