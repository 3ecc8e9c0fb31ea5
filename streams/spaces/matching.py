"""Which spaces have topics that a filter matches, for many filters and spaces: only a few are compared. Pure.

Two filters can match the same topic only if the levels before their first wildcards agree as far as both go:
the one begins with the other. So spaces are found by those levels, and only these few are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from streamlease.streams.spaces.definitions import Space


class SpacesByFilter:
    """Finds them.

    Args:
        spaces: all of them, in the order in which they are to be found.
    """

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._spaces = spaces
        self._at: dict[tuple[str, ...], set[int]] = defaultdict(set)
        """Places of the spaces whose topics begin with exactly these levels."""
        self._below: dict[tuple[str, ...], set[int]] = defaultdict(set)
        """The same of those that begin with these levels, and perhaps more."""
        for place, space in enumerate(spaces):
            for topic in space.topics:
                levels = _begin(topic)
                self._at[levels].add(place)
                for length in range(len(levels) + 1):
                    self._below[levels[:length]].add(place)

    def is_of(self, spaces: Sequence[Space]) -> bool:
        """Whether these are spaces with the same names and topics, so that it still holds for them."""
        return self._spaces is spaces or [(one.name, one.topics) for one in spaces] == [
            (one.name, one.topics) for one in self._spaces
        ]

    def of(self, filter: str) -> list[Space]:
        """The spaces of which `filter`, which may be a topic, matches some topic, in their order."""
        levels = _begin(filter)
        places = set(self._below.get(levels, ()))
        for length in range(len(levels)):
            places.update(self._at.get(levels[:length], ()))
        return [space for space in map(self._spaces.__getitem__, sorted(places)) if space.intersects(filter)]


def _begin(filter: str) -> tuple[str, ...]:
    """The levels before the first wildcard, which is a level of its own."""
    begin = filter.partition("#")[0].partition("+")[0]
    levels = begin.split("/")
    return tuple(levels if begin == filter else levels[:-1])
