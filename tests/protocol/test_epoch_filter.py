"""Who joins late sees all of an epoch or none, and who filters in a way that is known to fail is caught.

Each course of a few publishers is played for several pairs of moments at which a subscriber could have joined
them. What it sees is judged by what the publishers sent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import product

import pytest

from streamlease.protocol.epochs.antichains import Antichain, changes, is_open, maximal, minimal
from streamlease.protocol.epochs.counting import CountedFrontier
from streamlease.protocol.epochs.filtering import EpochFilter
from streamlease.protocol.epochs.order import Epoch, at_most, bottom

SOURCES = ("p", "q")
COURSES = 250
JOINS = 8


@dataclass
class Event:
    """What one source tells: a message of an epoch, or how its lower frontier changes."""

    source: str
    epoch: Epoch | None = None
    steps: dict[Epoch, int] = field(default_factory=dict)


@dataclass
class Course:
    """What all sources tell, in the order in which they do."""

    dimensions: int
    events: list[Event] = field(default_factory=list)

    def frontiers(self, source: str, moment: int) -> tuple[Antichain, Antichain]:
        """The source's lower and upper frontier ahead of the event of that number."""
        lower = Counter({bottom(self.dimensions): 1})
        upper: Antichain = ()
        for event in self.events[:moment]:
            if event.source == source:
                lower.update(event.steps)
                upper = upper if event.epoch is None else maximal([*upper, event.epoch])
        return minimal(+lower), upper

    def sent(self) -> Counter[Epoch]:
        return Counter(event.epoch for event in self.events if event.epoch is not None)


def course(seed: int, dimensions: int) -> Course:
    """Sources that send at what they hold, and give it up step by step, until they hold nothing."""
    chance = random.Random(seed)
    top = 5 if dimensions == 1 else 2
    made = Course(dimensions)
    held: dict[str, Antichain] = dict.fromkeys(SOURCES, (bottom(dimensions),))
    epochs = list(product(range(top + 1), repeat=dimensions))
    while any(held.values()):
        source = chance.choice([one for one in SOURCES if held[one]])
        may = [one for one in epochs if is_open(held[source], one)]
        if chance.random() < 0.6:
            made.events.append(Event(source, chance.choice(may)))
            continue
        kept = [one for one in may if chance.random() < 0.8 and one not in held[source]]
        after = minimal(kept) if len(may) > 1 else ()
        made.events.append(Event(source, steps=changes(held[source], after)))
        held[source] = after
    return made


class Wrong(Exception):
    """What the subscriber saw is not what it was promised."""


def play(played: Course, joins: dict[str, int], subscriber: EpochFilter[None]) -> None:
    """The subscriber joins each source ahead of the event of that number, and hears it from there on.

    Raises:
        Wrong: it saw a part of an epoch, was told of the end of one of which a message came after, or filters
            still when nothing can come any more.
    """
    seen: Counter[Epoch] = Counter()
    for number, event in enumerate([*played.events, None]):
        for source, moment in joins.items():
            if moment == number:
                seen.update(
                    epoch for epoch, _ in subscriber.joined(source, *played.frontiers(source, moment))
                )
        if event is None or number < joins[event.source]:
            continue
        if event.epoch is None:
            subscriber.changed(event.source, event.steps.items())
        elif subscriber.ready and not is_open(subscriber.lower, event.epoch):
            raise Wrong(f"a message of epoch {event.epoch} came behind its end")
        else:
            seen.update(epoch for epoch, _ in subscriber.came(event.source, event.epoch, None))
    sent = played.sent()
    parts = {epoch: (count, sent[epoch]) for epoch, count in seen.items() if count != sent[epoch]}
    if parts:
        raise Wrong(f"of these epochs only a part was seen: {parts}")
    if subscriber.lower or subscriber.upper:
        raise Wrong("all is over, and something is still open or left out")


def findings(kind: type[EpochFilter[None]], dimensions: int) -> int:
    """In how many courses some subscriber of that kind was wrong."""
    found = 0
    for seed in range(COURSES):
        played, chance = course(seed, dimensions), random.Random(seed)
        for _ in range(JOINS):
            joins = {source: chance.randint(0, len(played.events)) for source in SOURCES}
            try:
                play(played, joins, kind(SOURCES))
            except Wrong:
                found += 1
                break
    return found


class StrictlyAbove(EpochFilter[None]):
    """Lets through only what is strictly above an element, as the design of the protocol says at first."""

    def _passes(self, epoch: Epoch) -> bool:
        return not self.upper or any(at_most(one, epoch) and one != epoch for one in self.upper)


class EachForItself(EpochFilter[None]):
    """Filters each source by that source's own upper frontier."""

    def __init__(self, sources: Collection[str]) -> None:
        super().__init__(sources)
        self._own: dict[str, EpochFilter[None]] = {source: EpochFilter([source]) for source in sources}

    def joined(self, source: str, lower: Antichain, upper: Antichain) -> list[tuple[Epoch, None]]:
        super().joined(source, lower, upper)
        return self._own[source].joined(source, lower, upper)

    def changed(self, source: str, steps: Iterable[tuple[Epoch, int]]) -> dict[Epoch, int]:
        known = list(steps)
        self._own[source].changed(source, known)
        return super().changed(source, known)

    def came(self, source: str, epoch: Epoch, item: None) -> list[tuple[Epoch, None]]:
        return self._own[source].came(source, epoch, item)


class PrunedByOne(EpochFilter[None]):
    """Takes an element off its filter as soon as one source's frontier has passed it."""

    def __init__(self, sources: Collection[str]) -> None:
        super().__init__(sources)
        self._each: dict[str, CountedFrontier] = {}

    def joined(self, source: str, lower: Antichain, upper: Antichain) -> list[tuple[Epoch, None]]:
        self._each[source] = CountedFrontier(lower)
        return super().joined(source, lower, upper)

    def changed(self, source: str, steps: Iterable[tuple[Epoch, int]]) -> dict[Epoch, int]:
        known = list(steps)
        self._each[source].update(known)
        return super().changed(source, known)

    def _prune(self) -> None:
        for counted in self._each.values():
            self._upper = tuple(one for one in self._upper if is_open(counted.frontier, one))


class Uncounted(CountedFrontier):
    """Takes two who hold one epoch for one."""

    def update(self, steps: Iterable[tuple[Epoch, int]]) -> dict[Epoch, int]:
        return super().update([(one, step) for one, step in steps if (step > 0) != bool(self.count(one))])


class SetOfEpochs(EpochFilter[None]):
    """Merges lower frontiers as sets."""

    def __init__(self, sources: Collection[str]) -> None:
        super().__init__(sources)
        self._lower = Uncounted()


class NeverCleared(EpochFilter[None]):
    """Takes an element off only where it is strictly below one of the frontier; an empty one has none."""

    def _prune(self) -> None:
        self._upper = tuple(
            one
            for one in self._upper
            if not any(at_most(one, least) and one != least for least in self.lower)
        )


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.slow
def test_all_of_an_epoch_or_none(dimensions: int) -> None:
    assert findings(EpochFilter, dimensions) == 0


@pytest.mark.parametrize(
    ("trap", "dimensions"),
    [
        (StrictlyAbove, 2),  # where all epochs are in one order it is right
        (StrictlyAbove, 3),
        *product((EachForItself, PrunedByOne, SetOfEpochs, NeverCleared), (1, 2, 3)),
    ],
)
@pytest.mark.slow
def test_a_filter_that_falls_into_a_trap_is_found(trap: type[EpochFilter[None]], dimensions: int) -> None:
    assert findings(trap, dimensions) > 0


def test_active_three_and_five_at_the_snapshot_let_six_through_first() -> None:
    late = EpochFilter[str](["p"])
    late.joined("p", ((3,),), ((5,),))
    came = [late.came("p", (epoch,), "x") for epoch in range(3, 9)]
    assert came == [[], [], [], [((6,), "x")], [((7,), "x")], [((8,), "x")]]
    assert late.changed("p", [((3,), -1), ((5,), 1)]) == {(3,): -1, (5,): 1}
    assert late.upper == ((5,),)
    assert late.changed("p", [((5,), -1), ((6,), 1)]) == {(5,): -1, (6,): 1}
    assert late.upper == ()


def test_nothing_passes_before_all_sources_have_told_their_frontiers() -> None:
    late = EpochFilter[int](["p", "q"])
    assert late.joined("p", ((0,),), ()) == []
    assert [late.came("p", (epoch,), number) for number, epoch in enumerate([9, 7, 8])] == [[], [], []]
    with pytest.raises(ValueError, match="q has not told its frontiers yet"):
        late.came("q", (9,), 0)
    with pytest.raises(ValueError, match="q has not told its frontiers yet"):
        late.changed("q", [((0,), 1)])
    with pytest.raises(ValueError, match="p is no source, or has told"):
        late.joined("p", (), ())
    assert not late.ready
    assert late.joined("q", ((2,),), ((7,),)) == [((9,), 0), ((8,), 2)]
    assert (late.lower, late.upper) == (((0,),), ((7,),))
