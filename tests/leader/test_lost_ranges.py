"""What is lost before it was consumed: counted once, reported in short, and never what was consumed."""

from __future__ import annotations

import itertools

from streamlease.borrower.book import MOST_HOLES, Held
from streamlease.leader.core.events import StreamsListed
from streamlease.leader.core.state.records import Committed, Truncated
from streamlease.protocol.messages import Progress, ProgressCommitted, UpdateProgress
from tests.leader.make import GROUP, S0, S1, Rig, led, progress, sent


def test_a_hole_is_counted_once_and_what_stands_before_it_is_not() -> None:
    rig = led([S0])
    lease_epoch = rig.lease_epoch(S0)

    def report(offset: int, *holes: tuple[int, int]) -> None:
        entry = Progress(stream=S0, lease_epoch=lease_epoch, offset=offset, holes=holes)
        rig.hear(UpdateProgress(group=GROUP, borrower="b1", progress=(entry,)), "box-b1")

    for _ in range(2):  # the acknowledgement was lost
        report(8, (3, 5))
    assert (rig.committed(S0), rig.leader.durable.streams[S0].truncated) == (8, 2)
    report(20, (3, 5), (10, 12), (15, 20))
    assert (rig.committed(S0), rig.leader.durable.streams[S0].truncated) == (20, 9)
    report(21, (20, 30))  # not passed yet
    assert (rig.committed(S0), rig.leader.durable.streams[S0].truncated) == (21, 9)
    assert rig.replayed().streams[S0].truncated == 9
    lease_epoch += 1  # somebody else's lease
    report(40, (21, 40))
    assert rig.committed(S0) == 21


def test_many_holes_are_reported_as_a_few_of_the_same_length() -> None:
    held = Held.begin(0, S0, 1, 0)
    held.holes = {start: start + 2 for start in range(0, 1000, 4)}
    held.committed = 1000
    reported = held.lost()
    assert len(reported) == MOST_HOLES
    assert sum(end - start for start, end in reported) == sum(
        e - s for s, e in held.holes.items() if e <= 998
    )
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(reported))
    assert "holes" not in Progress(stream=S0, lease_epoch=1, offset=1).model_dump_json()


# -- what retention removed, when the leader knows less than is committed


def listed(rig: Rig, floor: int, committed: int) -> tuple[int, int]:
    """How far the stream is, and how much of it is lost, once it is listed with these."""
    rig.journal.clear()
    rig.step(StreamsListed({S0: floor, S1: 0}, {S0: floor, S1: 0}, committed={S0: committed}))
    one = rig.leader.durable.streams[S0]
    return one.committed, one.truncated


def test_what_its_owner_had_committed_is_not_lost() -> None:
    rig = led()
    rig.hear(progress("b1", S0, 1, 3))
    assert listed(rig, floor=7, committed=7) == (7, 0)
    assert rig.journal == [Committed(offsets={S0: 7})]


def test_nor_is_what_was_committed_since() -> None:
    rig = led()
    assert listed(rig, floor=7, committed=9) == (9, 0)
    assert rig.journal == [Committed(offsets={S0: 9})]


def test_what_was_removed_behind_it_is_lost() -> None:
    rig = led()
    rig.hear(progress("b1", S0, 1, 3))
    assert listed(rig, floor=7, committed=5) == (7, 2)
    assert rig.journal == [Committed(offsets={S0: 5}), Truncated(floors={S0: 7})]


def test_a_listing_that_knows_less_than_the_leader_takes_nothing_back() -> None:
    rig = led()
    rig.hear(progress("b1", S0, 1, 9))
    assert listed(rig, floor=7, committed=5) == (9, 0)
    assert rig.journal == []


def test_the_word_of_its_owner_that_comes_later_is_still_answered() -> None:
    rig = led()
    listed(rig, floor=7, committed=7)
    effects = rig.hear(progress("b1", S0, 1, 7), "box-b1")
    (answer,) = sent(effects, ProgressCommitted)
    assert [(entry.stream, entry.offset) for entry in answer.progress] == [(S0, 7)]
    assert rig.committed(S0) == 7


def test_progress_of_a_stream_that_the_group_does_not_have_is_passed_over() -> None:
    """It was forgotten, and still stands beside the journal."""
    rig = led()
    rig.step(StreamsListed({S0: 0, S1: 0}, committed={"s.0.9": 4}))
    assert set(rig.leader.durable.streams) == {S0, S1}
