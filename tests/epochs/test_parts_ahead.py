"""What lies ahead of streams that come at any place, against a list of all parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.agent.epochs import parts_ahead
from streamlease.agent.epochs.parts_ahead import PartsAhead, StreamPart
from streamlease.borrower.book import Held
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.beginning import Before
from streamlease.streams.epochs.core.boundaries import Boundary, MovedPart

STREAMS = [StreamId("space", 0, shard) for shard in range(3)]


def bounds_of(sizes: list[list[int]]) -> list[Boundary]:
    """Boundary n has so many messages of epoch 2n and of epoch 2n + 1 in each stream, half of them each."""
    ends = dict.fromkeys(STREAMS, 0)
    found = []
    for number, row in enumerate(sizes, 1):
        moved = []
        for epoch in (2 * number, 2 * number + 1):
            for stream, size in zip(STREAMS, row, strict=True):
                rows = size // 2 if epoch % 2 else size - size // 2
                if rows:
                    moved.append(MovedPart((epoch,), "a", 1, stream, rows))
                    ends[stream] += rows
        changed = {stream: ends[stream] for stream in {one.stream for one in moved}}
        found.append(Boundary(number, number, 1, ((2 * number + 2,),), (), changed, tuple(moved)))
    return found


def ends_at(bounds: list[Boundary], number: int) -> dict[StreamId, int]:
    ends = dict.fromkeys(STREAMS, 0)
    for bound in bounds[:number]:
        ends |= bound.ends
    return ends


def before(bounds: list[Boundary], positions: dict[StreamId, int]) -> Before:
    """As ``begin_before`` finds it."""
    number = len(bounds)
    while number and any(ends_at(bounds, number)[stream] > at for stream, at in positions.items()):
        number -= 1
    return Before(number, bounds[number - 1] if number else None, ends_at(bounds, number))


class Played:
    """A consumer, and the truth."""

    def __init__(self, bounds: list[Boundary]) -> None:
        self.bounds = bounds
        self.recorded = 0
        self.ahead = PartsAhead(lambda epoch: True, lambda stream: None)
        self.held: dict[StreamId, Held] = {}

    def grant(self, stream: StreamId, position: int) -> None:
        self.held[stream] = held = Held.begin(0, str(stream), 1, position)
        self.ahead.follow(stream, held)

    def look(self, page: int) -> None:
        """One turn of who follows the boundaries."""
        there = self.bounds[: self.recorded]
        if self.ahead.unknown or self.ahead.newest is None:
            places = {stream: held.position for stream, held in self.ahead.unknown.items()}
            found = before(there, places)
            lower = found.bound.lower if found.bound is not None else ((0,),)
            self.ahead.found(found, lower, places)
        after = self.ahead.next_after()
        assert after is not None
        self.ahead.came(after, there[after : after + page])
        self.ahead.look_ready()

    def hand_out(self, stream: StreamId) -> StreamPart | None:
        """The next part of a stream, if there is one."""
        held = self.held[stream]
        part = self.ahead.part(stream, held.position)
        if part is not None:
            assert part.to <= (self.ahead.limit(stream) or 0)
            held.position = held.delivered = part.to
            self.ahead.handed_out(stream, part.to)
        return part

    def check_reached(self) -> None:
        reached = self.ahead.reached()
        if reached is not None:
            number, lower = reached
            assert lower == (self.bounds[number - 1].lower if number else ((0,),))
            for stream, held in self.held.items():
                assert held.delivered >= ends_at(self.bounds, number)[stream]


SIZES = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(SIZES, st.data())
@pytest.mark.slow
def test_each_stream_gets_its_parts_in_order_wherever_it_comes(sizes: list[list[int]], data: Any) -> None:
    bounds = bounds_of(sizes)
    expected: dict[StreamId, list[tuple[int, int, int]]] = {stream: [] for stream in STREAMS}
    at = dict.fromkeys(STREAMS, 0)
    for bound in bounds:
        for part in bound.moved:
            expected[part.stream].append((part.epoch[0], at[part.stream], at[part.stream] + part.rows))
            at[part.stream] += part.rows
    played = Played(bounds)
    got: dict[StreamId, list[tuple[int, int, int]]] = {stream: [] for stream in STREAMS}
    acts = st.sampled_from(["record", "look", "hand out", "grant", "lose", "lost"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts_ahead, "MOST_PARTS", data.draw(st.integers(2, 6)))
        for _ in range(data.draw(st.integers(5, 60))):
            act = data.draw(acts)
            stream = data.draw(st.sampled_from(STREAMS))
            if act == "record":
                played.recorded = min(len(bounds), played.recorded + 1)
            elif act == "look":
                played.look(data.draw(st.integers(1, 4)))
            elif act == "grant" and stream not in played.held:
                played.grant(stream, got[stream][-1][2] if got[stream] else 0)
            elif act == "lose" and stream in played.held:
                del played.held[stream]
                played.ahead.forget(stream)
            elif act == "lost":
                played.ahead.lost()
            elif act == "hand out" and stream in played.held and (one := played.hand_out(stream)):
                assert one.epoch is not None
                got[stream].append((one.epoch[0], one.first, one.to))
            played.check_reached()
        played.recorded = len(bounds)
        for stream in STREAMS:
            if stream not in played.held:
                played.grant(stream, got[stream][-1][2] if got[stream] else 0)
        for _ in range(4 * len(bounds) + 8):
            played.look(2)
            for stream in STREAMS:
                while (one := played.hand_out(stream)) is not None:
                    assert one.epoch is not None
                    got[stream].append((one.epoch[0], one.first, one.to))
            played.check_reached()
    assert got == expected
    reached = played.ahead.reached()
    assert reached is not None
    assert reached[0] == len(bounds)


def test_what_no_boundary_explains_is_a_part_of_no_known_epoch() -> None:
    bounds = bounds_of([[2, 0, 0], [2, 0, 0]])
    played = Played(bounds)
    stream = STREAMS[0]
    played.recorded = 2
    played.grant(stream, 1)
    places = {stream: 1}
    forgotten = Before(1, None, {stream: 2})
    played.ahead.found(forgotten, None, places)
    played.ahead.came(1, bounds[1:])
    played.ahead.look_ready()
    assert played.hand_out(stream) == StreamPart(1, None, 1, 2)
    assert played.hand_out(stream) == StreamPart(2, (4,), 2, 3)
    assert played.hand_out(stream) == StreamPart(2, (5,), 3, 4)
    played.grant(stream, 0)
    played.ahead.found(Before(0, None, {}), ((0,),), {stream: 0})
    played.ahead.came(0, bounds[1:])
    played.ahead.look_ready()
    assert played.hand_out(stream) == StreamPart(2, None, 0, 2)


def test_a_position_inside_a_part_is_its_rest() -> None:
    bounds = bounds_of([[4, 0, 0]])
    played = Played(bounds)
    played.recorded = 1
    played.grant(STREAMS[0], 1)
    played.look(5)
    part = played.hand_out(STREAMS[0])
    assert part == StreamPart(1, (2,), 0, 2)


def test_who_reads_again_from_before_what_was_handed_out_is_looked_for() -> None:
    bounds = bounds_of([[2, 0, 0], [2, 0, 0]])
    played = Played(bounds)
    played.recorded = 2
    stream = STREAMS[0]
    played.grant(stream, 0)
    played.look(5)
    for _ in range(3):
        played.hand_out(stream)
    held = played.held[stream]
    held.position = held.delivered = 1
    assert played.ahead.follow(stream, held)
    assert played.ahead.limit(stream) is None
    assert played.ahead.reached() is None
    played.look(5)
    assert played.hand_out(stream) == StreamPart(1, (3,), 1, 2)
