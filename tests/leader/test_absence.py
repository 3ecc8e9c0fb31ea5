"""How long a leader waits: for owners of the former term, and for streams that are asked back."""

from __future__ import annotations

import pytest

from streamlease.leader.core.lease import LeaseState
from streamlease.leader.core.parts.peers import LEAST_RETURN, RETURN_TIMEOUT
from streamlease.protocol.errors import InvalidInput
from streamlease.protocol.group_options import GroupOptions, check_options
from streamlease.protocol.messages import Invalidate
from tests.leader.make import S0, S1, Rig, led, ping, sent


@pytest.mark.parametrize(("timeout", "waited"), [(7000, 7000), (2000, RETURN_TIMEOUT)])
def test_a_new_leader_waits_as_long_as_each_former_owner_had(timeout: int, waited: int) -> None:
    """But never shorter than a live one takes to miss its leader and to find the next."""
    rig = Rig()
    rig.join("b1", timeout=timeout)
    rig.join("b2", timeout=30_000)
    rig.streams(S0, S1)
    rig.settle()
    rig.accept()
    short = next(stream for stream, owner in rig.owners.items() if owner == "b1")
    rig = rig.crash()
    rig.join("b3")
    rig.tick(waited - 1)
    assert rig.lease_state(short) == "granted"
    rig.hear(ping("b3", 2), "box-b3")
    rig.tick(1)
    assert rig.lease_state(short) == "free"
    rig.settle()
    assert rig.owners[short] == "b3"
    other = S1 if short == S0 else S0
    assert rig.owners[other] == "", "the one with 30 s may still come back"


@pytest.mark.parametrize(
    ("deaf", "waited"),
    [(4000, 6000), (9000, LEAST_RETURN), (9999, LEAST_RETURN), (10_000, RETURN_TIMEOUT)],
)
def test_the_time_without_a_leader_counts_as_silence(deaf: int, waited: int) -> None:
    """The dead have been silent for longer than the new leader lives; but the living get time to find it."""
    rig = led((S0,), ("b1",)).crash(deaf)
    rig.tick(waited - 1)
    assert rig.lease_state(S0) == "granted"
    rig.tick(1)
    assert rig.lease_state(S0) == "free"


@pytest.mark.parametrize(
    ("deaf", "waited"),
    [
        (0, RETURN_TIMEOUT),
        (1000, RETURN_TIMEOUT - 1000),
        (2500, LEAST_RETURN),
        (2999, LEAST_RETURN),
        (3000, RETURN_TIMEOUT),
    ],
)
def test_what_a_short_session_timeout_leaves_the_living(deaf: int, waited: int) -> None:
    """They miss the former leader and look for the next one while there is none, too."""
    rig = Rig()
    rig.join("b1", timeout=3000)
    rig.streams(S0)
    rig.settle()
    rig.accept()
    rig = rig.crash(deaf)
    rig.tick(waited - 1)
    assert rig.lease_state(S0) == "granted"
    rig.tick(1)
    assert rig.lease_state(S0) == "free"


def test_who_is_about_to_have_been_silent_for_too_long_is_looked_at_often() -> None:
    """Until it is heard again, or is given up."""
    rig = Rig()
    rig.join("b1", timeout=6000)
    rig.streams(S0)
    rig.settle()
    rig.accept()
    rig.hear(ping("b1"), "box-b1")
    rig.tick(5000 - 1)
    assert not rig.leader.moving
    rig.tick(1)
    assert rig.leader.peers.missed and rig.leader.moving
    rig.hear(ping("b1"), "box-b1")
    rig.tick(1)
    assert not rig.leader.moving
    rig.tick(5999)
    assert not rig.leader.peers.missed, "nobody is left"


def test_who_came_back_has_its_whole_time_again() -> None:
    rig = led((S0,), ("b1",)).crash(9000)
    rig.join("b1b", name="n-b1", session="s-n-b1", attempt=2)
    rig.accept()
    rig.tick(9999)
    assert rig.lease_state(S0) == "granted"
    rig.tick(1)
    assert rig.lease_state(S0) == "free"


@pytest.mark.parametrize(
    ("options", "milliseconds"), [(GroupOptions(), 30_000), (GroupOptions(revocation_timeout_ms=3000), 3000)]
)
def test_a_group_says_how_long_streams_may_take_to_come_back(
    options: GroupOptions, milliseconds: int
) -> None:
    rig = led([S0, S1], ["b1"], options=options)
    rig.join("b2")
    rig.settle()
    (going,) = [s for s, lease in rig.leader.leases.items() if lease.state is LeaseState.REVOKING]
    rig.effects.clear()
    for _ in range(milliseconds // 500 - 1):
        rig.hear(ping("b1"), "box-b1")
        rig.hear(ping("b2"), "box-b2")
        rig.tick(500)
    assert sent(rig.effects, Invalidate) == []
    rig.hear(ping("b2"), "box-b2")
    rig.hear(ping("b1"), "box-b1")
    rig.tick(500)
    assert [message.reason for message in sent(rig.effects, Invalidate)] == ["revocation_timeout"]
    rig.settle()
    assert rig.owners[going] == "b2"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (GroupOptions(max_failures=0), "max_failures is 0: give 1 to 100"),
        (GroupOptions(revocation_timeout_ms=99), "the revocation timeout is 99 ms: give 100 to"),
        (GroupOptions(dead_letters="a/#"), "contains a wildcard"),
        (GroupOptions(strategy="Best!"), "is not a name"),
    ],
)
def test_options_out_of_range_are_refused(options: GroupOptions, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        check_options(options)
