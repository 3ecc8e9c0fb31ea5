"""Stuck streams are released, progress is reset: new lines of progress under new lease epochs."""

from __future__ import annotations

import json

from streamlease.protocol.messages import (
    CommandDone,
    CutFixed,
    Grant,
    Invalidate,
    ProgressCommitted,
    Revoked,
)
from tests.leader.make import S0, S1, command, finish, finished, fix, goodbye, led, only, part, progress, sent
from tests.leader.mirrored import held, leased
from tests.leader.operating import alive, answer, successor


def test_a_stuck_stream_is_released_at_once_and_its_owner_is_told_and_fenced() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    stream = next(s for s, owner in rig.owners.items() if owner == "b1")
    other = next(s for s, owner in rig.owners.items() if owner == "b2")
    effects = rig.hear(command("release", stream=stream))
    assert (only(effects, Revoked).stream, only(effects, Revoked).lease_epoch) == (stream, 1)
    grant = only(effects, Grant)
    assert (grant.stream, grant.lease_epoch, grant.borrower) == (stream, 2, "b2")
    assert sent(effects, Invalidate) == []
    late = rig.hear(progress("b1", stream, 1, 99), "box-b1")
    assert sent(late, ProgressCommitted) == []
    assert only(late, Revoked).lease_epoch == 1, "whoever still believes it is told again"
    assert rig.committed(stream) == 0
    assert rig.owners == {stream: "b2", other: "b2"}
    rig.hear(finished("b1", stream, 1), "box-b1")
    assert rig.owners[stream] == "b2"


def test_a_released_stream_keeps_the_end_of_its_open_cut() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    stream = next(s for s, owner in rig.owners.items() if owner == "b1")
    rig.hear(fix("s-n-b1", 1, part(stream, 1, 0, 10)))
    grant = only(rig.hear(command("release", stream=stream)), Grant)
    assert (grant.progress, grant.pinned_end, grant.resumes) == (0, 10, None)
    rig.hear(finish("s-n-b1", 1))
    assert rig.committed(stream) == 0, "the cut of the former owner counts for nothing any more"


def test_the_only_borrower_gets_a_released_stream_anew() -> None:
    rig = led((S0,), ("b1",))
    grant = only(rig.hear(command("release", stream=S0)), Grant)
    assert (grant.borrower, grant.lease_epoch, grant.resumes) == ("b1", 2, None)


def test_a_reset_begins_a_new_line_of_progress_under_a_new_lease_epoch() -> None:
    rig = led((S0, S1), ("b1",))
    rig.hear(progress("b1", S0, 1, 50), "box-b1")
    ok, body = answer(rig, "reset", offsets={S0: 20})
    assert (ok, body) == (
        True,
        {"streams": 1, "moves": [{"stream": S0, "from": 50, "to": 20}], "wait_again": []},
    )
    grant = sent(rig.effects, Grant)[-1]
    assert (grant.stream, grant.progress, grant.resumes, grant.borrower) == (S0, 20, None, "b1")
    assert grant.lease_epoch > 2, "one epoch is the reset's own: nothing of before can resume or attest"
    assert sent(rig.hear(progress("b1", S0, 1, 70), "box-b1"), ProgressCommitted) == []
    assert rig.committed(S0) == 20
    rig.hear(progress("b1", S0, rig.lease_epoch(S0), 21), "box-b1")
    assert rig.committed(S0) == 21
    moved = held(rig.moved())[S0]
    assert moved == leased(21, grant.lease_epoch, reset_by=grant.lease_epoch - 1)
    kept = json.loads(rig.replayed().operated.acts[-1].body)
    assert kept["moves"] == [{"stream": S0, "from": 50, "to": 20}]


def test_a_reset_takes_its_streams_out_of_open_cuts_and_leaves_the_others() -> None:
    rig = led((S0, S1), ("b1",))
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 10), part(S1, 1, 0, 20)))
    rig.hear(command("reset", offsets={S0: 5}))
    assert rig.leader.durable.streams[S0].pinned_end is None
    rig.hear(finish("s-n-b1", 1))
    assert (rig.committed(S0), rig.committed(S1)) == (5, 20)
    late = only(rig.hear(fix("s-n-b1", 2, part(S0, 1, 5, 9))), CutFixed)
    assert late.ranges == ()
    rig.accept()
    new = part(S0, rig.lease_epoch(S0), 5, 9)
    assert only(rig.hear(fix("s-n-b1", 2, new)), CutFixed).ranges is None  # just as asked for


def test_a_reset_of_a_consumed_generation_lets_the_next_one_wait_again() -> None:
    rig = led((S0,), ("b1",))
    rig.generations({S0: 10}, S1)
    rig.hear(progress("b1", S0, 1, 10), "box-b1")
    rig.give_back(S0, 10)
    alive(rig, 1000, "b1")
    assert (rig.owners, rig.leader.durable.streams[S0].finished) == ({S1: "b1"}, True)
    rig.hear(progress("b1", S1, rig.lease_epoch(S1), 7), "box-b1")
    ok, body = answer(rig, "reset", offsets={S0: 4})
    assert (ok, body["wait_again"]) == (True, [S1])
    assert S1 in {message.stream for message in sent(rig.effects, Revoked)}
    alive(rig, 1000, "b1")
    assert rig.owners == {S0: "b1"}
    rig.hear(progress("b1", S0, rig.lease_epoch(S0), 10), "box-b1")
    alive(rig, 1000, "b1")
    assert (rig.owners, rig.committed(S1)) == ({S1: "b1"}, 7), "it goes on where it was"


def test_a_reset_to_the_end_finishes_a_sealed_stream() -> None:
    rig = led((S0,), ("b1",))
    rig.generations({S0: 10}, S1)
    rig.hear(command("reset", offsets={S0: 10}))
    alive(rig, 1000, "b1")
    assert rig.owners == {S1: "b1"}


def test_a_reset_waits_until_it_is_known_which_streams_follow_which() -> None:
    rig = successor(led((S0,), ("b1",)))
    assert rig.hear(command("reset", offsets={S0: 3})) == []
    rig.streams(S0)
    assert only(rig.hear(command("reset", offsets={S0: 3})), CommandDone)


def test_a_reset_while_nobody_is_there_is_where_the_next_one_begins() -> None:
    rig = led((S0,), ("b1",))
    rig.hear(goodbye("b1"))
    rig.hear(command("reset", offsets={S0: 33}))
    assert only(rig.join("b2"), Grant).progress == 33
