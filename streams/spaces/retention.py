"""What of a stream is kept, and for how long.

A space keeps the messages that are young enough, among the newest N, and within so many bytes; what
exceeds *any* of the three is surplus. What follows a sealed stream counts first (``newer_than``), so former
generations do not keep their last N messages for ever. Surplus entries are removed from the oldest on, whole,
and never past the limit: the lowest offset that somebody still needs. Who that is, this room does not know;
the caller says. With `force` there is no limit.

One script (``lua/trim.lua``) judges, trims and stores the floor, by the clock and the state of the server at
that moment, so a trim never races an append or a reader: a reader that comes too late sees the new
floor and gets ``HistoryTruncated``. A call looks at a bounded number of entries; more needs more calls.
The bytes of a stream are the fields and values of its entries. The scripts of append and trim keep their sum.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from pydantic import model_validator
from redis.exceptions import ResponseError

from streamlease.protocol.errors import Fenced, StoreRefused, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.quantities import MOST, format_duration, format_size
from streamlease.streams.log.keys import stream_log, stream_merged, stream_meta
from streamlease.streams.log.state import LogState, damaged_stream, meta_command, no_stream, parse_meta
from streamlease.streams.redis.connection import AsyncRedis, Command, exchange, refusal
from streamlease.streams.redis.scripts import Call, load_script, run_each
from streamlease.streams.spaces.settings import Settings

log = logging.getLogger(__name__)

GROUP_EXPIRY_MS = 7 * 86_400_000
"""After so much idle time a group stops holding data, unless its space or itself says otherwise."""

TRIM_ENTRIES = 2000
TRIM_BYTES = 4 * 1024 * 1024
"""What one call of the script looks at, so that it never blocks the server for long."""


class Retention(Settings):
    """What a space keeps; None: no such limit.

    Raises:
        InvalidOption: a value is not positive, or `force` forces nothing.
    """

    what = "retention"

    age_ms: int | None = None
    bytes: int | None = None
    """Of each stream."""
    messages: int | None = None
    """Of each stream."""
    force: bool = False
    """Remove what is surplus even if a group has not consumed it."""
    group_expiry_ms: int = GROUP_EXPIRY_MS
    """Groups idle for longer stop holding data; 0: they never do."""

    def __init__(
        self,
        age_ms: int | None = None,
        bytes: int | None = None,
        messages: int | None = None,
        force: bool = False,
        group_expiry_ms: int = GROUP_EXPIRY_MS,
    ) -> None:
        self._set(age_ms=age_ms, bytes=bytes, messages=messages, force=force, group_expiry_ms=group_expiry_ms)

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        for name, least in (("age_ms", 1), ("bytes", 1), ("messages", 1), ("group_expiry_ms", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value <= MOST:
                raise ValueError(f"{name} is {value}, it must be at least {least}")
        if self.force and not self.limited:
            raise ValueError("it is forced but has no limit: give an age, bytes or messages as well")
        return self

    def for_age(self, age_ms: int | None) -> Retention:
        """The same with another age; None: with none.

        Raises:
            InvalidOption: it is not acceptable, or was the one limit that `force` forces.
        """
        return Retention(age_ms, self.bytes, self.messages, self.force, self.group_expiry_ms)

    @property
    def limited(self) -> bool:
        """Whether anything is ever removed."""
        return not (self.age_ms is None and self.bytes is None and self.messages is None)

    def __str__(self) -> str:
        parts = []
        if self.age_ms is not None:
            parts.append(format_duration(self.age_ms))
        if self.bytes is not None:
            parts.append(format_size(self.bytes))
        if self.messages is not None:
            parts.append(f"{self.messages} messages")
        return f"{', '.join(parts)} per stream{', forced' if self.force else ''}" if parts else "everything"


class TrimFenced(Fenced):
    """A caller with a higher term trims the stream. `term` is its term."""

    def __init__(self, stream: StreamId, own: int, term: int) -> None:
        super().__init__(f"stream {stream} is trimmed by another host: term {own} was followed by {term}")
        self.term = term


class Trimmed(NamedTuple):
    """What one trim of one stream came to."""

    stream: StreamId
    floor: int
    """The oldest offset that is left, or the next one."""
    bytes: int
    entries: int
    messages: int
    """How many were removed."""
    more: bool
    """Whether the call ended before its work: call again."""
    held: bool
    """Whether surplus entries stay because they lie at the limit or above it."""


class Newer(NamedTuple):
    """What the streams hold that follow a sealed one; it counts against the limits of their space."""

    messages: int = 0
    bytes: int = 0


NOTHING_NEWER = Newer()


@dataclass(frozen=True, slots=True)
class Trim:
    """One trim of one stream.

    Args:
        limit: nothing at or above this offset is removed; None with `force` only: no limit.
        holder: who needs what is at the limit.
        term: fencing token of the caller; one lower than the highest seen is refused.
        newer: what is there in the streams that follow this one.
        archived: the space has an archive: nothing that is not in it is removed.
    """

    stream: StreamId
    retention: Retention
    limit: int | None
    holder: str = ""
    term: int = 0
    newer: Newer = NOTHING_NEWER
    archived: bool = False

    def call(self, entries: int = TRIM_ENTRIES, size: int = TRIM_BYTES) -> Call:
        """The script call that does it, looking at no more than so many entries and bytes."""
        keep = self.retention
        return load_script("streamlease.streams.spaces", "trim").call(
            [stream_meta(self.stream), stream_log(self.stream), stream_merged(self.stream)],
            [
                MOST if self.limit is None else self.limit,
                -1 if keep.age_ms is None else keep.age_ms * 1000,
                -1 if keep.bytes is None else max(0, keep.bytes - self.newer.bytes),
                -1 if keep.messages is None else max(0, keep.messages - self.newer.messages),
                self.term,
                self.holder,
                entries,
                size,
                int(self.archived),
            ],
        )


def _outcome(trim: Trim, reply: Any) -> Trimmed | StreamleaseError:
    if isinstance(reply, StreamleaseError):
        return reply
    if isinstance(reply, ResponseError):
        return refusal(reply)
    match reply[0]:
        case b"trimmed":
            floor, size, entries, messages, more, held = (int(value) for value in reply[1:])
            return Trimmed(trim.stream, floor, size, entries, messages, bool(more), bool(held))
        case b"unknown":
            return no_stream(trim.stream)
        case b"fenced":
            return TrimFenced(trim.stream, trim.term, int(reply[1]))
        case _:
            return StoreRefused(f"the trim script answered {reply!r}: client and script do not fit")


async def trim_many(redis: AsyncRedis, trims: Sequence[Trim]) -> list[Trimmed | StreamleaseError]:
    """One bounded call for each of `trims` in one write; outcomes in order, each on its own.

    A server of a cluster that fails is an outcome of its own streams only.

    Raises:
        StoreUnavailable: nothing was done.
        Indefinite: each was done or not; safe to repeat.
    """
    replies = await run_each(redis, [trim.call() for trim in trims]) if trims else []
    return [_outcome(trim, reply) for trim, reply in zip(trims, replies, strict=True)]


async def trim(redis: AsyncRedis, one: Trim) -> Trimmed:
    """Trim one stream to the end; what is removed is summed up.

    Raises:
        UnknownSpace: there is no such stream.
        Fenced: somebody with a higher term was here.
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    entries = messages = 0
    while True:
        (outcome,) = await trim_many(redis, [one])
        if isinstance(outcome, StreamleaseError):
            raise outcome
        entries, messages = entries + outcome.entries, messages + outcome.messages
        if not outcome.more:
            return outcome._replace(entries=entries, messages=messages)


class Kept(NamedTuple):
    """What a stream holds, as retention sees it. Times are microseconds of the server's clock."""

    state: LogState
    trimmed_at: int
    """Append time of the newest message that retention removed; 0 if it never removed one."""
    held_by: str | None
    """Who keeps surplus entries from being removed."""
    held_since: int | None

    @property
    def bytes_ever(self) -> int:
        """About how many bytes were ever appended, judged by the messages that are left."""
        first, next = self.state.memory
        left = next - first
        return MOST if next and not left else self.state.bytes * next // max(1, left)


def newer_than(
    predecessors: Mapping[StreamId, Sequence[StreamId]], held: Mapping[StreamId, Kept]
) -> dict[StreamId, Newer]:
    """For each stream that is followed, what was ever appended behind it. Pure.

    Args:
        predecessors: all streams of a space, oldest generation first; see ``Space.predecessors``.
    """
    own = {stream: Newer(one.state.next, one.bytes_ever) for stream, one in held.items()}
    return standing_behind(predecessors, own)


def standing_behind(
    predecessors: Mapping[StreamId, Sequence[StreamId]], own: Mapping[StreamId, Newer]
) -> dict[StreamId, Newer]:
    """For each stream that is followed, what stands in the streams that follow. Pure.

    Limits go by stream, as if each sealed stream went on in those that follow it: what one of these has
    counts for each of the streams before it in equal parts.

    Args:
        own: what each stream has itself; one that is not known has nothing.
    """
    found: dict[StreamId, Newer] = {}
    for stream in reversed([*predecessors]):
        one, behind = own.get(stream, NOTHING_NEWER), found.get(stream, NOTHING_NEWER)
        former = predecessors[stream]
        for before in former:
            known = found.get(before, NOTHING_NEWER)
            found[before] = Newer(
                known.messages + (one.messages + behind.messages) // len(former),
                known.bytes + (one.bytes + behind.bytes) // len(former),
            )
    return found


async def kept(redis: AsyncRedis, streams: Sequence[StreamId]) -> dict[StreamId, Kept]:
    """What `streams` hold, in one round trip; those that do not exist, or are damaged, are left out."""
    return await Holdings(redis).look(streams)


class Holdings:
    """What streams hold, for who asks again and again: a reply that is as before is not parsed again."""

    def __init__(self, redis: AsyncRedis) -> None:
        self._redis = redis
        self._known: dict[StreamId, tuple[Command, Any, Kept | None]] = {}
        """What asks about a stream, the newest reply, and what that says."""

    async def look(self, streams: Sequence[StreamId]) -> dict[StreamId, Kept]:
        """See :func:`kept`."""
        known = self._known
        asked = {one: known.get(one) or (_kept_command(one), None, None) for one in streams}
        replies = await exchange(self._redis, [command for command, _, _ in asked.values()]) if asked else []
        for (stream, (command, before, _)), reply in zip(asked.items(), replies, strict=True):
            if before != reply:
                asked[stream] = command, reply, _found(stream, reply)
        self._known = asked
        return {stream: kept for stream, (_, _, kept) in asked.items() if kept is not None}


def _kept_command(stream: StreamId) -> Command:
    return (*meta_command(stream), "trimmed_at", "held_by", "held_since")


def _found(stream: StreamId, reply: Any) -> Kept | None:
    """What a reply says; None, and a line in the log, if the stream is damaged."""
    if isinstance(reply, ResponseError):
        if not str(reply).startswith("WRONGTYPE"):
            raise refusal(reply)
        log.warning("%s", damaged_stream(stream))
        return None
    try:
        return _kept(stream, reply)
    except StreamleaseError as damaged:
        log.warning("%s", damaged)
        return None


def _kept(stream: StreamId, reply: Any) -> Kept | None:
    state, (trimmed_at, held_by, since) = parse_meta(stream, reply), reply[-3:]
    if state is None:
        return None
    try:
        trimmed_at, since = int(trimmed_at or 0), int(since or 0)
    except ValueError:
        raise damaged_stream(stream) from None
    if trimmed_at < 0 or since < 0:
        raise damaged_stream(stream)
    return Kept(
        state, trimmed_at, None if held_by is None else held_by.decode("utf-8", "replace"), since or None
    )
