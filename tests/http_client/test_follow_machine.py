"""The machine of a follower alone, in virtual time: against a log, with a network that does what it likes."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.http.core.follow_machine import TABLE, FollowMachine, FollowPhase
from streamlease.http.core.follow_steps import (
    Ask,
    Cancel,
    FollowBegun,
    FollowEvent,
    FollowOptions,
    GiveUp,
    HandOver,
    PagePushed,
    PushEnded,
    QuestionAnswered,
    QuestionFailed,
    Subscribe,
    Woke,
)
from streamlease.http.core.gateway_errors import CursorTruncated, GatewayRefused, GatewayUnavailable
from streamlease.http.core.gateway_pages import GatewayMessage, GatewayPage, mark
from streamlease.http.core.quiet_timer import QuietTimer
from streamlease.protocol.errors import InvalidOption

AT = datetime(2026, 1, 1, tzinfo=UTC)
STREAMS = 2


def cursor(places: tuple[int, ...]) -> str:
    return "c" + "-".join(map(str, places))


def places(text: str) -> tuple[int, ...]:
    return tuple(map(int, text[1:].split("-")))


class Log:
    """Streams of messages, of which some match the filter."""

    def __init__(self) -> None:
        self.streams: list[list[bool]] = [[] for _ in range(STREAMS)]

    def append(self, stream: int, *, matches: bool) -> None:
        self.streams[stream].append(matches)

    def wanted(self) -> list[tuple[int, int]]:
        return [(s, o) for s, log in enumerate(self.streams) for o, fits in enumerate(log) if fits]

    def since(self, text: str, limit: int) -> GatewayPage:
        at = list(places(text))
        found: list[GatewayMessage] = []
        for stream, log in enumerate(self.streams):
            while at[stream] < len(log) and len(found) < limit:
                offset = at[stream]
                at[stream] += 1
                if log[offset]:
                    found.append(message(stream, offset))
        return GatewayPage(tuple(found), cursor(tuple(at)))


def message(stream: int, offset: int) -> GatewayMessage:
    return GatewayMessage(
        "t", None, b"", None, str(stream), offset, offset - 1 if offset else None, AT, (), None
    )


class World:
    """A machine, a log, and what is on its way between both."""

    def __init__(self, seed: int, options: FollowOptions, bad: float) -> None:
        self.random = random.Random(seed)
        self.bad = bad
        self.log = Log()
        self.now = 0.0
        self.count = itertools.count()
        self.later: list[tuple[float, int, Callable[[], None]]] = []
        self.machine = FollowMachine(cursor((0,) * STREAMS), options)
        self.found: list[tuple[int, int]] = []
        self.given_up: list[GiveUp] = []
        self.pushing: dict[int, str] = {}

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.later, (self.now + seconds, next(self.count), act))

    def step(self, event: FollowEvent) -> None:
        for effect in self.machine.step(event, self.now):
            match effect:
                case HandOver(page):
                    self.found += [(int(one.stream), one.offset) for one in page.messages]
                case Ask(question, since, wait):
                    if self.random.random() < self.bad:
                        failed = QuestionFailed(question, GatewayUnavailable("no"))
                        self.at(0.05, partial(self.step, failed))
                    else:
                        asked = partial(self.answer, question, since, wait)
                        self.at(self.random.random() * 0.1, asked)
                case Subscribe(subscription, since):
                    self.pushing[subscription] = since
                    self.at(0.01, partial(self.push, subscription))
                case Cancel(subscription):
                    if self.random.random() > self.bad:  # else it goes on
                        self.pushing.pop(subscription, None)
                case GiveUp():
                    self.given_up.append(effect)

    def answer(self, question: int, since: str, wait: float) -> None:
        page = self.log.since(since, 5)
        if page.messages or wait <= 0:
            self.at(self.random.random() * 0.1, lambda: self.step(QuestionAnswered(question, page)))
        else:
            self.at(0.05, lambda: self.answer(question, since, wait - 0.05))

    def push(self, subscription: int) -> None:
        """What a gateway does, one message after the other; and what the network does to it."""
        if subscription not in self.pushing:
            return
        since = self.pushing[subscription]
        page = self.log.since(since, 1)
        if page.next != since:
            self.pushing[subscription] = page.next
            event = PagePushed(subscription, mark(since), page)
            luck = self.random.random()
            if luck < self.bad / 4:
                del self.pushing[subscription]
                self.step(PushEnded(subscription, GatewayUnavailable("cut")))
                return
            if luck > self.bad:
                self.step(event)
            if luck < self.bad * 2:  # late, doubled or both
                self.at(self.random.random(), lambda: self.step(event))
        self.at(0.02, lambda: self.push(subscription))

    def run(self, until: float) -> None:
        while self.now < until:
            due = self.machine.due
            if self.later and (due is None or self.later[0][0] <= due):
                self.now, _, act = heapq.heappop(self.later)
                act()
            elif due is not None:
                self.now = max(self.now, due)
                self.step(Woke())
            else:
                return


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    mode=st.sampled_from([(True, True), (True, False), (False, True)]),
    wait=st.sampled_from([0.0, 2.0]),
    bad=st.sampled_from([0.0, 0.1, 0.4]),
    share=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_every_message_once_and_in_order_whatever_the_network_does(
    seed: int, mode: tuple[bool, bool], wait: float, bad: float, share: float
) -> None:
    push, pull = mode
    options = FollowOptions(push, pull, 0.5, 4.0, wait, limit=5)
    world = World(seed, options, bad)
    world.step(FollowBegun())
    for number in range(60):
        matches = world.random.random() < share
        world.at(
            number * world.random.random() * 0.3,
            partial(world.log.append, number % STREAMS, matches=matches),
        )
    world.run(20.0)
    world.bad = 0.0
    world.run(80.0)  # a healed network: everything comes within a bounded time
    assert sorted(world.found) == world.log.wanted()
    for stream in range(STREAMS):
        offsets = [o for s, o in world.found if s == stream]
        assert offsets == sorted(offsets)
    assert world.given_up == []
    if not bad and pull and push:
        assert world.machine.counts.gaps == world.machine.counts.rejected == 0
    busy = world.machine.counts.questions + world.machine.counts.subscriptions
    assert busy < 80 * 60, "it asks without a rest"


def test_a_push_for_an_earlier_subscription_is_rejected() -> None:
    machine = FollowMachine("c0-0", FollowOptions())
    (first,) = machine.step(FollowBegun(), 0.0)
    assert first == Subscribe(1, "c0-0")
    machine.step(Woke(), machine.due or 0.0)
    page = GatewayPage((message(0, 0),), "c1-0")
    taken, cancelled, second = machine.step(QuestionAnswered(1, page), 2.0)
    assert (taken, cancelled) == (HandOver(page), Cancel(1))
    assert isinstance(second, (Subscribe, Ask))
    follower = GatewayPage((message(0, 1),), "c2-0")
    assert machine.step(PagePushed(1, mark("c1-0"), follower), 2.1) == []
    assert machine.counts.rejected == 1


def test_an_empty_answer_changes_nothing_and_the_timer_grows() -> None:
    machine = FollowMachine("c0-0", FollowOptions(quiet_least=1.0, quiet_most=4.0))
    machine.step(FollowBegun(), 0.0)
    pauses, now = [], 0.0
    for question in range(1, 5):
        assert machine.due is not None
        pauses.append(machine.due - now)
        now = machine.due
        assert machine.step(Woke(), now) == [Ask(question, machine.position, 0.0)]
        assert machine.phase is FollowPhase.CHECKING
        assert machine.step(QuestionAnswered(question, GatewayPage((), f"c0-{question}")), now) == []
        assert machine.phase is FollowPhase.SUBSCRIBED
    assert pauses == [1.0, 2.0, 4.0, 4.0]
    assert machine.position == "c0-4"
    page = GatewayPage((message(0, 0),), "c1-0")
    assert machine.step(PagePushed(1, mark("c0-0"), page), now) == [HandOver(page)]


def test_a_gap_asks_at_once_and_a_late_push_does_not() -> None:
    machine = FollowMachine("c0-0", FollowOptions())
    machine.step(FollowBegun(), 0.0)
    first = PagePushed(1, mark("c0-0"), GatewayPage((message(0, 0),), "c1-0"))
    assert machine.step(first, 0.1) == [HandOver(first.page)]
    assert machine.step(first, 0.2) == [] and machine.counts.doubled == 1
    gap = PagePushed(1, mark("c2-0"), GatewayPage((message(0, 2),), "c3-0"))
    assert machine.step(gap, 0.3) == [Ask(1, "c1-0", 0.0)]


def test_what_trying_again_does_not_help_against_is_told() -> None:
    refused = GatewayRefused("no", 403, "not-allowed")
    machine = FollowMachine("latest", FollowOptions())
    assert machine.step(FollowBegun(), 0.0) == [Ask(1, "latest", 0.0)]
    assert machine.step(QuestionFailed(1, refused), 0.1) == [GiveUp(refused)]
    assert machine.phase is FollowPhase.ENDED and machine.due is None
    assert machine.step(Woke(), 9.0) == []

    machine = FollowMachine("latest", FollowOptions(pull=False))
    machine.step(FollowBegun(), 0.0)
    assert machine.step(PushEnded(1, refused), 0.1) == [GiveUp(refused)]

    down = GatewayUnavailable("no")
    machine = FollowMachine("latest", FollowOptions(patience=5.0))
    machine.step(FollowBegun(), 0.0)
    now, question = 0.0, 1
    while (effects := machine.step(QuestionFailed(question, down), now)) == []:
        now = machine.due or 0.0
        (asked,) = machine.step(Woke(), now)
        assert isinstance(asked, Ask)
        question = asked.question
    assert effects == [GiveUp(down)] and 5.0 <= now < 12.0


@pytest.mark.parametrize("pull", [True, False])
def test_what_is_lost_is_passed_over_if_that_is_wanted(pull: bool) -> None:
    lost = CursorTruncated("gone", "c9-0", "history-lost")
    machine = FollowMachine("c0-0", FollowOptions(pull=pull, fail_on_loss=False))
    assert machine.step(FollowBegun(), 0.0) == [Subscribe(1, "c0-0")]
    if pull:
        assert machine.step(Woke(), 1.0) == [Ask(1, "c0-0", 0.0)]
        assert machine.step(QuestionFailed(1, lost), 1.1) == [Cancel(1), Subscribe(2, "c9-0")]
    else:
        assert machine.step(PushEnded(1, lost), 1.1) == [Subscribe(2, "c9-0")]
    page = GatewayPage((message(0, 9),), "c10-0")
    assert machine.step(PagePushed(2, mark("c9-0"), page), 1.2) == [HandOver(page)]
    assert machine.counts.losses == 1
    machine = FollowMachine("c0-0", FollowOptions(pull=pull))
    machine.step(FollowBegun(), 0.0)
    machine.step(Woke(), 1.0)
    failed = QuestionFailed(1, lost) if pull else PushEnded(machine.counts.subscriptions, lost)
    assert machine.step(failed, 1.1)[-1] == GiveUp(lost)


def test_every_phase_is_left_only_by_the_table() -> None:
    assert not any(phase is FollowPhase.ENDED for phase, _ in TABLE)
    assert {phase for phases in TABLE.values() for phase in phases} == set(FollowPhase)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"push": False, "pull": False}, "both off"),
        ({"quiet_least": 0.0}, "quiet is 0.0 to 30.0"),
        ({"quiet_least": 5.0, "quiet_most": 1.0}, "quiet is 5.0 to 1.0"),
        ({"wait": 61.0}, "wait is 61.0"),
        ({"limit": 0}, "limit is 0"),
        ({"patience": 0.0}, "patience is 0.0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, float], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        FollowOptions(**options)  # type: ignore[arg-type]


def test_the_quiet_timer_follows_the_pace_of_pushes() -> None:
    timer = QuietTimer(1.0, 30.0)
    for _ in range(6):
        timer.found_nothing()
    assert timer.seconds == 30.0
    for now in range(0, 100, 5):
        timer.pushed(float(now))
    assert 9.0 < timer.seconds <= 10.0  # twice the usual pause
    timer.found_something()
    assert 9.0 < timer.seconds <= 10.0
