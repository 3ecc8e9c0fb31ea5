"""Who is accepted as a borrower, gets streams back, or is refused."""

from __future__ import annotations

import pytest

from streamlease.leader.core.events import Send
from streamlease.protocol.messages import (
    Grant,
    Invalidate,
    LeaderConnectResponse,
    PingResponse,
)
from tests.leader.make import (
    S0,
    S1,
    Rig,
    finished,
    goodbye,
    led,
    only,
    ping,
    progress,
    sent,
    wanted,
)


def test_a_late_copy_of_leader_wanted_is_answered_again_and_changes_nothing() -> None:
    rig = led()
    before = rig.frozen()
    effects = rig.hear(wanted("b1"), "box-b1")
    assert [type(effect) for effect in effects] == [Send]
    assert only(effects, LeaderConnectResponse).borrower == "b1"
    assert rig.frozen() == before


def test_asking_again_is_a_sign_of_life() -> None:
    rig = Rig()
    rig.join("b1")
    rig.now = 9000
    rig.join("b1")
    rig.tick(9999)
    assert "b1" in rig.leader.peers.names
    rig.tick(1)
    assert "b1" not in rig.leader.peers.names


def test_a_later_arrival_under_the_name_takes_the_streams_over_at_once() -> None:
    rig = led()
    effects = rig.hear(wanted("b2", name="n-b1", session="other", arrival=2), "box-b2")
    assert only(effects, Invalidate).model_dump()["reason"] == "replaced"
    assert only(effects, Invalidate).borrower == "b1"
    assert {(g.stream, g.lease_epoch, g.resumes) for g in sent(effects, Grant)} == {
        (S0, 2, None),
        (S1, 2, None),
    }
    assert rig.owners == {S0: "b2", S1: "b2"}


def test_the_same_session_resumes_its_leases() -> None:
    rig = led()
    effects = rig.hear(wanted("b2", name="n-b1", attempt=2), "box-b2")
    assert {(g.stream, g.lease_epoch, g.resumes) for g in sent(effects, Grant)} == {(S0, 2, 1), (S1, 2, 1)}


def test_a_session_that_missed_a_grant_learns_since_when_it_held_the_stream_without_a_break() -> None:
    rig = led()
    rig.hear(wanted("b2", name="n-b1", attempt=2), "box-b2")  # its grants are lost
    effects = rig.hear(wanted("b3", name="n-b1", attempt=3), "box-b3")
    assert {(g.stream, g.lease_epoch, g.resumes) for g in sent(effects, Grant)} == {(S0, 3, 1), (S1, 3, 1)}


def test_a_session_that_gave_a_stream_back_holds_it_anew() -> None:
    rig = led([S0])
    rig.hear(goodbye("b1", (S0, 1, 5)))
    effects = [*rig.hear(wanted("b2", name="n-b1", attempt=2), "box-b2"), *rig.tick(200)]
    assert [(g.lease_epoch, g.progress, g.resumes) for g in sent(effects, Grant)] == [(2, 5, None)]


@pytest.mark.parametrize(
    ("arrival", "attempt", "reason"),
    [(1, 9, "replaced"), (2, 1, "stale"), (2, 2, "stale")],
    ids=["earlier arrival", "earlier attempt", "another borrower in the same attempt"],
)
def test_an_older_borrower_of_the_name_is_refused(arrival: int, attempt: int, reason: str) -> None:
    rig = Rig()
    rig.hear(wanted("b2", name="n", arrival=2, attempt=2), "box-b2")
    before = rig.frozen()
    effects = rig.hear(wanted("b1", name="n", arrival=arrival, attempt=attempt), "box-b1")
    assert only(effects, Invalidate).reason == reason
    assert [e.mailbox for e in effects if isinstance(e, Send)] == ["box-b1"]
    assert rig.frozen() == before


def test_a_late_request_of_an_evicted_borrower_does_not_bring_it_back() -> None:
    rig = led()
    rig.tick(10_000)
    assert dict(rig.leader.peers) == {}
    assert only(rig.hear(wanted("b1"), "box-b1"), Invalidate).reason == "stale"
    assert dict(rig.leader.peers) == {}


@pytest.mark.parametrize(
    "message",
    [ping("zombie"), progress("zombie", S0, 1, 99), finished("zombie", S0, 1)],
    ids=["ping", "progress", "revoke finished"],
)
def test_an_unknown_borrower_is_invalidated_not_answered(message: object) -> None:
    rig = led()
    before = rig.frozen()
    effects = rig.hear(message, "its box")  # type: ignore[arg-type]
    assert only(effects, Invalidate).reason == "unknown"
    assert effects == [Send("its box", only(effects, Invalidate))]
    assert rig.frozen() == before


def test_a_known_borrower_s_ping_is_answered() -> None:
    assert only(led().hear(ping("b1")), PingResponse).term == 1
