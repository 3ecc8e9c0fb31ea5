"""Whole epochs of one or several spaces, from boundaries alone: whoever reads sees all of an epoch, or none.

Courses of boundaries are played for readers that begin at any of them. Mistakes that such readers make are
planted, and each must be found.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product

import pytest

from streamlease.protocol.epochs.antichains import Antichain, is_open, is_seen, maximal, minimal
from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.core import whole
from streamlease.streams.epochs.core.boundaries import Boundary, MovedPart
from streamlease.streams.epochs.core.late import MergedSpaces, Stood
from streamlease.streams.epochs.core.whole import Stretch, WholeEpochs, begins

COURSES = 120
Message = tuple[Epoch, StreamId, int]


class Course:
    """The boundaries of some spaces, and what stands in their streams."""

    def __init__(self, seed: int, dimensions: int, spaces: int) -> None:
        chance = random.Random(seed)
        top = 6 if dimensions == 1 else 2
        self.dimensions = dimensions
        self.bounds: dict[str, list[Boundary]] = {}
        self.messages: set[Message] = set()
        for name in "abc"[:spaces]:
            streams = [StreamId(name, 0, shard) for shard in range(2)]
            ends = dict.fromkeys(streams, 0)
            lower: Antichain = (bottom(dimensions),)
            upper: Antichain = ()
            bounds = self.bounds[name] = []
            while lower:
                still = [one for one in product(range(top), repeat=dimensions) if is_open(lower, one)]
                kept = [one for one in still if chance.random() < 0.7]
                after = minimal(kept) if len(still) > 1 else ()
                done = [one for one in still if not is_open(after, one)]
                moved = [
                    MovedPart(epoch, publisher, 1, stream, chance.randint(1, 3))
                    for epoch in sorted(done)
                    for publisher in "pq"
                    for stream in streams
                    if chance.random() < 0.4
                ]
                changed = {}
                for part in moved:
                    for _ in range(part.rows):
                        self.messages.add((part.epoch, part.stream, ends[part.stream]))
                        ends[part.stream] += 1
                    changed[part.stream] = ends[part.stream]
                upper = maximal([*upper, *(part.epoch for part in moved)])
                bounds.append(Boundary(len(bounds) + 1, 0, 1, after, upper, changed, (*moved,)))
                lower = after

    def stood(self, space: str, number: int, chance: random.Random, late: bool) -> Stood:
        """How a space stood at a boundary; for a late reader, with some of what comes staged already."""
        bounds = self.bounds[space]
        here = bounds[number - 1] if number else None
        upper = here.upper if here else ()
        if late:
            coming = [part.epoch for bound in bounds[number:] for part in bound.moved]
            upper = maximal([*upper, *(epoch for epoch in coming if chance.random() < 0.2)])
        return Stood(here.lower if here else (bottom(self.dimensions),), upper)

    def ends(self, space: str, number: int) -> dict[StreamId, int]:
        found = {StreamId(space, 0, shard): 0 for shard in range(2)}
        for bound in self.bounds[space][:number]:
            found |= bound.ends
        return found


class Wrong(Exception):
    """The reader is not what it promises."""


def play(
    course: Course, seed: int, late: bool, spaces: type[MergedSpaces], epochs: type[WholeEpochs]
) -> None:
    """A reader begins somewhere and reads all spaces to their ends, in any order that it may.

    Raises:
        Wrong: it did not see what it should.
    """
    chance = random.Random(seed)
    at = {name: chance.randint(0, len(bounds)) for name, bounds in course.bounds.items()}
    stood = {name: course.stood(name, number, chance, late) for name, number in at.items()}
    merged = spaces(stood, late=late)
    ends = {stream: end for name, number in at.items() for stream, end in course.ends(name, number).items()}
    reader = epochs(merged, ends)
    seen: dict[Epoch, set[Message]] = {}
    told = merged.lower
    while ready := [
        name for name, bounds in course.bounds.items() if at[name] < len(bounds) and merged.is_held_by(name)
    ]:
        name = chance.choice(ready)
        due, net = reader.boundary(name, course.bounds[name][at[name]])
        at[name] += 1
        if due != sorted(due):
            raise Wrong(f"{due} is no linear order")
        for epoch in due:
            if epoch in seen or not is_open(told, epoch):
                raise Wrong(f"epoch {epoch} came twice, or behind its end")
            wanted = reader.wanted(epoch)
            if wanted != sorted(wanted):
                raise Wrong(f"the streams of {wanted} are in no order")
            seen[epoch] = {
                (epoch, one.stream, offset) for one in wanted for offset in range(one.first, one.to)
            }
            reader.taken(epoch)
        told = tuple(
            sorted({*told, *(one for one, step in net.items() if step > 0)} - {e for e in net if net[e] < 0})
        )
        if told != merged.lower:
            raise Wrong(f"the changes come to {told}, and the frontier is {merged.lower}")
        handed = set().union(*seen.values()) if seen else set()
        for message in course.messages:
            epoch, stream, offset = message
            behind = ends[stream] <= offset < reader.positions[stream]
            if behind and message not in handed and wants(stood, late, epoch):
                raise Wrong(f"the positions passed over {message}, which was not handed out")
    whole_epochs: dict[Epoch, set[Message]] = {}
    for message in course.messages:
        whole_epochs.setdefault(message[0], set()).add(message)
    # Some space may have ended before: what is behind its beginning only is nobody's to see.
    expected = {
        epoch: messages
        for epoch, messages in whole_epochs.items()
        if wants(stood, late, epoch) and any(ends[stream] <= offset for _, stream, offset in messages)
    }
    if seen != expected:
        raise Wrong(f"seen {seen}, and not {expected}")


def wants(stood: Mapping[str, Stood], late: bool, epoch: Epoch) -> bool:
    """Whether a reader is to see an epoch, by the definition."""
    if late:
        return not any(is_seen(one.upper, epoch) for one in stood.values())
    return not any(is_seen(one.upper, epoch) and not is_open(one.lower, epoch) for one in stood.values())


class EachForItself(MergedSpaces):
    """Asks only the space that the message is of."""

    def __init__(self, stood: Mapping[str, Stood], *, late: bool) -> None:
        super().__init__(stood, late=late)
        self._own = {name: MergedSpaces({name: one}, late=late) for name, one in stood.items()}

    def passes(self, space: str, epoch: Epoch) -> bool:
        return self._own[space].passes(space, epoch)

    def moves_on(self, space: str, lower: Antichain) -> dict[Epoch, int]:
        self._own[space].moves_on(space, lower)
        return super().moves_on(space, lower)


class AllMayPass(MergedSpaces):
    """Filters nothing."""

    def passes(self, space: str, epoch: Epoch) -> bool:
        return True


class AtTheOwnBoundary(WholeEpochs):
    """Hands an epoch out when the first of the spaces has completed it."""

    def boundary(self, space: str, bound: Boundary) -> tuple[list[Epoch], dict[Epoch, int]]:
        due, net = super().boundary(space, bound)
        own = {epoch for epoch in self._waiting if not is_open(bound.lower, epoch)}
        return sorted({*due, *own}), net


class AskedTooLate(WholeEpochs):
    """Judges what a boundary brings after its frontier has moved."""

    def boundary(self, space: str, bound: Boundary) -> tuple[list[Epoch], dict[Epoch, int]]:
        net = self._merged.moves_on(space, bound.lower)
        due, _ = super().boundary(space, bound)
        return due, net


class CountsBeforeItIsTaken(WholeEpochs):
    """Lets the positions follow the boundaries, not what was handed out."""

    def boundary(self, space: str, bound: Boundary) -> tuple[list[Epoch], dict[Epoch, int]]:
        found = super().boundary(space, bound)
        self.positions.update(bound.ends)
        return found


class PublisherByPublisher(WholeEpochs):
    """Takes only the first stretch of a stream for all of an epoch."""

    def wanted(self, epoch: Epoch) -> list[Stretch]:
        first: dict[StreamId, Stretch] = {}
        for one in self._waiting[epoch]:
            first.setdefault(one.stream, one)
        return sorted(first.values())


def findings(
    dimensions: int,
    spaces: int,
    merged: type[MergedSpaces] = MergedSpaces,
    epochs: type[WholeEpochs] = WholeEpochs,
) -> int:
    """In how many courses some reader of that kind was wrong."""
    found = 0
    for seed in range(COURSES):
        course = Course(seed, dimensions, spaces)
        try:
            for reader in range(4):
                play(course, reader, reader % 2 == 0, merged, epochs)
        except Wrong:
            found += 1
    return found


@pytest.mark.parametrize("spaces", [1, 2, 3])
@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.slow
def test_a_reader_sees_all_of_an_epoch_or_none(dimensions: int, spaces: int) -> None:
    assert findings(dimensions, spaces) == 0


@pytest.mark.parametrize(
    ("merged", "epochs"),
    [
        (EachForItself, WholeEpochs),
        (AllMayPass, WholeEpochs),
        (MergedSpaces, AtTheOwnBoundary),
        (MergedSpaces, AskedTooLate),
        (MergedSpaces, CountsBeforeItIsTaken),
        (MergedSpaces, PublisherByPublisher),
    ],
    ids=lambda kind: kind.__name__,
)
def test_the_known_mistakes_are_found(merged: type[MergedSpaces], epochs: type[WholeEpochs]) -> None:
    assert findings(1, 2, merged, epochs) > COURSES / 20


def test_where_messages_stand_follows_from_the_ends() -> None:
    stream, other = StreamId("a", 0, 0), StreamId("a", 0, 1)
    moved = (
        MovedPart((0,), "p", 1, stream, 2),
        MovedPart((0,), "q", 1, other, 1),
        MovedPart((1,), "p", 1, stream, 3),
    )
    bound = Boundary(4, 9, 1, ((2,),), ((1,),), {stream: 15, other: 1}, moved)
    assert begins(bound) == {stream: 10, other: 0}
    assert [one for _, one in whole.stretches(bound)] == [
        Stretch(stream, 10, 12),
        Stretch(other, 0, 1),
        Stretch(stream, 12, 15),
    ]


def test_a_part_is_divided_where_a_gap_is() -> None:
    """With where it stood in the staged log, which is not known where Redis lost some of it."""
    stream = StreamId("space", 0, 0)
    moved = (
        MovedPart((0,), "p", 1, stream, 5, 0, ((0, 2), (4, 7))),
        MovedPart((0,), "q", 1, stream, 0, 3, ((7, 10),)),
        MovedPart((1,), "p", 1, stream, 4, 1, ((10, 15),)),
    )
    gaps = {stream: ((13, 20), (22, 23), (24, 30), (32, 40))}
    bound = Boundary(1, 9, 1, ((2,),), ((1,),), {stream: 41}, moved, gaps=gaps)
    assert begins(bound) == {stream: 10}
    found = [(*one[:2], one[4], one.lost, one.ranges, place[1:]) for one, place in whole.stretches(bound)]
    assert found == [
        ((0,), "p", 3, 0, ((0, 2), (4, 5)), (10, 13)),
        ((0,), "p", 2, 0, ((5, 7),), (20, 22)),
        ((0,), "q", 0, 3, ((7, 10),), (22, 22)),
        ((1,), "p", 1, 1, ((10, 15),), (23, 24)),
        ((1,), "p", 2, 1, ((10, 15),), (30, 32)),
        ((1,), "p", 1, 1, ((10, 15),), (40, 41)),
    ]
    assert Boundary.parse(1, bound.dump()) == bound
