"""A Redis that lost commits and cuts, and a query of which only the checkpoint is left."""

from __future__ import annotations

import pytest

from tests.spark.durable import Durable
from tests.spark.test_query import newest
from tests.spark.world import Phase


@pytest.mark.parametrize(
    ("known", "phase"), [(False, "sunk"), (True, "logged")], ids=["it is lost", "the one before is open"]
)
@pytest.mark.slow
def test_the_cut_in_the_checkpoint_is_fixed_again_as_it_was(
    durable: Durable, phase: Phase, known: bool
) -> None:
    world = durable.world
    world.publish(3)
    query = world.query(embeddedLeader=True)
    query.run(lambda: world.all_committed, 60.0)
    world.publish(2)
    if known:
        query.run_until("logged")
    world.publish(4)
    before = durable.snapshot()
    if known:
        query.trigger()
    query.run_until(phase, 60.0)
    cut = newest(query.checkpoint)
    assert {part.stream for part in cut.ranges} == set(world.streams)
    query.kill()
    durable.lose(before)
    world.publish(2)
    again = world.query(query.checkpoint, embeddedLeader=True)
    if phase != "committed":
        assert set(again.session.ranges_of(cut)) == set(cut.ranges)
    again.run(lambda: world.all_committed and len(again.checkpoint.rows) >= world.total, 60.0)
    world.check(again.checkpoint)
