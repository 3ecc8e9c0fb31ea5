"""Order across generations: which streams may be read, and which are finished. Pure functions.

A stream *waits* while a stream that it follows (its predecessor: one of the generation before that may hold
the same keys) is not finished. A sealed stream that does not wait is *finished* once it is consumed to its
end and nobody holds it: it is never granted again. A stream that no listing names any more is as good as
finished.

The predecessors count even for a stream that is empty: else the generation after it could overtake the one
before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import StreamsAdvanced

Predecessors = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Advance:
    """What follows from what was consumed."""

    record: StreamsAdvanced | None
    """What is finished, and what that releases."""
    leaving: tuple[str, ...]
    """Streams that are consumed to their end, but still held: their owners are to give them back."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What the newest listing says of the order of streams."""

    ends: Mapping[str, int] = field(default_factory=dict)
    predecessors: Predecessors = field(default_factory=dict)
    successors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    """Streams of spaces whose definitions are damaged: as their order is not known, they do not advance."""

    @classmethod
    def of(
        cls, ends: Mapping[str, int], predecessors: Predecessors, unread: frozenset[str] = frozenset()
    ) -> Listing:
        """A listing with the successors that follow from the predecessors."""
        successors: dict[str, list[str]] = {}
        for stream, before in predecessors.items():
            for one in before:
                successors.setdefault(one, []).append(stream)
        following = {stream: tuple(after) for stream, after in successors.items()}
        return cls(ends, predecessors, following, unread)

    def at_end(self, state: GroupState, stream: str) -> bool:
        """Whether `stream` is sealed and consumed to its end."""
        end = self.ends.get(stream)
        return end is not None and state.streams[stream].committed >= end


def waiting(state: GroupState, new: Collection[str], predecessors: Predecessors) -> tuple[str, ...]:
    """Those of the streams `new` that may not be read yet."""

    def over(stream: str) -> bool:
        known = state.streams.get(stream)
        return stream not in new and (known is None or known.finished)

    return tuple(one for one in new if not all(map(over, predecessors.get(one, ()))))


def advance(state: GroupState, held: Collection[str], listing: Listing, candidates: Iterable[str]) -> Advance:
    """What is finished now among `candidates` and all that comes after them.

    Args:
        held: the streams that have a lease.
    """
    streams = state.streams
    work = deque(candidates)
    finished: dict[str, None] = {}
    released: dict[str, None] = {}
    leaving: dict[str, None] = {}

    def over(stream: str) -> bool:
        known = streams.get(stream)
        return known is None or known.finished or stream in finished

    while work:
        stream = work.popleft()
        if over(stream) or stream in listing.unread:
            continue
        if not all(map(over, listing.predecessors.get(stream, ()))):
            continue
        if state.streams[stream].waiting:
            released[stream] = None
        if not listing.at_end(state, stream):
            continue
        if stream in held:
            leaving[stream] = None
        else:
            finished[stream] = None
            work.extend(listing.successors.get(stream, ()))
    record = None
    if finished or released:
        record = StreamsAdvanced(finished=tuple(finished), released=tuple(released))
    return Advance(record, tuple(leaving))


def behind(state: GroupState, listing: Listing, begun_anew: Collection[str]) -> tuple[str, ...]:
    """The streams that must wait again when those of `begun_anew` are to be consumed once more.

    These are all that follow them, directly or not, whatever their own progress: else a message could
    overtake an earlier one of its key.
    """
    found: dict[str, None] = {}
    work = deque(begun_anew)
    while work:
        for stream in listing.successors.get(work.popleft(), ()):
            if stream in state.streams and stream not in found:
                found[stream] = None
                work.append(stream)
    return tuple(found)
