"""Which spaces have topics that a filter matches, for many filters: without comparing each with each. Pure.

Two filters can match the same topic only if the levels before their first wildcards agree as far as both go:
the one begins with the other. So spaces are found by those levels, and only these few are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from streamlease.streams.spaces.definitions import Space


class SpacesByFilter:
    """Finds them; a filter that was asked for is remembered."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._spaces = spaces
        self._at: dict[tuple[str, ...], set[int]] = defaultdict(set)
        """Places of the spaces whose topics begin with exactly these levels."""
        self._below: dict[tuple[str, ...], set[int]] = defaultdict(set)
        """The same of those that begin with these levels, and perhaps more."""
        self._known: dict[str, list[str]] = {}
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

    def names(self, filter: str) -> list[str]:
        """The names of the spaces of which `filter` matches some topic, in their order."""
        found = self._known.get(filter)
        if found is None:
            levels = _begin(filter)
            places = set(self._below.get(levels, ()))
            for length in range(len(levels)):
                places |= self._at.get(levels[:length], set())
            found = [self._spaces[n].name for n in sorted(places) if self._spaces[n].intersects(filter)]
            self._known[filter] = found
        return found


def _begin(filter: str) -> tuple[str, ...]:
    """The levels before the first wildcard."""
    levels = filter.split("/")
    wild = next((place for place, level in enumerate(levels) if level in ("+", "#")), len(levels))
    return tuple(levels[:wild])
