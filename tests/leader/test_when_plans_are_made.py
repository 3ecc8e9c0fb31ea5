"""When plans are made, for whom, and of which streams."""

from __future__ import annotations

from streamlease.leader.core.events import Received, StreamsListed
from streamlease.leader.core.state.records import StreamsForgotten
from streamlease.protocol.messages import (
    Grant,
    Invalidate,
    Revoke,
)
from tests.leader.make import CONFIG, S0, S1, S2, S3, Rig, goodbye, keep_alive, led, only, ping, sent, wanted


def test_the_first_grants_wait_for_nothing() -> None:
    """Whichever comes last, the streams or the borrower."""
    for early, late in (("join", "streams"), ("streams", "join")):
        rig = Rig()
        happen = {"join": lambda rig=rig: rig.join("b1"), "streams": lambda rig=rig: rig.streams(S0, S1)}
        assert sent(happen[early](), Grant) == []
        assert {grant.stream for grant in sent(happen[late](), Grant)} == {S0, S1}
        assert rig.now == 0


def test_nor_do_those_behind_the_last_goodbye() -> None:
    rig = led((S0, S1))
    rig.hear(goodbye("b1"))
    assert {grant.stream for grant in sent(rig.join("b2"), Grant)} == {S0, S1}


def test_those_who_come_in_one_turn_share_the_first_plan() -> None:
    rig = Rig()
    rig.streams(S0, S1, S2, S3)
    for n in range(4):
        rig.leader.step(Received(f"box-{n}", wanted(f"b{n}")), rig.now, more=n < 3)
    assert len(set(rig.owners.values())) == 4
    assert rig.leader.plans.made == 2  # one without borrowers, when the streams were listed


def test_joins_within_the_delay_make_one_plan_and_do_not_put_it_off() -> None:
    rig = Rig()
    rig.streams(S0, S1, S2, S3)
    rig.join("b0")
    rig.accept()
    for n in range(1, 4):
        rig.join(f"b{n}")
        assert sent(rig.tick(CONFIG.rebalance_delay // 3 - 1), Revoke) == []
    assert len(sent(rig.tick(4), Revoke)) == 3
    assert rig.leader.plans.rebalances == 2


def test_a_plan_that_had_to_wait_for_a_grant_is_made_after_it() -> None:
    """b2 joins while b1 has not yet acknowledged: nothing can be taken from b1 then, but soon."""
    rig = Rig()
    rig.join("b1")
    rig.streams(S0, S1, S2, S3)
    rig.settle()
    rig.join("b2")
    assert sent(rig.settle(), Revoke) == []
    rig.accept()
    assert len(sent(rig.settle(), Revoke)) == 2


def test_streams_of_those_that_may_come_back_are_left_alone_until_their_time_is_up() -> None:
    rig = led((S0, S1)).crash()
    rig.join("b2")
    assert sent(rig.settle(), Grant) == []
    keep_alive(rig, 10_000, "b2")
    rig.settle()
    assert rig.owners == {S0: "b2", S1: "b2"}


def test_a_new_stream_is_given_to_the_one_that_has_the_fewest() -> None:
    rig = led((S0, S1, S2), ("b1", "b2"))
    poorer = min(("b1", "b2"), key=list(rig.owners.values()).count)
    rig.streams(S0, S1, S2, S3, start=7)
    grant = only(rig.settle(), Grant)
    assert (grant.borrower, grant.stream, grant.progress) == (poorer, S3, 7)


def test_an_unchanged_list_of_streams_changes_nothing() -> None:
    rig = led()
    before = rig.frozen()
    assert rig.streams(S0, S1) == []
    assert rig.streams(S0, S1, start=99) == []
    assert rig.frozen() == before


def test_streams_that_are_gone_are_forgotten() -> None:
    rig = led()
    effects = rig.step(StreamsListed({S1: 0}))
    assert rig.journal[-1] == StreamsForgotten(streams=(S0,))
    # The borrower must not go on with what is gone: it begins anew, and its other streams wait for it.
    assert only(effects, Invalidate).borrower == "b1"
    assert only(rig.hear(ping("b1")), Invalidate).reason == "unknown"
    rig.join("b1b", name="n-b1", session="s-n-b1", attempt=2)
    assert rig.owners == {S1: "b1b"}
    assert rig.replayed() == rig.leader.durable
