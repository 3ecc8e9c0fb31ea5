"""What is said again until it is answered, and who is given up after how long."""

from __future__ import annotations

from typing import Any

from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import (
    Grant,
    Invalidate,
    Revoke,
    Revoked,
)
from tests.leader.make import (
    CONFIG,
    S0,
    S1,
    Rig,
    command,
    finish,
    finished,
    fix,
    keep_alive,
    led,
    only,
    part,
    ping,
    progress,
    revoking,
    sent,
)


def test_each_message_of_a_lease_is_sent_again_until_it_is_answered() -> None:
    rig = Rig()
    rig.join("b1", name="z")
    rig.streams(S0, S1)
    for kind in (Grant, Revoke, Revoked):
        if kind is Revoke:
            rig.accept()
            rig.join("b2", name="a")
            rig.settle()
            rig.accept("b2")
        elif kind is Revoked:
            rig.hear(progress("b1", S1, 1, 3, final=True))
        for _ in range(2):
            assert sent(rig.tick(CONFIG.resend_interval - 1), kind) == []
            assert sent(rig.tick(1), kind) != [], kind
            rig.hear(ping("b1"))
            rig.hear(ping("b2"))
    rig.hear(finished("b1", S1, 1))
    rig.accept()
    assert sent(rig.tick(CONFIG.resend_interval), Revoked) == []
    assert rig.owners == {S0: "b1", S1: "b2"}


def test_a_repeated_grant_tells_the_progress_of_now() -> None:
    rig = Rig()
    rig.join("b1")
    rig.streams(S0, start=5)
    rig.settle()
    assert only(rig.tick(CONFIG.resend_interval), Grant).progress == 5


def test_a_borrower_that_lets_the_revocation_deadline_pass_is_evicted() -> None:
    rig = revoking()
    effects = keep_alive(rig, CONFIG.revocation_timeout, "b1", "b2")
    assert only(effects, Invalidate).reason == "revocation_timeout"
    assert "b1" not in rig.leader.peers.names
    rig.settle()
    assert rig.owners == {S0: "b2", S1: "b2"}


def test_progress_does_not_put_the_revocation_deadline_off() -> None:
    rig = revoking()
    offset = 0
    while "b1" in rig.leader.peers.names:
        assert rig.now <= CONFIG.revocation_timeout + 1000
        offset += 1
        rig.hear(progress("b1", S1, 1, offset))
        assert rig.lease_state(S1) == "revoking"
        keep_alive(rig, 1000, "b1", "b2")
    assert rig.committed(S1) == offset


def test_final_progress_does_not_put_the_revocation_deadline_off_for_ever() -> None:
    rig = revoking()
    rig.hear(progress("b1", S1, 1, 3, final=True))
    assert sent(keep_alive(rig, CONFIG.revocation_timeout, "b1", "b2"), Invalidate) != []


def in_a_cut(**more: Any) -> Rig:
    """b1 is asked for S1, which b2 shall have, and has both streams in an open cut."""
    rig = led(**more)
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 10), part(S1, 1, 0, 10)))
    rig.join("b2")
    assert only(rig.settle(), Revoke).stream == S1
    return rig


def test_a_living_query_keeps_its_open_cut_as_long_as_it_wants() -> None:
    rig = in_a_cut()
    assert sent(keep_alive(rig, 5 * CONFIG.revocation_timeout, "b1", "b2"), Invalidate) == []
    assert rig.owners == {S0: "b1", S1: "b1"}
    rig.hear(finish("s-n-b1", 1))
    assert sent(keep_alive(rig, CONFIG.revocation_timeout - 1000, "b1", "b2"), Invalidate) == []
    rig.give_back(S1, 10)
    rig.settle()
    assert rig.owners == {S0: "b1", S1: "b2"}
    assert rig.leader.durable.streams[S1].pinned_end is None


def test_once_the_cut_is_finished_the_revocation_deadline_counts() -> None:
    rig = in_a_cut()
    keep_alive(rig, 5 * CONFIG.revocation_timeout, "b1", "b2")
    rig.hear(finish("s-n-b1", 1))
    assert [one.reason for one in sent(keep_alive(rig, 31_000, "b1", "b2"), Invalidate)] == [
        "revocation_timeout"
    ]


def test_a_silent_query_loses_its_open_cut_although_it_is_asked_for_it() -> None:
    rig = in_a_cut()
    keep_alive(rig, 11_000, "b2")
    rig.settle()
    assert rig.owners == {S0: "b2", S1: "b2"}
    assert rig.leader.durable.streams[S1].pinned_end == 10


def test_a_cut_is_waited_for_by_the_next_leader_as_well() -> None:
    rig = in_a_cut().crash()
    for borrower in ("b1", "b2"):
        rig.join(borrower, attempt=2)
    rig.streams(S0, S1)
    rig.accept()
    rig.settle()
    assert rig.lease_state(S1) == "revoking"
    assert sent(keep_alive(rig, 5 * CONFIG.revocation_timeout, "b1", "b2"), Invalidate) == []
    assert rig.owners == {S0: "b1", S1: "b1"}


def test_an_operator_takes_a_stream_out_of_an_open_cut() -> None:
    rig = in_a_cut()
    keep_alive(rig, 5000, "b1", "b2")
    rig.hear(command("release", stream=S1))
    assert rig.owners == {S0: "b1", S1: "b2"}
    assert rig.leader.durable.streams[S1].pinned_end == 10


def test_a_group_may_say_how_long_an_open_cut_is_waited_for() -> None:
    rig = in_a_cut(options=GroupOptions(revocation_timeout_ms=60_000))
    assert sent(keep_alive(rig, 59_000, "b1", "b2"), Invalidate) == []
    assert [one.reason for one in sent(keep_alive(rig, 2000, "b1", "b2"), Invalidate)] == [
        "revocation_timeout"
    ]


def test_a_leaver_that_held_a_stream_for_long_may_finish_the_others() -> None:
    """It gives streams back one by one; the first one's lease is old, its revocation is not."""
    rig = led()
    keep_alive(rig, 2 * CONFIG.revocation_timeout, "b1")
    rig.hear(progress("b1", S0, 1, 3, final=True))
    assert sent(keep_alive(rig, 2000, "b1"), Invalidate) == []
    assert "b1" in rig.leader.peers.names


def test_a_silent_borrower_is_evicted_however_much_the_others_talk() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    lost = rig.owners[S0]
    other = ({"b1", "b2"} - {lost}).pop()
    for n in range(100):
        rig.hear(ping(other))
        rig.hear(progress(other, S1, 1, n))
        rig.hear(command("describe"))
        rig.tick(100)
    assert lost not in rig.leader.peers.names
    assert rig.now == 10_100
    rig.settle()
    assert rig.owners == {S0: other, S1: other}


def test_each_borrower_has_the_timeout_that_it_asked_for() -> None:
    rig = Rig()
    rig.join("b1", timeout=2000)
    rig.join("b2", timeout=5000)
    rig.tick(1999)
    assert set(rig.leader.peers.names) == {"b1", "b2"}
    rig.tick(1)
    assert set(rig.leader.peers.names) == {"b2"}
