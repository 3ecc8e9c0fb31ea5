"""Where a group begins: what may be said of it, and the offset of each stream that it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from streamlease.protocol.epochs.antichains import Antichain, is_open, is_seen
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.protocol.quantities import MOST
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.times import MICROSECOND, after_offset, microseconds, offsets_after
from streamlease.streams.redis.connection import AsyncRedis

Start = Literal["earliest", "latest"] | int | datetime | Mapping[str, int]
"""A datetime: the messages appended then or later. An offset: that one and later, of each stream, or as the
mapping from stream to offset says; streams that it leaves out begin at the earliest. (Spark:
`startingOffsets`, `startingTimestamp`.)"""


class SpaceBegun(BaseModel):
    """How a space stood where a group begins that reads whole epochs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lower: Antichain
    upper: Antichain
    """The maximal epochs that may have had messages."""

    def had_completed(self, epoch: Epoch) -> bool:
        """Whether an epoch that may have had messages was complete."""
        return is_seen(self.upper, epoch) and not is_open(self.lower, epoch)


class EpochsBegun(BaseModel):
    """Where a group begins that reads whole epochs: at a boundary of each space."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    late: bool
    """Whether it leaves out what was active then."""
    spaces: Mapping[str, SpaceBegun]

    def leaves_out(self, epoch: Epoch) -> bool:
        """Whether an epoch is none of the group's, as it could not have all of it."""
        spaces = self.spaces.values()
        if self.late and any(is_seen(one.upper, epoch) for one in spaces):
            return True
        return any(one.had_completed(epoch) for one in spaces)


def check_start(start: Start) -> None:
    """Whether a group can begin there.

    Raises:
        InvalidOption: it is no point in a stream, or an offset below 0.
        InvalidInput: the time has no zone.
    """
    offsets = start.values() if isinstance(start, Mapping) else (start,) if isinstance(start, int) else ()
    known = start in ("earliest", "latest") if isinstance(start, str) else True
    if not known or isinstance(start, bool) or not isinstance(start, str | int | datetime | Mapping):
        raise InvalidOption(
            f"start is {start!r}: use 'earliest', 'latest', an offset, a datetime, or offsets by stream"
        )
    for name in start if isinstance(start, Mapping) else ():
        try:
            StreamId.parse(name)
        except (InvalidInput, TypeError, AttributeError):
            raise InvalidOption(
                f"start has the stream {ascii(name)[:80]}: give names of streams, such as 'flights.0.3'"
            ) from None
    for offset in offsets:
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MOST:
            shown = ascii(offset)[:80]
            raise InvalidOption(
                f"start has the offset {shown}: give an int; offsets begin at 0, end at {MOST}"
            )
    if isinstance(start, datetime):
        microseconds(start)


def shown_start(start: Start) -> str:
    """`start` as the declaration keeps it and people read it."""
    if isinstance(start, datetime):
        return start.isoformat()
    if isinstance(start, Mapping):
        return "offsets"
    return f"offset {start}" if isinstance(start, int) else start


async def positions_of(redis: AsyncRedis, streams: Sequence[StreamId], start: Start) -> dict[str, int]:
    """The offset of each stream at which `start` lies; none for the earliest.

    Raises:
        InvalidOption: it names a stream that is none of these.
        InvalidInput: a stream never had that offset.
        HistoryTruncated: retention removed messages from after it.
    """
    if start == "earliest":
        return {}
    if isinstance(start, datetime):
        moment = microseconds(start - MICROSECOND)
        found = await offsets_after(redis, dict.fromkeys(streams, moment))
        return {str(stream): offset for stream, offset in found.items()}
    states = await AsyncLog(redis).states(streams)
    if start == "latest":
        return {str(stream): state.next for stream, state in states.items()}
    if isinstance(start, int):
        wanted = {str(stream): start for stream in states}
    else:
        assert isinstance(start, Mapping)
        wanted = dict(start)
        known = {str(stream) for stream in states}
        for name in wanted:
            if name not in known:
                raise InvalidOption(f"start names the stream {ascii(name)[:80]}, which the group has not")
    return {
        str(stream): after_offset(stream, wanted[str(stream)] - 1, state)
        for stream, state in states.items()
        if str(stream) in wanted
    }
