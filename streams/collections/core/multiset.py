"""A multiset, and the changes that make it. Pure.

An item is a topic, a key, and a payload, or, in a space with a schema, its columns in place of the payload:
pairs of name and value. A change adds its diff to the count of an item. Who takes away what is not there gets
a count below 0, which is shown: it may be that the change that adds the item comes from a stream that is read
later, and if none comes, somebody should know. An item whose count is 0 is not there.

The order of changes means nothing, so any two ways of adding up the same ones give the same multiset: that is
why a snapshot and the changes behind it say as much as all changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Columns = tuple[tuple[str, Any], ...]
"""The typed columns of an item, in the order of the schema."""

Content = bytes | Columns

Item = tuple[str, bytes | None, Content]
"""Topic, key, and payload or columns."""


class Change(NamedTuple):
    """So many of an item come, or, below 0, go."""

    topic: str
    key: bytes | None
    payload: Content
    """Its columns, in a space with a schema."""
    diff: int

    @property
    def item(self) -> Item:
        """What is changed."""
        return self.topic, self.key, self.payload


class Multiset:
    """How many there are of each item; none has the count 0."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[Item, int] | None = None) -> None:
        self._counts = {item: count for item, count in (counts or {}).items() if count}

    def add(self, item: Item, diff: int) -> None:
        """One change."""
        count = self._counts.get(item, 0) + diff
        if count:
            self._counts[item] = count
        else:
            self._counts.pop(item, None)

    def add_all(self, changes: Iterable[Change]) -> None:
        """Some changes."""
        for topic, key, payload, diff in changes:
            self.add((topic, key, payload), diff)

    @property
    def counts(self) -> dict[Item, int]:
        """How many there are of each item, as a dictionary of the caller's own."""
        return dict(self._counts)

    def ordered(self) -> list[tuple[Item, int]]:
        """Items and counts by topic, then key (none is first), then content."""
        return sorted(self._counts.items(), key=lambda one: order_of(one[0]))

    def __len__(self) -> int:
        return len(self._counts)

    def __eq__(self, other: object) -> bool:
        return self._counts == other._counts if isinstance(other, Multiset) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Multiset({self._counts!r})"


def order_of(item: Item) -> tuple[Any, ...]:
    """What items are sorted by."""
    topic, key, content = item
    return topic, key is not None, key or b"", content if isinstance(content, bytes) else repr(content)


def consolidated(changes: Iterable[Change]) -> list[Change]:
    """The fewest changes that come to the same, one for each item, in order."""
    multiset = Multiset()
    multiset.add_all(changes)
    return [Change(*item, count) for item, count in multiset.ordered()]


def frozen(value: Any) -> Any:
    """A value of a column as a part of an item: hashable, and equal to itself."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return tuple((name, frozen(one)) for name, one in value.items())
    return math.nan if isinstance(value, float) and value != value else value  # noqa: PLR0124
