"""A task reads its pieces whole, in order and once; everything else is refused and changes nothing."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.borrower.reading import (
    READING_TRANSITIONS,
    Pieces,
    Reading,
    ReadingEvent,
    ReadingState,
    SlotWork,
)
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.errors import HistoryTruncated, StreamleaseError

S, E = ReadingState, ReadingEvent
A, B = "s.0.0", "s.0.1"


def work(*parts: CutRange) -> SlotWork:
    return SlotWork("g/t", "q-1", "agent-1", 7, 0, Pieces(Ranges.of(parts), Ranges.of(parts)))


def reading() -> Reading:
    return Reading(work(CutRange(A, 1, 10, 20), CutRange(B, 3, 0, 5)))


def in_state(state: ReadingState) -> Reading:
    """A reading of two pieces (none of them, if it is to finish at once)."""
    if state is S.WAITING:
        return reading()
    one = reading()
    one.read(A, 10, 19)
    one.read(B, 0, 4)
    if state is S.DONE:
        one.finish()
    return one


def frozen(one: Reading) -> dict[str, object]:
    """All that a reading is."""
    return copy.deepcopy(vars(one))


# For each event, a call that brings it about and is right in itself, given the state.
CAUSES: dict[tuple[ReadingState, ReadingEvent], tuple[Reading, Callable[[Reading], None]]] = {
    (S.WAITING, E.READ): (reading(), lambda one: one.read(A, 10, 12)),
    (S.WAITING, E.FINISH): (Reading(work()), Reading.finish),
    (S.READING, E.READ): (Reading(work(CutRange(A, 1, 10, 20))), lambda one: one.read(A, 13, 19)),
    (S.READING, E.FINISH): (in_state(S.READING), Reading.finish),
    (S.DONE, E.READ): (in_state(S.DONE), lambda one: one.read(A, 10, 12)),
    (S.DONE, E.FINISH): (in_state(S.DONE), Reading.finish),
}
CAUSES[S.READING, E.READ][0].read(A, 10, 12)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)), ids=lambda value: value.value)
def test_every_event_in_every_state(state: ReadingState, event: ReadingEvent) -> None:
    begun, cause = CAUSES[state, event]
    one = copy.deepcopy(begun)
    assert one.state is state
    before = frozen(one)
    target = READING_TRANSITIONS.get((state, event))
    if target is None:
        with pytest.raises(StreamleaseError):
            cause(one)
        assert frozen(one) == before
    else:
        cause(one)
        assert one.state is target


def test_the_table_only_goes_forward() -> None:
    order = list(S)
    assert all(order.index(a) <= order.index(b) for (a, _), b in READING_TRANSITIONS.items())
    assert all(a is not S.DONE for a, _ in READING_TRANSITIONS)


@pytest.mark.parametrize(
    ("stream", "first", "last"),
    [
        ("s.0.2", 0, 1),
        (A, 9, 12),
        (A, 10, 20),
        (A, 20, 25),
        (B, 0, 5),
    ],
    ids=["another stream", "before", "past the end", "behind the end", "one too many"],
)
def test_what_is_not_the_work_is_refused(stream: str, first: int, last: int) -> None:
    one = reading()
    before = frozen(one)
    with pytest.raises(StreamleaseError) as refused:
        one.read(stream, first, last)
    assert len(str(refused.value).splitlines()) == 1
    assert frozen(one) == before


def test_a_gap_is_history_truncated() -> None:
    one = reading()
    one.read(A, 10, 12)
    before = frozen(one)
    with pytest.raises(HistoryTruncated) as refused:
        one.read(A, 14, 15)
    assert (refused.value.stream, refused.value.asked, refused.value.oldest) == (A, 13, 14)
    assert frozen(one) == before


def test_the_same_offsets_are_not_read_twice() -> None:
    one = reading()
    one.read(A, 10, 12)
    with pytest.raises(StreamleaseError, match="expected 13"):
        one.read(A, 10, 12)
    assert one.messages == 3


@pytest.mark.parametrize("read", [[], [(A, 10, 18), (B, 0, 4)], [(A, 10, 19)]], ids=["none", "short", "one"])
def test_an_unfinished_reading_does_not_finish(read: list[tuple[str, int, int]]) -> None:
    one = reading()
    for stream, first, last in read:
        one.read(stream, first, last)
    state = one.state
    with pytest.raises(StreamleaseError, match=r"cut 7 ends in stream s\.0\.") as refused:
        one.finish()
    assert len(str(refused.value).splitlines()) == 1
    assert one.state is state


@given(st.lists(st.integers(1, 50), max_size=10), st.lists(st.integers(1, 50), max_size=10), st.randoms())
def test_batches_of_any_size_and_streams_in_any_turn_add_up(
    first: list[int], second: list[int], random: Random
) -> None:
    one = Reading(work(CutRange(A, 1, 3, 3 + sum(first)), CutRange(B, 1, 0, sum(second))))
    turns = [(A, size) for size in first] + [(B, size) for size in second]
    random.shuffle(turns)
    position = {A: 3, B: 0}
    for stream, size in turns:
        one.read(stream, position[stream], position[stream] + size - 1)
        position[stream] += size
    one.finish()
    assert one.messages == sum(first) + sum(second)
    assert one.state is S.DONE
