"""Many streams that come free at once make few plans, and a single one waits for none."""

from __future__ import annotations

from streamlease.leader.core.events import Received
from streamlease.leader.core.parts.plans import STREAMS_PER_PAUSE
from streamlease.protocol.messages import Grant
from tests.leader.make import Rig, finished, led, progress, sent, stepped


def revoked(streams: int) -> tuple[Rig, list[str]]:
    """b1 has given back what is to go to b2, and has only to say that it forgot those streams."""
    rig = led([f"s.0.{n}" for n in range(streams)], ["b1"])
    rig.join("b2")
    rig.settle()
    going = [stream for stream, lease in rig.leader.leases.items() if lease.state.value == "revoking"]
    for stream in going:
        rig.hear(progress("b1", stream, rig.lease_epoch(stream), 0, final=True), "box-b1")
    rig.effects.clear()
    return rig, going


def test_one_turn_makes_one_plan() -> None:
    rig, going = revoked(40)
    plans = rig.leader.plans.made
    events = [Received("box-b1", finished("b1", stream, rig.lease_epoch(stream))) for stream in going]
    effects = []
    for event in events[:-1]:
        effects += stepped(rig.leader, event, rig.now, more=True)
    assert sent(effects, Grant) == []
    effects += stepped(rig.leader, events[-1], rig.now)
    assert rig.leader.plans.made == plans + 1
    assert {grant.stream for grant in sent(effects, Grant)} == set(going)


def test_a_single_stream_of_a_small_group_waits_for_nothing() -> None:
    rig, going = revoked(2)
    (stream,) = going
    assert [grant.borrower for grant in sent(rig.hear(finished("b1", stream, 1), "box-b1"), Grant)] == ["b2"]


def test_a_burst_over_many_turns_makes_few_plans_in_a_large_group() -> None:
    rig, going = revoked(4 * STREAMS_PER_PAUSE)
    rig.now += 1000
    plans = rig.leader.plans.made
    for stream in going:
        rig.hear(finished("b1", stream, rig.lease_epoch(stream)), "box-b1")
    assert rig.leader.plans.made == plans + 1, "the first one, and the pause of 4 ms after it is not over"
    rig.tick(5)
    assert rig.leader.plans.made == plans + 2
    assert {stream for stream, owner in rig.owners.items() if owner == "b2"} == set(going)
