"""Which streams a group has, by the definitions of its spaces and what there is of each stream."""

from __future__ import annotations

from streamlease.protocol.ids import StreamId
from streamlease.registry.stream_listing import StreamListing, listing_of, shape_of
from streamlease.streams.log.state import Extent, LogState
from streamlease.streams.spaces.spaces import Space

OLD = (StreamId("s", 0, 0), StreamId("s", 0, 1))
NEW = (StreamId("s", 1, 0),)


def space(ended: bool = False) -> Space:
    return Space.model_validate(
        {
            "name": "s",
            "topics": ["s/#"],
            "generations": [{"number": 0, "streams": 2}, {"number": 1, "streams": 1}],
            "ended": ended,
        }
    )


def state(first: int, next: int, sealed: bool = False) -> LogState:
    return LogState(Extent(first, next), sealed, 0)


def listed(states: dict[StreamId, LogState], ended: bool = False, **positions: int) -> StreamListing:
    one = space(ended)
    known = {f"s.{name[1]}.{name[3]}": offset for name, offset in positions.items()}
    return listing_of(known, [one], one.predecessors(), states)


def test_a_group_begins_where_it_was_declared_but_not_below_what_is_kept() -> None:
    found = listed(
        {OLD[0]: state(0, 9, True), OLD[1]: state(4, 7, True), NEW[0]: state(2, 3)}, g0s0=5, g0s1=1
    )
    assert found.starts == {"s.0.0": 5, "s.0.1": 4, "s.1.0": 2}
    assert found.floors == {"s.0.0": 0, "s.0.1": 4, "s.1.0": 2}


def test_sealed_streams_have_an_end_and_are_read_before_those_that_follow() -> None:
    found = listed({OLD[0]: state(0, 9, True), OLD[1]: state(0, 7), NEW[0]: state(0, 3)})
    assert found.ends == {"s.0.0": 9}
    assert found.predecessors == {"s.0.0": (), "s.0.1": (), "s.1.0": ("s.0.0", "s.0.1")}
    assert not found.complete, "a stream of an older generation is open still"


def test_a_stream_that_is_not_there_is_waited_for_by_none() -> None:
    found = listed({OLD[0]: state(0, 9, True), NEW[0]: state(0, 3)})
    assert found.predecessors == {"s.0.0": (), "s.1.0": ("s.0.0",)}
    assert found.complete


def test_a_space_that_is_ended_is_complete_once_its_newest_streams_are_sealed() -> None:
    states = {OLD[0]: state(0, 9, True), OLD[1]: state(0, 7, True), NEW[0]: state(0, 3)}
    assert listed(states).complete
    assert not listed(states, ended=True).complete
    assert listed({**states, NEW[0]: state(0, 3, True)}, ended=True).complete


def test_the_shape_changes_with_a_generation_and_with_the_end() -> None:
    assert shape_of([space()]) == {("s", 0, False), ("s", 1, False)}
    assert shape_of([space(ended=True)]) == {("s", 0, True), ("s", 1, True)}
