"""Groups that expire or are deleted, the acts that are kept, and the view that says why a stream waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamlease.leader.core.events import Describe, Stop
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import ACTS_KEPT
from streamlease.leader.core.view import of_leader
from streamlease.protocol.messages import CommandDone, Invalidate
from tests.leader.make import S0, S1, Rig, command, fix, led, only, part, sent
from tests.leader.operating import answer, in_state


def test_a_group_without_borrowers_expires_and_comes_back_with_its_next_one() -> None:
    rig = Rig()
    rig.streams(S0)
    rig.moved()
    assert answer(rig, "expire", at=77)[0]
    assert rig.leader.durable.expired_at == 77
    assert rig.moved().fields == {"@expired": 77}
    rig.join("b1")
    assert rig.leader.durable.expired_at is None
    assert rig.moved().gone == ["@expired"]


def test_a_group_without_borrowers_is_deleted_by_its_leader_who_ends() -> None:
    rig = Rig()
    effects = rig.hear(command("delete"))
    assert only(effects, CommandDone)
    assert effects[-1] == Stop("deleted by an operator")


def test_a_group_is_deleted_under_its_borrowers_only_if_that_is_forced() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    assert not answer(rig, "delete")[0]
    effects = rig.hear(command("delete", force=True, request="forced"), "op")
    assert only(effects, CommandDone)
    ended = sent(effects, Invalidate)
    assert {(one.borrower, one.reason) for one in ended} == {("b1", "deleted"), ("b2", "deleted")}
    assert effects[-1] == Stop("deleted by an operator")


def test_the_mirror_of_the_progress_says_since_when_a_group_is_paused() -> None:
    rig = led()
    rig.moved()
    assert answer(rig, "pause", at=77)[0]
    assert rig.moved().fields == {"@paused": 77}
    assert answer(rig, "resume", request="on")[0]
    assert rig.moved().gone == ["@paused"]


def test_the_acts_kept_are_bounded_and_survives_snapshots() -> None:
    rig = led()
    for number in range(ACTS_KEPT + 20):
        rig.hear(command("rebalance", request=f"r{number}"))
    state = GroupState.restore(rig.leader.durable.snapshot())
    assert [act.request for act in state.operated.acts] == [f"r{n}" for n in range(20, ACTS_KEPT + 20)]


def why(rig: Rig, stream: str) -> str:
    (found,) = [s for s in of_leader(rig.leader, rig.now)["streams"] if s["stream"] == stream]
    return str(found["why"])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: in_state("granting"), "its owner has not answered the grant since 0.2 s"),
        (lambda: in_state("granted"), ""),
        (lambda: in_state("revoking"), "asked back since 0.0 s, to balance; it is taken in 30.0 s"),
        (
            lambda: in_state("absent"),
            "its owner of the former term has not come back; it is given up in 10.0 s",
        ),
        (lambda: in_state("free"), "the group is paused"),
    ],
)
def test_the_view_says_why_a_stream_waits(make: Callable[[], Rig], text: str) -> None:
    assert why(make(), S0) == text


def test_the_view_says_why_in_more_cases() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    stream = next(s for s, owner in rig.owners.items() if owner == "b1")
    rig.hear(fix("s-n-b1", 1, part(stream, 1, 0, 10)))
    rig.now += 1500
    rig.hear(command("drain", borrower="b1"))
    assert why(rig, stream) == (
        "open cut since 1.5 s; asked back since 0.0 s, because its owner is drained; its query is waited for"
    )
    assert of_leader(rig.leader, rig.now)["borrowers"][0]["drained"] is True
    rig = Rig()
    rig.streams(S0)
    assert why(rig, S0) == "there is no borrower"
    rig.generations({S0: 5}, S1)
    assert why(rig, S1) == f"its former generation is not consumed: {S0}"
    rig.hear(command("pause", at=5, until=9))
    view = of_leader(rig.leader, rig.now)
    assert (view["state"], view["paused"]) == ("paused", {"at_ms": 5, "who": "me", "until_ms": 9})
    assert isinstance(rig.hear(command("describe"))[0], Describe)
