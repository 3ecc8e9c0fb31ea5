"""Which spaces have topics that a filter matches, for many filters and spaces: only a few are compared. Pure.

Two filters can match the same topic only if the levels before their first wildcards agree as far as both go:
the one begins with the other. So spaces are found by those levels, and only these few are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

from streamlease.streams.spaces.definitions import Space

MOST_CHANGED = 64
"""So many spaces are sorted by themselves, again with each change, before all of them are sorted anew."""


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


class SpaceFinder:
    """Finds spaces by filter where definitions change one by one: what was made of all serves on for most.

    Args:
        spaces: all of them, by name. They are found in the order of their names.
        before: what found them before some of them changed.
        changed: the names of these, and of those that are gone.
    """

    def __init__(
        self, spaces: Mapping[str, Space], before: SpaceFinder | None = None, changed: Set[str] = frozenset()
    ) -> None:
        self._spaces = spaces
        self._most: SpacesByFilter | None = None
        self._others: SpacesByFilter | None = None
        """Those that are not as `_most` has them; made when they are looked for."""
        self._changed: Set[str] = frozenset()
        """The names of those that differ from what they are in `_most`."""
        if before is not None and before._most is not None:
            differ = before._changed | changed
            if len(differ) <= MOST_CHANGED:
                self._most, self._changed = before._most, differ

    def of(self, filter: str) -> list[Space]:
        """The spaces of which `filter`, which may be a topic, matches some topic."""
        if self._most is None:
            self._most = SpacesByFilter(sorted(self._spaces.values(), key=_name_of))
        found, changed = self._most.of(filter), self._changed
        if not changed:
            return found
        if self._others is None:
            now = [self._spaces[name] for name in changed if name in self._spaces]
            self._others = SpacesByFilter(sorted(now, key=_name_of))
        same = [space for space in found if space.name not in changed]
        return sorted([*same, *self._others.of(filter)], key=_name_of)


def _name_of(space: Space) -> str:
    return space.name


def _begin(filter: str) -> tuple[str, ...]:
    """The levels before the first wildcard, which is a level of its own."""
    begin = filter.partition("#")[0].partition("+")[0]
    levels = begin.split("/")
    return tuple(levels if begin == filter else levels[:-1])
