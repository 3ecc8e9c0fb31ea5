"""Spaces by filter are those that comparing each with each finds, and far fewer are compared."""

from __future__ import annotations

import random

import pytest

from streamlease.streams.spaces.definitions import Generation, Space
from streamlease.streams.spaces.matching import MOST_CHANGED, SpaceFinder, SpacesByFilter

LEVELS = ["a", "b", "", "$s", "+"]


def space(number: int, *topics: str) -> Space:
    return Space(name=f"s{number}", topics=topics, generations=(Generation(number=0, streams=1),))


def some_filter(rolls: random.Random) -> str:
    levels = [rolls.choice(LEVELS) for _ in range(rolls.randint(1, 4))]
    filter = "/".join([*levels, "#"] if rolls.random() < 0.4 else levels)
    return filter or "#"


@pytest.mark.parametrize("seed", range(20))
def test_they_are_those_that_comparing_all_finds(seed: int) -> None:
    rolls = random.Random(seed)
    spaces = [space(n, *(some_filter(rolls) for _ in range(rolls.randint(1, 3)))) for n in range(40)]
    found = SpacesByFilter(spaces)
    for _ in range(100):
        filter = some_filter(rolls)
        assert found.of(filter) == [one for one in spaces if one.intersects(filter)], filter
        topic = filter.replace("+", "a").replace("#", "b")
        assert found.of(topic) == [one for one in spaces if one.covers(topic)], topic
    assert found.is_of([*spaces])
    assert not found.is_of(spaces[1:])


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of spaces that were compared with a filter, as they are."""
    names: list[str] = []
    intersects = Space.intersects

    def counted(self: Space, filter: str) -> bool:
        names.append(self.name)
        return intersects(self, filter)

    monkeypatch.setattr(Space, "intersects", counted)
    return names


def test_few_are_compared(compared: list[str]) -> None:
    spaces = [space(n, f"many/{n}/#") for n in range(1000)]
    found = SpacesByFilter(spaces)
    for number in range(1000):
        assert found.of(f"many/{number}/#") == [spaces[number]]
    assert len(compared) == 1000


def test_few_are_compared_where_many_are_new_or_have_changed(compared: list[str]) -> None:
    spaces = {f"s{n}": space(n, f"many/{n}/#") for n in range(1000)}
    finder = SpaceFinder(spaces)
    assert finder.of("many/0/#") == [spaces["s0"]]
    for number in range(1000, 1000 + MOST_CHANGED):
        spaces = {**spaces, f"s{number}": space(number, f"many/{number}/#")}
        finder = SpaceFinder(spaces, finder, {f"s{number}"})
    compared.clear()
    for number in range(1000 + MOST_CHANGED):
        assert finder.of(f"many/{number}/#") == [spaces[f"s{number}"]]
    assert len(compared) == 1000 + MOST_CHANGED
