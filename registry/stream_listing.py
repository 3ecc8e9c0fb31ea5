"""Which streams a group has at one moment, and in which order they are to be read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.state import LogState
from streamlease.streams.spaces.spaces import Space

Shape = frozenset[tuple[str, int, bool]]
"""Space, number of a generation, whether the space is ended."""


class StreamListing(NamedTuple):
    """The streams of a subscription at one moment."""

    starts: dict[str, int]
    """Where a group begins that is new to the stream."""
    floors: dict[str, int]
    """The lowest offset kept."""
    ends: dict[str, int]
    """Where the sealed ones end."""
    predecessors: dict[str, tuple[str, ...]]
    """The streams that are to be read to their end before."""
    complete: bool
    """Whether all that are to be sealed are sealed."""
    unread: frozenset[str] = frozenset()
    """Spaces whose definitions are damaged: their streams are not listed, and are there all the same."""


def shape_of(spaces: Iterable[Space]) -> Shape:
    """The generations of these spaces."""
    return frozenset((space.name, one.number, space.ended) for space in spaces for one in space.generations)


def listing_of(
    positions: Mapping[str, int],
    spaces: Iterable[Space],
    order: Mapping[StreamId, Sequence[StreamId]],
    states: Mapping[StreamId, LogState],
    unread: frozenset[str] = frozenset(),
) -> StreamListing:
    """The streams of these spaces as they are, and their order.

    Args:
        positions: where the group began in each stream of that moment.
        order: the streams of all generations, each with those that are to be read before.
        states: those of them that exist.
        unread: the spaces that are left out because their definitions are damaged.
    """
    last = {space.name: -1 if space.ended else space.newest.number for space in spaces}
    names = {s: str(s) for s in states}
    return StreamListing(
        {name: max(positions.get(name, 0), states[s].floor) for s, name in names.items()},
        {name: states[s].floor for s, name in names.items()},
        {name: states[s].next for s, name in names.items() if states[s].sealed},
        {name: tuple(names[one] for one in order[s] if one in states) for s, name in names.items()},
        all(state.sealed for s, state in states.items() if s.generation != last[s.space]),
        unread,
    )
