"""Epochs and frontiers, against what the words say, over all small cases."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations, product

import pytest

from streamlease.protocol.epochs.antichains import (
    Antichain,
    behind,
    changes,
    checked_frontier,
    goes_on,
    is_open,
    is_seen,
    maximal,
    minimal,
    newly_completed,
)
from streamlease.protocol.epochs.counting import CountedFrontier
from streamlease.protocol.epochs.holding import Capabilities, HeldFrontier
from streamlease.protocol.epochs.order import (
    HIGHEST_EPOCH,
    Epoch,
    at_most,
    bottom,
    checked_dimensions,
    checked_epoch,
    in_linear_order,
    join,
)
from streamlease.protocol.errors import InvalidEpoch, InvalidOption, NotCapable

BOXES = [(6,), (3, 3), (2, 2, 2)]
"""The small worlds: how many epochs there are in each dimension."""


def world(box: tuple[int, ...]) -> list[Epoch]:
    return list(product(*map(range, box)))


def subsets(epochs: list[Epoch]) -> Iterator[tuple[Epoch, ...]]:
    return (some for size in range(len(epochs) + 1) for some in combinations(epochs, size))


def antichains(box: tuple[int, ...]) -> list[Antichain]:
    return sorted({minimal(some) for some in subsets(world(box))})


def below(one: Epoch, other: Epoch) -> bool:
    """The product order, as its definition has it."""
    return all(one[d] <= other[d] for d in range(len(one)))


def opened(frontier: Iterable[Epoch], box: tuple[int, ...]) -> set[Epoch]:
    return {one for one in world(box) if any(below(least, one) for least in frontier)}


def least(epochs: Iterable[Epoch]) -> Antichain:
    known = set(epochs)
    return tuple(sorted(e for e in known if not any(below(o, e) and o != e for o in known)))


def most(epochs: Iterable[Epoch]) -> Antichain:
    known = set(epochs)
    return tuple(sorted(e for e in known if not any(below(e, o) and o != e for o in known)))


@pytest.mark.parametrize("box", BOXES)
def test_the_order_of_two_epochs(box: tuple[int, ...]) -> None:
    for one, other in product(world(box), repeat=2):
        assert at_most(one, other) == below(one, other)
        both = [e for e in world(box) if below(one, e) and below(other, e)]
        assert least(both) == (join(one, other),)
        assert at_most(bottom(len(box)), one)


@pytest.mark.parametrize("box", BOXES)
def test_frontiers_of_all_sets_of_epochs(box: tuple[int, ...]) -> None:
    for epochs in subsets(world(box)):
        assert minimal(epochs) == least(epochs)
        assert maximal(epochs) == most(epochs)
        order = in_linear_order(reversed(epochs))
        assert not any(below(later, one) for n, one in enumerate(order) for later in order[n + 1 :])
        for one in world(box):
            assert is_open(minimal(epochs), one) == any(below(e, one) for e in epochs)
            assert is_seen(maximal(epochs), one) == any(below(one, e) for e in epochs)


@pytest.mark.parametrize("box", BOXES)
def test_from_one_frontier_to_another(box: tuple[int, ...]) -> None:
    for before, after in product(antichains(box), repeat=2):
        assert goes_on(before, after) == (opened(after, box) <= opened(before, box))
        net = changes(before, after)
        assert sorted((Counter(before) + Counter(net)).elements()) == list(after)
        assert {e for e, step in net.items() if step < 0} == set(before) - set(after)
        assert {e for e, step in net.items() if step > 0} == set(after) - set(before)
        done = newly_completed(world(box), before, after)
        assert set(done) == opened(before, box) - opened(after, box)
        assert done == in_linear_order(done)


@pytest.mark.parametrize("box", BOXES)
def test_what_is_open_behind_what_is_completed(box: tuple[int, ...]) -> None:
    wider = tuple(size + 1 for size in box)  # where the completed ones end, what is behind them begins
    for lower, completed in product(antichains(box), repeat=2):
        passed = {one for one in world(wider) if any(below(one, e) for e in completed)}
        assert behind(lower, completed) == least(opened(lower, wider) - passed)


@pytest.mark.parametrize(("box", "length"), [((3,), 4), ((2, 2), 4), ((2, 2, 2), 3)])
def test_every_short_course_of_counts(box: tuple[int, ...], length: int) -> None:
    steps = [(epoch, step) for epoch in world(box) for step in (1, -1)]
    for course in product(steps, repeat=length):
        counted, model = CountedFrontier(), Counter[Epoch]()
        for epoch, step in course:
            before = counted.frontier
            if model[epoch] + step < 0:
                with pytest.raises(ValueError, match="only 0 are there"):
                    counted.update([(epoch, step)])
                assert counted.frontier == before
                continue
            model[epoch] += step
            assert counted.update([(epoch, step)]) == changes(before, counted.frontier)
            assert counted.frontier == least(+model)
            assert counted.count(epoch) == model[epoch]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_long_courses_of_counts_at_once(dimensions: int) -> None:
    chance = random.Random(dimensions)
    for _ in range(150):
        counted, model = CountedFrontier(), Counter[Epoch]()
        for _ in range(40):
            drop = [
                (e, -1)
                for e in chance.sample(sorted(model.elements()), chance.randint(0, min(3, model.total())))
            ]
            add = [
                (tuple(chance.randrange(5) for _ in range(dimensions)), 1)
                for _ in range(chance.randint(0, 3))
            ]
            steps = [*drop, *add]
            chance.shuffle(steps)
            for epoch, step in steps:
                model[epoch] += step
            before = counted.frontier
            assert counted.update(steps) == changes(before, counted.frontier)
            assert counted.frontier == least(+model)


def test_nothing_is_counted_of_a_change_that_cannot_be() -> None:
    counted = CountedFrontier([(3,), (5,)])
    with pytest.raises(ValueError, match=r"2 of epoch \(5,\) go, and only 1 are there"):
        counted.update([((3,), -1), ((5,), -2)])
    assert (counted.frontier, counted.count((3,)), counted.count((5,))) == (((3,),), 1, 1)


# -- publishers ----------------------------------------------------------------------------------------------


class Model:
    """A space of few epochs, as its words say: what is completed is a set, what each may send at as well."""

    def __init__(self, box: tuple[int, ...]) -> None:
        self.box = tuple(size + 1 for size in box)
        self.may: dict[str, set[Epoch]] = {}
        self.completed: set[Epoch] = set()
        self.finished: set[Epoch] = set()

    def enter(self, name: str) -> None:
        self.may[name] = set(world(self.box)) - self.completed

    def advance(self, name: str, frontier: Antichain) -> None:
        self.may[name] = opened(frontier, self.box)
        self._complete()

    def leave(self, name: str, upper: Antichain) -> None:
        self.finished |= {one for one in world(self.box) if any(below(one, e) for e in upper)}
        self.lose(name)

    def lose(self, name: str) -> None:
        del self.may[name]
        self._complete()

    def _complete(self) -> None:
        held = set().union(*self.may.values())
        self.completed |= (set(world(self.box)) if self.may else self.finished) - held

    def copy(self) -> Model:
        other = Model(self.box)
        other.box, other.may = self.box, dict(self.may)
        other.completed, other.finished = set(self.completed), set(self.finished)
        return other


Act = tuple[str, str, Antichain]


def done(held: HeldFrontier, model: Model, act: Act) -> tuple[HeldFrontier, Model] | None:
    """Both after one act, which is judged; None: it is refused, and changes nothing."""
    what, name, told = act
    held, model = HeldFrontier(held.lower, held.holders, held.finished), model.copy()
    before = held.lower
    match what:
        case "enter":
            assert held.enter(name) == before
            model.enter(name)
            net = changes(before, held.lower)
        case "advance":
            if not opened(told, model.box) <= model.may[name]:
                with pytest.raises(NotCapable, match="cannot go back to"):
                    held.advance(name, told)
                assert held.lower == before
                return None
            net = held.advance(name, told)
            model.advance(name, told)
        case "leave":
            net = held.leave(name, told)
            model.leave(name, told)
        case _:
            net = held.lose(name)
            model.lose(name)
    assert net == changes(before, held.lower)
    assert goes_on(before, held.lower), "a frontier never goes back"
    assert opened(held.lower, model.box) == set(world(model.box)) - model.completed
    return held, model


@pytest.mark.parametrize(
    ("box", "length", "states"), [((3,), None, 56), ((2, 2), None, 255), ((2, 2, 2), 4, 1138)]
)
@pytest.mark.slow
def test_every_course_of_two_publishers(box: tuple[int, ...], length: int | None, states: int) -> None:
    """Whatever each of two does next, in every state that so many acts lead to; None: any number of them."""
    chains = antichains(box)
    begin = HeldFrontier((bottom(len(box)),)), Model(box)
    known, newest, acts = set[object](), [begin], 0
    while newest and acts != length:
        found = []
        for held, model in newest:
            for name in "ab":
                here: list[Act] = [("advance", name, one) for one in chains if one]
                here += [("leave", name, one) for one in chains]
                here += [("lose", name, ())]
                for act in here if name in held.holders else [("enter", name, ())]:
                    after = done(held, model, act)
                    if after is None:
                        continue
                    state = after[0].lower, tuple(sorted(after[0].holders.items())), after[0].finished
                    if state not in known:
                        known.add(state)
                        found.append(after)
        newest, acts = found, acts + 1
    assert len(known) == states


@pytest.mark.parametrize("box", [(3,), (2, 2), (2, 2, 2)])
@pytest.mark.slow
def test_what_publishers_hold_together(box: tuple[int, ...]) -> None:
    frontiers = [one for one in antichains(box) if one]
    for seed in range(400):
        chance = random.Random(seed)
        held, model = HeldFrontier((bottom(len(box)),)), Model(box)
        for _ in range(12):
            before = held.lower
            name = chance.choice("abc")
            if name not in held.holders:
                assert held.enter(name) == before
                model.enter(name)
                net = changes(before, held.lower)
            else:
                act = chance.choice(["advance", "advance", "leave", "lose"])
                if act == "advance":
                    frontier = chance.choice(frontiers)
                    if not opened(frontier, model.box) <= model.may[name]:
                        with pytest.raises(NotCapable, match="cannot go back to"):
                            held.advance(name, frontier)
                        assert held.lower == before
                        continue
                    net = held.advance(name, frontier)
                    model.advance(name, frontier)
                elif act == "leave":
                    upper = chance.choice(antichains(box))
                    net = held.leave(name, upper)
                    model.leave(name, upper)
                else:
                    net = held.lose(name)
                    model.lose(name)
            assert net == changes(before, held.lower)
            assert goes_on(before, held.lower), "a frontier never goes back"
            assert opened(held.lower, model.box) == set(world(model.box)) - model.completed
            again = HeldFrontier(held.lower, held.holders, held.finished)
            assert (again.lower, again.holding_back()) == (held.lower, held.holding_back())


def test_who_holds_the_frontier_back() -> None:
    held = HeldFrontier(((0,),))
    for name in ("fast", "slow", "also slow"):
        held.enter(name)
    for name, at in (("fast", 90), ("slow", 3), ("also slow", 3)):
        held.advance(name, ((at,),))
    assert held.lower == ((3,),)
    assert held.holding_back() == {"slow": ((3,),), "also slow": ((3,),)}
    assert held.advance("slow", ((80,),)) == {}, "the same epoch is held by another one"
    assert held.lose("also slow") == {(3,): -1, (80,): 1}
    with pytest.raises(ValueError, match="slow is there already"):
        held.enter("slow")


def test_what_an_early_leaver_had_sent_completes_with_the_last_who_holds_it() -> None:
    for last in ("leave", "lose"):
        held = HeldFrontier(((0,),))
        held.enter("a")
        held.enter("b")
        assert held.leave("a", ((5,),)) == {}
        assert held.finished == ((5,),)
        net = held.leave("b", ((2,),)) if last == "leave" else held.lose("b")
        assert (net, held.lower, held.finished) == ({(0,): -1, (6,): 1}, ((6,),), ())


def test_the_last_that_is_lost_completes_nothing() -> None:
    held = HeldFrontier(((4,),))
    held.enter("a")
    assert (held.lose("a"), held.lower) == ({}, ((4,),))
    assert held.enter("b") == ((4,),)


def test_what_a_publisher_may_do() -> None:
    own = Capabilities("ingest-1", ((0, 4), (2, 2)))
    own.send((3, 2))
    own.send((0, 9))
    own.send((3, 1 + 1))
    assert own.upper == ((0, 9), (3, 2))
    with pytest.raises(
        NotCapable, match=r"ingest-1 holds \(0, 4\), \(2, 2\) and cannot send at epoch \(1, 3\)"
    ):
        own.send((1, 3))
    own.advance(((2, 4),))
    with pytest.raises(NotCapable, match="cannot go back to"):
        own.advance(((2, 3),))
    with pytest.raises(NotCapable, match="close it instead"):
        own.advance(())
    assert (own.frontier, own.upper) == (((2, 4),), ((0, 9), (3, 2)))
    with pytest.raises(NotCapable, match="holds 5 and cannot send at epoch 4"):
        Capabilities("p", ((5,),)).send((4,))


# -- from outside --------------------------------------------------------------------------------------------


def test_epochs_from_outside() -> None:
    assert checked_epoch(7, 1) == checked_epoch([7], 1) == checked_epoch((7,), 1) == (7,)
    assert checked_epoch([0, HIGHEST_EPOCH], 2) == (0, HIGHEST_EPOCH)
    assert checked_frontier([[3, 0], (0, 3)], 2) == ((0, 3), (3, 0))
    assert checked_frontier([5], 1) == ((5,),)


@pytest.mark.parametrize("value", [-1, 1 << 63, 1.0, True, "1", None, [True]])
def test_what_is_no_epoch(value: object) -> None:
    with pytest.raises(InvalidEpoch, match=r"^epoch .*: give integers from 0 to 9223372036854775807$"):
        checked_epoch(value, 1)


@pytest.mark.parametrize("value", [1, [1, 2, 3], ()])
def test_epochs_of_other_dimensions(value: object) -> None:
    with pytest.raises(
        InvalidEpoch,
        match=r"^epoch .* has \d dimensions?, and the space 2: give 2 integers, such as \(0, 0\)$",
    ):
        checked_epoch(value, 2)


@pytest.mark.parametrize("value", [[], 3, "3", None])
def test_what_is_no_frontier(value: object) -> None:
    with pytest.raises(InvalidEpoch, match="give a list of at least one epoch"):
        checked_frontier(value, 1)
    with pytest.raises(InvalidEpoch, match=r"at most another; give only \[\(3,\)\]"):
        checked_frontier([5, 3], 1)


@pytest.mark.parametrize("value", [0, 9, True, "2", None])
def test_what_is_no_number_of_dimensions(value: object) -> None:
    assert [checked_dimensions(n) for n in (1, 8)] == [1, 8]
    with pytest.raises(InvalidOption, match="give 1 to 8"):
        checked_dimensions(value)
