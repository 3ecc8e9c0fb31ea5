"""Spaces by filter are those that comparing each with each finds, and far fewer are compared."""

from __future__ import annotations

import random

import pytest

from streamlease.streams.spaces.definitions import Generation, Space
from streamlease.streams.spaces.matching import SpacesByFilter

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


def test_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = [space(n, f"many/{n}/#") for n in range(1000)]
    found, compared = SpacesByFilter(spaces), 0
    intersects = Space.intersects

    def counted(self: Space, filter: str) -> bool:
        nonlocal compared
        compared += 1
        return intersects(self, filter)

    monkeypatch.setattr(Space, "intersects", counted)
    for number in range(1000):
        assert found.of(f"many/{number}/#") == [spaces[number]]
    assert compared == 1000
