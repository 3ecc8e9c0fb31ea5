"""All spaces at one moment: those whose definitions can be read, and those that are damaged. Pure.

One definition that cannot be read (a fault of memory, a hand that slipped, a newer version of Streamlease)
must hurt nothing but its own space. So whoever lists spaces goes on with the others and says which are
damaged; and nobody takes a damaged space for one that does not exist:

* its name is taken, and so are its topics, as far as they can be read;
* the publisher of a message that fits no other space is not told that there is no space for it;
* **its streams are still there.** Whoever forgets what no space names any more (leaders, readers) keeps the
  streams of damaged spaces as they are.

`docs/decisions/0150-damaged-definitions.md` says what was declined.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamlease.protocol.errors import InvalidInput, SpaceConflict, UnknownSpace, Unsupported
from streamlease.protocol.ids import check_name
from streamlease.protocol.topics import check_filter, intersect, matches
from streamlease.streams.spaces.definitions import Space, Spaces, check_disjoint, no_space, parse_definition
from streamlease.streams.spaces.matching import SpaceFinder


@dataclass(frozen=True, slots=True)
class Damaged:
    """A definition that cannot be read."""

    name: str
    why: str
    """What is wrong with it."""
    key: bytes
    """Its field in Redis: a name that is no UTF-8 is shown otherwise."""
    topics: tuple[str, ...] = ()
    """Its filters, as far as they can be read."""

    @property
    def error(self) -> Unsupported:
        """The same as an error, with what to do."""
        return Unsupported(
            f"the definition of space {self.name} cannot be read ({self.why}): use the version of "
            f"Streamlease that wrote it, restore it from a backup, or delete it: "
            f"streamlease space delete {self.name}"
        )


@dataclass(frozen=True)
class Known:
    """All spaces at one moment, by name."""

    spaces: Mapping[str, Space]
    damaged: Mapping[str, Damaged]
    definitions: Sequence[bytes] = field(compare=False)
    """What they were read from."""
    finder: SpaceFinder = field(compare=False)

    def matching(self, filter: str) -> Spaces:
        """The spaces that can be read, by name, that have topics which `filter`, or this topic, matches."""
        return self.finder.of(filter)

    @property
    def listed(self) -> Spaces:
        """The spaces that can be read, sorted by name."""
        return sorted(self.spaces.values(), key=lambda space: space.name)

    def get(self, name: str) -> Space:
        """The space `name`.

        Raises:
            UnknownSpace: there is none. Unsupported: its definition is damaged.
            InvalidInput: that is no text.
        """
        if not isinstance(name, str):
            check_name("space", name)
        space = self.spaces.get(name)
        if space is not None:
            return space
        if name in self.damaged:
            raise self.damaged[name].error
        raise no_space(name, self.spaces)

    def for_topic(self, topic: str) -> Space:
        """The space to which messages of `topic` belong.

        Raises:
            UnknownSpace: none covers it. Unsupported: that of a damaged definition does.
        """
        for space in self.matching(topic):
            return space
        for one in self.damaged.values():
            if any(matches(filter, topic) for filter in one.topics):
                raise one.error
        raise UnknownSpace(
            f"no space has topics that match {topic!a}{self._or_unread()}; "
            f"create one: streamlease space create NAME --topics ..."
        )

    def for_filter(self, filter: str, *, partly: bool = False) -> Spaces:
        """The spaces, by name, that have topics which `filter` matches.

        Args:
            partly: leave out damaged ones that have such topics, as long as there are others.

        Raises:
            UnknownSpace: there is none. Unsupported: that of a damaged definition has such topics.
        """
        found = self.matching(filter)
        for one in self.damaged.values():
            if any(intersect(own, filter) for own in one.topics) and not (partly and found):
                raise one.error
        if not found:
            raise UnknownSpace(
                f"no space has topics that match the filter {filter!a}{self._or_unread()}; "
                f"create one: streamlease space create NAME --topics ..."
            )
        return found

    def check_free(self, name: str, filters: tuple[str, ...]) -> None:
        """Whether a new space `name` may have these topics.

        Raises:
            SpaceConflict: some belong to another space. Unsupported: `name` is that of a damaged definition.
        """
        if name in self.damaged:
            raise self.damaged[name].error
        near = {space.name: space for own in filters for space in self.matching(own)}
        check_disjoint(name, filters, near.values())
        for other in self.damaged.values():
            for own in filters:
                for theirs in other.topics:
                    if intersect(own, theirs):
                        raise SpaceConflict(
                            f"topics {own} of space {name} overlap {theirs} of space {other.name}, whose "
                            f"definition is damaged: choose other topics, or delete that space first"
                        )

    def _or_unread(self) -> str:
        unread = [one.name for one in self.damaged.values() if not one.topics]
        return f" (the definition of space {unread[0]} cannot be read)" if unread else ""


def read_definitions(flat: Sequence[bytes], before: Known | None = None) -> Known:
    """What the hash of definitions says.

    Args:
        flat: name, definition, name, definition, ... as ``HGETALL`` gives them.
        before: what it said when it was read last. If it still does, this is returned; else only what changed
            is read anew.
    """
    if before is not None and before.definitions == flat:
        return before
    former = _texts(before.definitions if before is not None else ())
    known = before.spaces if before is not None else {}
    spaces: dict[str, Space] = {}
    damaged: dict[str, Damaged] = {}
    changed: set[str] = set()
    for key, text in _texts(flat).items():
        name = key.decode("utf-8", "backslashreplace")
        if name in known and former.get(key) == text:
            spaces[name] = known[name]
            continue
        changed.add(name)
        try:
            spaces[name] = parse_definition(name, text)
        except Unsupported as error:
            damaged[name] = Damaged(name, str(error), key, _topics(text))
    changed |= known.keys() - spaces.keys()
    return Known(
        spaces, damaged, flat, SpaceFinder(spaces, before.finder if before is not None else None, changed)
    )


def _texts(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Name -> definition."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _topics(text: bytes) -> tuple[str, ...]:
    """The filters of a definition that is damaged elsewhere."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    topics = found.get("topics") if isinstance(found, dict) else None
    return tuple(_good(topics)) if isinstance(topics, list) else ()


def _good(filters: Iterable[Any]) -> Iterable[str]:
    for one in filters:
        try:
            yield check_filter(one)
        except (InvalidInput, TypeError, AttributeError):
            continue
