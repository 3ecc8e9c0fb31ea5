"""Whom a message wakes: those who wait, found by the filters under which they wait. Pure.

Filters stand in a tree of levels, so a topic costs as much as it has levels and wildcards beside them,
however many filters there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Node:
    __slots__ = ("below", "filter")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.filter: str | None = None
        """The filter that ends here; None: it has none, or nobody waits under it."""


class Interests(Generic[T]):
    """Those who wait, by filter."""

    def __init__(self) -> None:
        self._by_filter: dict[str, dict[T, None]] = {}
        self._root = _Node()

    def __len__(self) -> int:
        return sum(map(len, self._by_filter.values()))

    def add(self, filter: str, who: T) -> None:
        """`who` waits for messages that `filter`, which is one, matches."""
        waiting = self._by_filter.get(filter)
        if waiting is None:
            waiting = self._by_filter[filter] = {}
            node = self._root
            for level in filter.split("/"):
                node = node.below.setdefault(level, _Node())
            node.filter = filter
        waiting[who] = None

    def remove(self, filter: str, who: T) -> None:
        """`who` waits no longer under that filter; nothing if that is so."""
        waiting = self._by_filter.get(filter)
        if waiting is None or who not in waiting:
            return
        del waiting[who]
        if not waiting:
            del self._by_filter[filter]
            self._prune(filter.split("/"))

    def _prune(self, levels: list[str]) -> None:
        way, node = [], self._root
        for level in levels:
            way.append((node, level))
            node = node.below[level]
        node.filter = None
        for above, level in reversed(way):
            if above.below[level].filter is not None or above.below[level].below:
                return
            del above.below[level]

    def everybody(self) -> Iterator[T]:
        """All who wait; once for each filter."""
        for waiting in self._by_filter.values():
            yield from waiting

    def of(self, topics: Iterable[str]) -> list[T]:
        """Those who wait for a message of any of `topics`."""
        found: dict[str, None] = {}
        for topic in topics:
            found |= dict.fromkeys(self._matching(topic))
        return [who for filter in found for who in self._by_filter[filter]]

    def _matching(self, topic: str) -> Iterator[str]:
        levels = topic.split("/")
        hidden = topic.startswith("$")  # no filter that begins with a wildcard matches such a topic
        nodes = [self._root]
        for depth, level in enumerate(levels):
            reached: list[_Node] = []
            for node in nodes:
                wild = not (hidden and depth == 0)
                if wild and (rest := node.below.get("#")) is not None and rest.filter is not None:
                    yield rest.filter
                if wild and (any_level := node.below.get("+")) is not None:
                    reached.append(any_level)
                if (same := node.below.get(level)) is not None:  # a topic has no level "+" or "#"
                    reached.append(same)
            nodes = reached
        for node in nodes:
            if node.filter is not None:
                yield node.filter
            if (rest := node.below.get("#")) is not None and rest.filter is not None:
                yield rest.filter
