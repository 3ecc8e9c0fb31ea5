"""Data as it is staged, from entries and boundaries alone: nothing twice, nothing lost.

Publishers stage, advance, fail and come back; a keeper moves and drops entry by entry; a reader looks at any
moment between. Mistakes that such readers make are planted, and each must be found.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from streamlease.protocol.epochs.antichains import Antichain, is_open, is_seen, maximal, minimal
from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.core.boundaries import Boundary, DroppedOpen, MovedPart
from streamlease.streams.epochs.core.early import EarlyEpochs, EarlyTold, StagedEntry, Unseen, missing
from streamlease.streams.epochs.core.fold import Fold
from streamlease.streams.epochs.core.late import MergedSpaces, Stood
from streamlease.streams.epochs.core.lines import (
    AdvanceLine,
    EnterLine,
    LeaveLine,
    Line,
    LoseLine,
    StagedPart,
)
from streamlease.streams.epochs.core.whole import Stretch, stretches

COURSES = 80
STEPS = 120
STREAMS = [StreamId("s", 0, shard) for shard in range(2)]


@dataclass
class Publisher:
    """One incarnation of a name; `unsaid` is what its next line names."""

    name: str
    inc: int
    frontier: Antichain
    unsaid: dict[tuple[Epoch, StreamId], list[tuple[int, int]]] = field(default_factory=dict)

    def parts(self, to: Antichain) -> tuple[StagedPart, ...]:
        said = sorted(one for one in self.unsaid if not is_open(to, one[0]))
        return tuple(StagedPart(*one, tuple(self.unsaid.pop(one))) for one in said)


class Space:
    """A space as it stands in Redis; each message is a number of its own."""

    def __init__(self, chance: random.Random, dimensions: int) -> None:
        self.chance = chance
        self.fold = Fold(dimensions)
        self.staged: dict[StreamId, dict[int, tuple[StagedEntry, list[int]]]] = {one: {} for one in STREAMS}
        self.next = dict.fromkeys(STREAMS, 0)
        self.streams: dict[StreamId, list[tuple[Epoch, int]]] = {one: [] for one in STREAMS}
        self.bounds: list[Boundary] = []
        self.publishers: dict[str, Publisher] = {}
        self.orphans: set[int] = set()
        self.dropped: dict[int, tuple[str, int, Epoch]] = {}
        self.messages = 0
        self.keeping: Iterator[None] = iter(())

    def line(self, line: Line) -> None:
        self.fold.apply(self.fold.line + 1, line)

    def enter(self, name: str) -> None:
        former = self.publishers.get(name)
        inc = former.inc + 1 if former else 1
        self.line(EnterLine(name, inc))
        self.publishers[name] = Publisher(name, inc, self.fold.frontier_of(name))

    def stage(self, one: Publisher) -> None:
        dimensions = self.fold.dimensions
        base = self.chance.choice(one.frontier)
        epoch = tuple(part + self.chance.choice((0, 0, 1, 2)) for part in base)
        stream = self.chance.choice(STREAMS)
        rows = self.chance.randint(1, 3)
        first = self.next[stream]
        self.next[stream] = first + rows
        ids = [*range(self.messages, self.messages + rows)]
        self.messages += rows
        assert len(epoch) == dimensions
        self.staged[stream][first] = StagedEntry(stream, first, first + rows, epoch, one.name, one.inc), ids
        if self.chance.random() < 0.1:  # no answer came, and the publisher does not name it
            self.orphans.update(ids)
            return
        ranges = one.unsaid.setdefault((epoch, stream), [])
        if ranges and ranges[-1][1] == first:
            ranges[-1] = ranges[-1][0], first + rows
        else:
            ranges.append((first, first + rows))

    def advance(self, one: Publisher) -> None:
        to = minimal(tuple(part + self.chance.choice((0, 1, 1)) for part in epoch) for epoch in one.frontier)
        self.line(AdvanceLine(one.name, one.inc, to, one.parts(to)))
        one.frontier = to

    def act(self) -> None:
        """Somebody does something."""
        name = self.chance.choice("pq")
        there = self.publishers.get(name)
        if there is None or name not in self.fold.present:
            self.enter(name)
            return
        match self.chance.choices(["stage", "advance", "lose", "back", "leave"], [60, 25, 3, 3, 2])[0]:
            case "stage":
                self.stage(there)
            case "advance":
                self.advance(there)
            case "lose":
                self.line(LoseLine(name, there.inc))
            case "back":
                self.enter(name)
            case _:
                self.line(LeaveLine(name, there.inc, (), there.parts(())))

    def keep(self) -> None:
        """The keeper does one small step."""
        if next(self.keeping, 1) == 1 and self.fold.due:
            self.keeping = self._turn()

    def _turn(self) -> Iterator[None]:
        dropped = self.fold.dropped
        number = self.fold.boundary + 1
        complete = self.fold.take_completed(number)
        lower, upper, waiting = self.fold.lower, self.fold.upper, [*self.fold.waiting]
        moved = []
        ends = {}
        for owned in complete:
            part, before = owned.staged, len(self.streams[owned.staged.stream])
            for first, to in part.ranges:
                for at in [one for one in self.staged[part.stream] if first <= one < to]:
                    _, ids = self.staged[part.stream].pop(at)
                    self.streams[part.stream] += [(part.epoch, id) for id in ids]
                    yield None
            ends[part.stream] = len(self.streams[part.stream])
            rows = ends[part.stream] - before
            assert rows == part.rows
            moved.append(MovedPart(part.epoch, owned.name, owned.inc, part.stream, rows, 0, part.ranges))
        kept = {(one.staged.epoch, one.name, one.inc) for one in waiting}
        for gone in dropped:
            for log in self.staged.values():
                for at, (entry, ids) in [*log.items()]:
                    mine = entry.name == gone.name and entry.inc <= gone.inc
                    if mine and (entry.epoch, entry.name, entry.inc) not in kept:
                        del log[at]
                        self.dropped |= dict.fromkeys(ids, (entry.name, entry.inc, entry.epoch))
                        yield None
        told = tuple(DroppedOpen(one.name, one.inc, one.frontier) for one in dropped)
        # As the documents are written and read again.
        text = Boundary(number, self.fold.line, 1, lower, upper, ends, (*moved,), told).dump()
        self.bounds.append(Boundary.parse(number, text))

    def stood(self) -> tuple[int, Stood]:
        """Where a late reader begins."""
        here = self.bounds[-1] if self.bounds else None
        staged = [entry.epoch for log in self.staged.values() for entry, _ in log.values()]
        lower = here.lower if here else (bottom(self.fold.dimensions),)
        return len(self.bounds), Stood(lower, maximal([*(here.upper if here else ()), *staged]))


class Wrong(Exception):
    """The reader is not what it promises."""


class Reader:
    """Reads a space, and judges what it is handed."""

    def __init__(self, space: Space, kind: type[EarlyEpochs], late: bool) -> None:
        self.space = space
        # The ends of the staged logs are read first, then what is staged.
        self.at = dict(space.next) if late else dict.fromkeys(STREAMS, 0)
        number, self.stood = space.stood() if late else (0, Stood((bottom(space.fold.dimensions),), ()))
        self.late, self.number = late, number
        self.merged = MergedSpaces({"s": self.stood}, late=late)
        self.core = kind(self.merged)
        self.seen: dict[int, Epoch] = {}
        self.aborted: list[DroppedOpen] = []
        self.told = self.merged.lower

    def hand_out(self, id: int, epoch: Epoch) -> None:
        if id in self.seen:
            raise Wrong(f"message {id} came twice")
        if not is_open(self.told, epoch):
            raise Wrong(f"a message of epoch {epoch} came behind its end")
        self.seen[id] = epoch

    def look(self, stream: StreamId, count: int) -> None:
        log = self.space.staged[stream]
        for at in sorted(one for one in log if one >= self.at[stream])[:count]:
            entry, ids = log[at]
            self.at[stream] = entry.to
            if self.core.came("s", entry):
                for id in ids:
                    self.hand_out(id, entry.epoch)

    def follow(self) -> None:
        while self.number < len(self.space.bounds):
            told = self.core.boundary("s", self.space.bounds[self.number])
            self.number += 1
            for unseen in told.unseen:
                for one in unseen.wanted:
                    for offset in range(one.first, one.to):
                        epoch, id = self.space.streams[one.stream][offset]
                        if epoch != unseen.epoch:
                            raise Wrong(f"offset {offset} is of {epoch} and not of {unseen.epoch}")
                        self.hand_out(id, epoch)
            self.aborted += told.dropped
            self.told = self.merged.lower

    def judge(self) -> None:
        moved = {id: epoch for one in self.space.streams.values() for epoch, id in one}
        wanted = {
            id: epoch for id, epoch in moved.items() if not (self.late and is_seen(self.stood.upper, epoch))
        }
        if lost := {id: epoch for id, epoch in wanted.items() if id not in self.seen}:
            raise Wrong(f"these were not handed out: {lost}")
        for id in self.seen.keys() - wanted.keys():
            if id in self.space.dropped:
                name, inc, epoch = self.space.dropped[id]
                if any(
                    one.name == name and inc <= one.inc and is_open(one.frontier, epoch)
                    for one in self.aborted
                ):
                    continue
                if id in self.space.orphans:
                    continue
                raise Wrong(f"message {id} was dropped, and nobody was told")
            if id not in self.space.orphans and not any(
                id in ids for log in self.space.staged.values() for _, ids in log.values()
            ):
                raise Wrong(f"message {id} was not to be seen")
        kept = {entry.epoch for log in self.space.staged.values() for entry, _ in log.values()}
        if any(key[1] not in kept and not is_open(self.merged.lower, key[1]) for key in self.core._seen):
            raise Wrong("what is over is kept")


def play(seed: int, dimensions: int, kind: type[EarlyEpochs]) -> None:
    """Raises:
    Wrong: some reader was.
    """
    chance = random.Random(seed)
    space = Space(chance, dimensions)
    readers = [Reader(space, kind, late=False)]
    for step in range(STEPS):
        space.act()
        for _ in range(chance.randint(0, 2)):
            space.keep()
        if step == STEPS // 3:
            readers.append(Reader(space, kind, late=True))
        for reader in readers:
            if chance.random() < 0.3:
                reader.follow()
                for stream in STREAMS:
                    if chance.random() < 0.7:
                        reader.look(stream, chance.randint(1, 4))
    for name in [*space.fold.present]:
        one = space.publishers[name]
        space.line(LeaveLine(name, one.inc, (), one.parts(())))
    for _ in range(10_000):
        space.keep()
    for reader in readers:
        reader.follow()
        reader.judge()


class CountsInsteadOfOffsets(EarlyEpochs):
    """Takes what it has seen of a part for its beginning."""

    def boundary(self, space: str, bound: Boundary) -> EarlyTold:
        rows = {key: sum(to - first for first, to in seen) for key, seen in self._seen.items()}
        asked = {(part.epoch): self._merged.passes(space, part.epoch) for part in bound.moved}
        told = super().boundary(space, bound)
        unseen = []
        for part, one in stretches(bound):
            count = rows.get((part.stream, part.epoch, part.name, part.inc), 0)
            if asked[part.epoch] and one.first + count < one.to:
                rest = Stretch(one.stream, one.first + count, one.to)
                unseen.append(Unseen(part.epoch, part.name, part.inc, [rest]))
        return told._replace(unseen=unseen)


class ReadsAllOfABoundary(EarlyEpochs):
    """Hands out again what it has seen."""

    def boundary(self, space: str, bound: Boundary) -> EarlyTold:
        self._seen.clear()
        return super().boundary(space, bound)


class ReadsNothingOfABoundary(EarlyEpochs):
    """Believes that whatever is moved was seen while it was staged."""

    def boundary(self, space: str, bound: Boundary) -> EarlyTold:
        return super().boundary(space, bound)._replace(unseen=[])


class TakesWhatNobodyNamed(EarlyEpochs):
    """Does not ask whether the epoch of an entry is completed."""

    def came(self, space: str, entry: StagedEntry) -> bool:
        if not self._merged.passes(space, entry.epoch):
            return False
        self._seen.setdefault((entry.stream, entry.epoch, entry.name, entry.inc), []).append(entry[1:3])
        return True


class FiltersOnlyWhatIsStaged(EarlyEpochs):
    """Hands out at a boundary what was active when it joined."""

    def boundary(self, space: str, bound: Boundary) -> EarlyTold:
        parts = [
            Unseen(part.epoch, part.name, part.inc, wanted)
            for part, one in stretches(bound)
            if (
                wanted := missing(
                    part, one, self._seen.get((part.stream, part.epoch, part.name, part.inc), [])
                )
            )
        ]
        return super().boundary(space, bound)._replace(unseen=parts)


class TellsNoAborts(EarlyEpochs):
    """Lets what was dropped stand."""

    def boundary(self, space: str, bound: Boundary) -> EarlyTold:
        return super().boundary(space, bound)._replace(dropped=[])


class ForgetsNothing(EarlyEpochs):
    """Keeps what was dropped, or never named."""

    def _forget(self, space: str, dropped: object) -> None:
        pass


def findings(dimensions: int, kind: type[EarlyEpochs] = EarlyEpochs) -> int:
    """In how many courses a reader of that kind was wrong."""
    found = 0
    for seed in range(COURSES):
        try:
            play(seed, dimensions, kind)
        except Wrong:
            found += 1
    return found


@pytest.mark.parametrize("dimensions", [1, 2])
def test_nothing_is_lost_and_nothing_comes_twice(dimensions: int) -> None:
    assert findings(dimensions) == 0


PLANTED = (
    CountsInsteadOfOffsets,
    ReadsAllOfABoundary,
    ReadsNothingOfABoundary,
    TakesWhatNobodyNamed,
    FiltersOnlyWhatIsStaged,
    TellsNoAborts,
    ForgetsNothing,
)


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
@pytest.mark.slow
def test_the_known_mistakes_are_found(kind: type[EarlyEpochs]) -> None:
    assert findings(1, kind) > 0


def test_what_is_missing_is_known_by_offset() -> None:
    stream = STREAMS[0]
    part = MovedPart((4,), "p", 1, stream, 7, 0, ((2, 5), (10, 14)))
    stretch = Stretch(stream, 100, 107)
    cases: Mapping[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {
        (): [(100, 107)],
        ((2, 5), (10, 14)): [],
        ((2, 14),): [],
        ((2, 5),): [(103, 107)],
        ((10, 14),): [(100, 103)],
        ((3, 4),): [(100, 101), (102, 107)],
        ((4, 11), (13, 14)): [(100, 102), (104, 106)],
    }
    for seen, wanted in cases.items():
        assert missing(part, stretch, [*seen]) == [Stretch(stream, *one) for one in wanted], seen
    lost = part._replace(rows=6, lost=1)
    shorter = Stretch(stream, 100, 106)
    assert missing(lost, shorter, [(2, 5)]) == [shorter], "nobody knows which are missing"
    assert missing(lost, shorter, [(2, 14)]) == []


def test_what_was_seen_is_known_on_both_sides_of_a_gap() -> None:
    stream = STREAMS[0]
    early = EarlyEpochs(MergedSpaces({stream.space: Stood(((0,),), ())}, late=False))
    for first, to in ((0, 1), (2, 3)):
        assert early.came(stream.space, StagedEntry(stream, first, to, (0,), "p", 1))
    part = MovedPart((0,), "p", 1, stream, 5, 0, ((0, 5),))
    told = early.boundary(
        stream.space, Boundary(1, 1, 1, ((1,),), (), {stream: 9}, (part,), gaps={stream: ((2, 6),)})
    )
    assert [one.wanted for one in told.unseen] == [[Stretch(stream, 1, 2)], [Stretch(stream, 7, 9)]]
