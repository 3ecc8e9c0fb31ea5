"""Holes in a stream: counted once, and reported in short."""

from __future__ import annotations

import itertools

from streamlease.borrower.book import MOST_HOLES, Held
from streamlease.protocol.messages import (
    Progress,
    UpdateProgress,
)
from tests.leader.make import (
    GROUP,
    S0,
    led,
)


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
