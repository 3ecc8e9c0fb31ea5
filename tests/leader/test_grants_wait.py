"""A grant waits until its lease stands where consumers commit: then it is known how far the stream came.

The machine alone, between `Persist` and what the runner says of the reply to it (`LeasesWritten`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamlease.leader.core import in_turns
from streamlease.leader.core.events import (
    Effect,
    Event,
    LeasesWritten,
    Persist,
    Received,
    Recovered,
    Send,
    StreamsListed,
    Tick,
)
from streamlease.leader.core.machine import Leader
from streamlease.leader.core.parts.telling import MANY
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import Committed, Leased, Record
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import Grant, Grants, LeaderConnectResponse, LeaderWanted, ToLeader
from tests.leader.make import (
    CONFIG,
    GROUP,
    S0,
    S1,
    Rig,
    command,
    failed,
    fix,
    goodbye,
    led,
    part,
    ping,
    progress,
    sent,
    wanted,
)

AGAIN = CONFIG.resend_interval


class Unwritten:
    """A leader that began to lease S0 and S1, both at 5, to b1; the reply to that write is still out."""

    def __init__(self) -> None:
        self.leader = Leader(GROUP, "host", 1, CONFIG, GroupState())
        self.now = 0
        self.step(Recovered())
        self.hear(wanted("b1"))
        self.begun = self.step(StreamsListed({S0: 5, S1: 5}))

    def step(self, event: Event) -> list[Effect]:
        return self.leader.step(event, self.now)

    def hear(self, message: ToLeader, sender: str = "box") -> list[Effect]:
        return self.step(Received(sender, message))

    def later(self, milliseconds: int) -> list[Effect]:
        self.now += milliseconds
        return self.step(Tick())


def records(effects: list[Effect], kind: type[Record]) -> list[Record]:
    return [
        record
        for effect in effects
        if isinstance(effect, Persist)
        for record in effect.records
        if isinstance(record, kind)
    ]


def grants(effects: list[Effect]) -> dict[str, tuple[str, int, int]]:
    """Stream -> to whom, under which lease epoch, and from where."""
    found = sent(effects, Grant)
    assert len({one.stream for one in found}) == len(found)
    return {one.stream: (one.borrower, one.lease_epoch, one.progress) for one in found}


# -- many at once

ENOUGH = [f"s.0.{number}" for number in range(MANY)]


def offered(effects: list[Effect]) -> dict[str, tuple[str, int, int]]:
    """The same as `grants`, of those that came in one message."""
    return {
        offer.stream: (message.borrower, offer.lease_epoch, offer.progress)
        for message in sent(effects, Grants)
        for offer in message.offers()
    }


def test_many_grants_for_one_borrower_are_one_message() -> None:
    rig = led([], [])
    rig.streams(*ENOUGH, start=3)
    effects = rig.join("b1")
    assert len(sent(effects, Grants)) == 1
    assert offered(effects) == dict.fromkeys(ENOUGH, ("b1", 1, 3))
    assert grants(effects) == {}


def test_a_few_are_granted_one_by_one() -> None:
    rig = led([], [])
    rig.streams(*ENOUGH[1:])
    effects = rig.join("b1")
    assert (len(grants(effects)), offered(effects)) == (len(ENOUGH) - 1, {})


def test_what_is_not_answered_is_granted_again_one_by_one() -> None:
    rig = led([], [])
    rig.streams(*ENOUGH)
    rig.join("b1")
    for stream in ENOUGH[1:]:
        rig.hear(progress("b1", stream, 1, 0), "box-b1")
    assert grants(rig.tick(AGAIN)) == {ENOUGH[0]: ("b1", 1, 0)}


def test_many_grants_say_since_when_a_session_has_a_stream_and_what_its_lease_follows() -> None:
    rig = led(ENOUGH, ["b1"])
    effects = rig.join("b1x", name="n-b1", session="s-n-b1", attempt=2)
    (message,) = sent(effects, Grants)
    assert {(offer.lease_epoch, offer.resumes, offer.follows) for offer in message.offers()} == {(2, 1, 1)}


def test_a_stream_with_something_to_say_is_granted_alone() -> None:
    rig = led(ENOUGH, ["b1"], options=GroupOptions(max_failures=9, retry_delay_ms=1000))
    rig.hear(failed("b1", ENOUGH[5], 1, 4, "f"), "box-b1")
    rig.hear(fix("s-n-b1", 1, part(ENOUGH[6], 1, 0, 8)), "box-b1")
    rig.join("b2", name="n-b2")
    effects = rig.hear(goodbye("b1", *((stream, 1, 0) for stream in ENOUGH)), "box-b1")
    alone = {one.stream: (one.retry_after_ms, one.pinned_end) for one in sent(effects, Grant)}
    assert alone == {ENOUGH[5]: (1000, None), ENOUGH[6]: (0, 8)}
    assert set(offered(effects)) == {*ENOUGH} - alone.keys()


# -- not all in one turn


def test_very_many_begin_in_some_turns_and_the_next_ones_follow_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_turns, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(in_turns, "LEAST_TURNS", 100)
    rig = led([], [])
    rig.streams(*ENOUGH[:7])
    first = grants(rig.join("b1"))
    assert len(first) == 2
    answered, late = first
    second = grants(rig.hear(progress("b1", answered, 1, 0), "box-b1"))
    assert len(second) == 2
    third = grants(rig.tick(1))  # whoever does not answer holds up nobody
    assert len(third) == 2
    rig.join("b2")
    last = grants(rig.hear(progress("b1", late, 1, 0), "box-b1"))
    assert [borrower for borrower, *_ in last.values()] == ["b2"], "as a plan is that is made now"
    assert first.keys() | second.keys() | third.keys() | last.keys() == {*ENOUGH[:7]}
    assert rig.leader.plans.rebalances == 1
    assert not rig.leader.plans.goes_on


def test_a_pause_keeps_what_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_turns, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(in_turns, "LEAST_TURNS", 100)
    rig = led([], [])
    rig.streams(*ENOUGH[:5])
    (one, *_) = grants(rig.join("b1"))
    rig.hear(command("pause"), "box-op")
    assert grants(rig.hear(progress("b1", one, 1, 0), "box-b1")) == {}
    assert len(rig.leader.leases) == 2
    rig.hear(command("resume", request="r2"), "box-op")
    rig.tick(CONFIG.rebalance_delay)
    rig.tick(1)
    assert len(rig.leader.leases) == 5


def test_a_large_group_begins_more_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_turns, "MOST_AT_ONCE", 1)
    rig = led([], [])
    rig.streams(*ENOUGH)
    rig.join("b1")
    assert len(rig.leader.leases) == len(ENOUGH) // in_turns.LEAST_TURNS


# -- not before


def test_a_lease_that_begins_is_written_and_not_granted() -> None:
    led = Unwritten()
    assert len(records(led.begun, Leased)) == 2
    assert grants(led.begun) == {}
    assert grants(led.step(LeasesWritten())) == {S0: ("b1", 1, 5), S1: ("b1", 1, 5)}


def test_no_time_grants_it() -> None:
    led = Unwritten()
    for _ in range(8):
        led.hear(ping("b1"))
        assert grants(led.later(AGAIN)) == {}
    assert set(grants(led.step(LeasesWritten()))) == {S0, S1}


@pytest.mark.parametrize(
    "said", [wanted("b1"), ping("b1"), progress("b1", S0, 7, 9)], ids=lambda one: one.type
)
def test_no_word_of_its_owner_grants_it(said: ToLeader) -> None:
    led = Unwritten()
    for _ in range(2):
        effects = led.hear(said)
        assert grants(effects) == {}
        assert len(sent(effects, LeaderConnectResponse)) == isinstance(said, LeaderWanted)
    assert grants(led.step(LeasesWritten())) == {S0: ("b1", 1, 5), S1: ("b1", 1, 5)}


def test_no_act_grants_it() -> None:
    led = Unwritten()
    for request, act in enumerate(("pause", "resume", "rebalance")):
        assert grants(led.hear(command(act, request=f"r{request}"), "shell")) == {}
    assert set(grants(led.step(LeasesWritten()))) == {S0, S1}


def test_it_is_granted_again_only_from_its_first_grant_on() -> None:
    led = Unwritten()
    led.later(5 * AGAIN)
    led.hear(wanted("b1"))
    assert set(grants(led.step(LeasesWritten()))) == {S0, S1}
    assert grants(led.later(AGAIN - 1)) == {}
    assert set(grants(led.later(1))) == {S0, S1}
    assert grants(led.step(LeasesWritten())) == {}, "nothing began since"


# -- with what the reply says


def test_a_grant_says_how_far_the_reply_says_the_stream_is() -> None:
    led = Unwritten()
    effects = led.step(LeasesWritten({S0: 9}))
    assert grants(effects) == {S0: ("b1", 1, 9), S1: ("b1", 1, 5)}
    assert records(effects, Committed) == [Committed(offsets={S0: 9})]
    assert [type(effect) for effect in effects] == [Persist, Send, Send], "durable before told"
    assert led.leader.durable.streams[S0].committed == 9


@pytest.mark.parametrize("offset", [4, 5])
def test_a_reply_that_says_no_more_than_is_known_takes_nothing_back(offset: int) -> None:
    led = Unwritten()
    effects = led.step(LeasesWritten({S0: offset}))
    assert grants(effects)[S0] == ("b1", 1, 5)
    assert records(effects, Committed) == []


def test_a_repeated_grant_says_the_same() -> None:
    led = Unwritten()
    first = grants(led.step(LeasesWritten({S0: 9})))
    assert grants(led.later(AGAIN)) == first


def test_a_sealed_stream_that_came_to_its_end_by_itself_lets_the_next_begin() -> None:
    """The reply to the write of all that stands there says so also of streams without a lease."""
    rig = Rig()
    rig.generations({S0: 7}, S1)
    rig.step(LeasesWritten({S0: 7}))
    rig.join("b1")
    rig.settle()
    assert rig.owners == {S1: "b1"}


# -- only those that still stand


def leaves(led: Unwritten) -> None:
    led.hear(goodbye("b1"))


def falls_silent(led: Unwritten) -> None:
    led.later(10_000)


@pytest.mark.parametrize("end", [leaves, falls_silent])
def test_a_lease_whose_owner_is_gone_meanwhile_is_not_granted(end: Callable[[Unwritten], None]) -> None:
    led = Unwritten()
    end(led)
    assert dict(led.leader.leases) == {}
    assert grants(led.step(LeasesWritten({S0: 9}))) == {}
    led.hear(wanted("b2"), "box-b2")
    led.later(CONFIG.rebalance_delay)
    assert grants(led.step(LeasesWritten())) == {S0: ("b2", 2, 9), S1: ("b2", 2, 5)}


def test_a_lease_that_an_operator_ended_meanwhile_is_not_granted() -> None:
    led = Unwritten()
    led.hear(command("release", stream=S0), "shell")
    led.later(CONFIG.rebalance_delay)
    assert grants(led.step(LeasesWritten())) == {S0: ("b1", 2, 5), S1: ("b1", 1, 5)}


def test_a_newcomer_under_the_name_is_granted_its_own_lease_once() -> None:
    led = Unwritten()
    effects = led.hear(wanted("b2", name="n-b1", session="other", arrival=2), "box-b2")
    assert grants(effects) == {}
    effects = led.step(LeasesWritten({S1: 8}))
    assert grants(effects) == {S0: ("b2", 2, 5), S1: ("b2", 2, 8)}
    assert {effect.mailbox for effect in effects if isinstance(effect, Send)} == {"box-b2"}


def test_what_the_next_leader_goes_on_with_waits_too() -> None:
    """The lease is of the former term; the consumer comes back, and gets it anew."""
    rig = led([S0]).crash()
    effects = rig.leader.step(Received("box-b2", wanted("b2", name="n-b1", attempt=2)), rig.now)
    assert len(records(effects, Leased)) == 1
    assert grants(effects) == {}
    rig.now += AGAIN
    assert grants(rig.leader.step(Tick(), rig.now)) == {}
    granted = grants(rig.leader.step(LeasesWritten({S0: 12}), rig.now))
    assert granted == {S0: ("b2", rig.lease_epoch(S0), 12)}
