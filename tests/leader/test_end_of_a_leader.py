"""How a leader ends, what operators may have it do, and what it refuses to begin with."""

from __future__ import annotations

import pytest

from streamlease.leader.core.events import StepDownWanted, Stop
from streamlease.leader.core.machine import LeaderConfig
from streamlease.leader.core.state.operated import Acted
from streamlease.leader.core.state.outcomes import SteppedDown
from streamlease.leader.core.state.records import HandedOver
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.messages import (
    CommandDone,
    Invalidate,
    Revoke,
)
from tests.leader.make import (
    CONFIG,
    S0,
    S1,
    Rig,
    command,
    finished,
    goodbye,
    led,
    only,
    progress,
    revoking,
    sent,
    wanted,
)


def test_an_idle_leader_stops_and_does_nothing_after() -> None:
    rig = led()
    rig.hear(goodbye("b1"))
    rig.tick(1)
    assert [e for e in rig.tick(CONFIG.idle_timeout - 1) if isinstance(e, Stop)] == []
    assert rig.tick(1) == [Stop("idle")]
    assert rig.hear(wanted("b9"), "box") == []
    assert rig.tick(CONFIG.idle_timeout) == []


def test_a_leader_that_nobody_connects_to_stops_too() -> None:
    rig = Rig()
    assert rig.tick(CONFIG.idle_timeout) == [Stop("idle")]


def test_who_connects_just_before_the_idle_stop_keeps_the_leader() -> None:
    rig = Rig()
    rig.now = CONFIG.idle_timeout
    rig.join("b1")
    assert not any(isinstance(effect, Stop) for effect in rig.tick())


def test_stepping_down_invalidates_all_and_stops_last() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    effects = rig.step(StepDownWanted())
    assert {(m.borrower, m.reason) for m in sent(effects, Invalidate)} == {
        ("b1", "stepped_down"),
        ("b2", "stepped_down"),
    }
    assert effects[-1] == Stop("drained")
    assert rig.crash().leader.durable.streams[S0].owner is not None  # they come back to what they had


def test_an_operator_s_step_down_is_recorded_answered_and_done() -> None:
    rig = led()
    effects = rig.hear(command("step_down", who="ann"))
    assert only(effects, CommandDone)
    assert effects[-1] == Stop("stepped down by an operator")
    record = rig.journal[-1]
    assert isinstance(record, Acted)
    assert (record.outcome, record.who) == (SteppedDown(host="host", term=1), "ann")


@pytest.mark.parametrize(
    ("act", "dry_run", "effect"),
    [("describe", False, "Describe"), ("rebalance", True, "Send"), ("step_down", True, "Send")],
)
def test_looking_and_trying_change_nothing(act: str, dry_run: bool, effect: str) -> None:
    rig = led()
    rig.join("b2")
    before = rig.frozen()
    (done,) = rig.hear(command(act, dry_run=dry_run), "operator")
    assert (type(done).__name__, done.mailbox) == (effect, "operator")  # type: ignore[union-attr]
    assert rig.frozen() == before
    assert sent(rig.settle(), Revoke) != []  # the plan was there to be made


def test_an_operator_s_rebalance_does_not_wait_for_the_delay() -> None:
    rig = led()
    rig.join("b2")
    assert len(sent(rig.hear(command("rebalance")), Revoke)) == 1


def test_a_hand_over_is_measured_from_the_revoke_to_the_first_word() -> None:
    rig = revoking()
    rig.now += 40
    rig.hear(progress("b1", S1, 1, 3, final=True))
    rig.hear(finished("b1", S1, 1))
    rig.now += 2
    rig.accept("b2")
    assert rig.journal[-1] == HandedOver(stream=S1, milliseconds=42, clean=True)
    assert rig.leader.durable.longest_hand_over_ms == 42
    assert rig.leader.durable.longest_take_over_ms == 0


@pytest.mark.parametrize("name", ["resend_interval", "rebalance_delay", "revocation_timeout", "idle_timeout"])
@pytest.mark.parametrize("value", [0, -5])
def test_a_time_that_is_not_positive_is_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidOption, match=f"{name} is {value} ms: it must be above 0"):
        LeaderConfig(**{name: value})  # type: ignore[arg-type]


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidOption, match="strategy 'best' does not exist: use one of count"):
        LeaderConfig(strategy="best")
