"""What waits for a leader is bounded, and nothing of it that counts is left out.

The simulation does not see it: its few borrowers never fill the queue, and its server never refuses
durability for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streamlease.leader.core.events import (
    DeadLetterRefused,
    DeadLetterWritten,
    Event,
    Measured,
    Received,
    StepDownWanted,
    StreamsListed,
    Tick,
)
from streamlease.leader.core.machine import LeaderConfig
from streamlease.leader.journal import Commit, Journal, recover
from streamlease.leader.runner import Runner
from streamlease.leader.waiting import Waiting
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.cuts import NO_RANGES
from streamlease.protocol.errors import NotDurable
from streamlease.protocol.messages import (
    Command,
    Disconnect,
    FinishCut,
    FixCut,
    Grant,
    Message,
    MessageFailed,
    Ping,
    PingResponse,
    Progress,
    ProgressCommitted,
    RevokeFinished,
    ToLeader,
    UpdateProgress,
)
from streamlease.registry import leadership
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy
from streamlease.registry.mail.mailbox import Letter
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import SpaceStore
from tests.leader.make import wanted
from tests.leader.test_host import GROUP, QUICK, SUBSCRIPTION, until


def on(
    stream: str,
    offset: int,
    lease_epoch: int = 1,
    *,
    final: bool = False,
    holes: tuple[tuple[int, int], ...] = (),
) -> Progress:
    return Progress(stream=stream, lease_epoch=lease_epoch, offset=offset, final=final, holes=holes)


def update(*progress: Progress, borrower: str = "b") -> UpdateProgress:
    return UpdateProgress(group=GROUP, borrower=borrower, progress=progress)


def ping(borrower: str = "b") -> Ping:
    return Ping(group=GROUP, borrower=borrower, term=1)


def revoked(stream: str) -> RevokeFinished:
    return RevokeFinished(group=GROUP, borrower="b", stream=stream, lease_epoch=1)


def failed(failure: str) -> MessageFailed:
    return MessageFailed(
        group=GROUP, borrower="b", stream="s0", lease_epoch=1, offset=3, failure=failure, cause="no"
    )


async def taken(*events: Event | ToLeader) -> list[Event | ToLeader]:
    """What a leader takes if these wait; messages without their envelopes."""
    waiting = Waiting("g/a")
    for event in events:
        waiting.put(event if isinstance(event, Event) else Received("box", event))
    assert len(waiting) <= len(events)
    found = await asyncio.wait_for(waiting.take(), 10)
    assert len(waiting) == 0
    return [event.message if isinstance(event, Received) else event for event in found]


async def test_progress_is_joined_at_its_place_and_pings_are_one() -> None:
    assert await taken(
        update(on("s0", 1), on("s1", 5)),
        ping(),
        update(on("s0", 3)),
        ping("other"),
        ping(),
        update(on("s2", 1)),
    ) == [update(on("s0", 3), on("s1", 5), on("s2", 1)), ping(), ping("other")]
    assert await taken(update(on("s0", 1)), update(on("s0", 2), borrower="other")) == [
        update(on("s0", 1)),
        update(on("s0", 2), borrower="other"),
    ]


async def test_nothing_that_was_said_of_a_lease_is_forgotten() -> None:
    older = on("s0", 9, final=True, holes=((2, 4), (6, 7)))
    assert await taken(update(older), update(on("s0", 8, holes=((1, 2),)), on("s0", 0, lease_epoch=2))) == [
        update(on("s0", 9, final=True, holes=((1, 2), (2, 4), (6, 7))), on("s0", 0, lease_epoch=2))
    ]


async def test_progress_is_not_joined_across_what_else_a_borrower_said() -> None:
    said = [
        update(on("s0", 1, final=True)),
        revoked("s0"),
        update(on("s1", 1)),
        failed("f1"),
        update(on("s1", 2)),
    ]
    assert await taken(*said) == said
    # Their repetitions are nothing new, so what comes behind them joins what was there.
    assert await taken(*said, revoked("s0"), failed("f1"), update(on("s1", 4))) == [
        *said[:-1],
        update(on("s1", 4)),
    ]


async def test_who_leaves_is_heard_before_who_comes_under_the_same_name() -> None:
    leaves = Disconnect(group=GROUP, borrower="b1", progress=(on("s0", 7),))
    one, two = wanted("b1", name="n", attempt=1), wanted("b2", name="n", attempt=2)
    assert await taken(one, leaves, leaves, two, one, two) == [leaves, two]


async def test_of_the_words_about_cuts_the_newest_counts() -> None:
    def fix(cut: int, proposal: int, arrival: int = 1) -> FixCut:
        return FixCut(
            group=GROUP,
            session="s",
            arrival=arrival,
            cut=cut,
            finished=cut - 1,
            ranges=NO_RANGES,
            proposal=proposal,
        )

    def finish(finished: int) -> FinishCut:
        return FinishCut(group=GROUP, session="s", arrival=1, finished=finished)

    assert await taken(
        fix(1, 1), finish(1), fix(1, 1), fix(2, 2), fix(1, 1), finish(2), fix(9, 9, arrival=0)
    ) == [
        fix(2, 2),
        finish(2),
    ]


async def test_who_asks_again_is_heard_with_all_that_it_attests_by_now() -> None:
    one = wanted("b", name="n")
    again = wanted("b", name="n", attested=(on("s0", 4),))
    assert await taken(one, ping("other"), again) == [again, ping("other")]


async def test_an_operators_act_waits_once_and_others_beside_it() -> None:
    def act(request: str) -> Command:
        return Command(group=GROUP, request=request, act=DescribeGroup())

    assert await taken(act("1"), act("2"), act("1")) == [act("1"), act("2")]


async def test_what_a_neighbour_says_waits_as_what_came_by_mail_and_what_is_for_others_does_not() -> None:
    waiting = Waiting("g/a")
    waiting.hear(Letter("box", ping("b1")))
    waiting.hear(Letter("box", PingResponse(group=GROUP, borrower="b1", term=1)))
    waiting.hear(Letter("other box", ping("b2")))
    assert await waiting.take() == [Received("box", ping("b1")), Received("other box", ping("b2"))]


async def test_what_the_host_says_is_never_dropped() -> None:
    waiting = Waiting("g/a", most=2)
    for number in range(5):
        waiting.put(Received("box", ping(f"b{number}")))
    own: list[Event] = [
        Tick(),
        Tick(5),
        DeadLetterWritten("s0", 1, "dead", 2),
        StepDownWanted(),
    ]
    for event in own:
        waiting.put(event)
    for number in range(9):
        waiting.put(DeadLetterRefused("s1", number, "full"))
        waiting.put(StreamsListed({"s0": number}))
        waiting.put(Measured({f"s{number % 2}": number}, number))
    found = await waiting.take()
    assert found[:2] == [Received("box", ping("b0")), Received("box", ping("b1"))]
    assert found[2:6] == own
    assert found[6:] == [
        DeadLetterRefused("s1", 8, "full"),
        StreamsListed({"s0": 8}),
        Measured({"s0": 8, "s1": 7}, 8),
    ]
    assert waiting.dropped == 3


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(embedded_redis_url)
    await SpaceStore(client).create("a", ["a/#"], streams=2)
    await Groups(client).declare(SUBSCRIPTION, "earliest")
    yield client
    await client.aclose()


async def test_a_leader_that_cannot_commit_gathers_no_more_than_its_borrowers_are(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica is gone, say, and nothing is durable: for hours, with every borrower saying all it knows."""
    candidacy = Candidacy(GROUP, "h", "h", QUICK)
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    assert await candidacy.attempt(redis) == 1
    sent: list[Message] = []
    durable = asyncio.Event()
    durable.set()
    refused = asyncio.Event()
    write = Journal.write

    async def written(self: Journal, commit: Commit) -> dict[str, int]:
        further = await write(self, commit)
        if not durable.is_set():
            refused.set()
            raise NotDurable("no replica confirmed it")
        return further

    monkeypatch.setattr(Journal, "write", written)
    runner = Runner(redis, GROUP, "h", 1, lambda _, message: sent.append(message), LeaderConfig(), QUICK)
    task = asyncio.create_task(runner.run())
    runner.post(Received("box", wanted("b", name="n", session="s")))

    async def leading() -> bool:
        return runner._leading is not None

    await until(leading)
    runner.post(StreamsListed({"a.0.0": 0, "a.0.1": 0}))

    async def granted() -> bool:
        runner.tick(None, now_ms())
        return sum(isinstance(one, Grant) for one in sent) == 2

    await until(granted)
    streams = {one.stream: one.lease_epoch for one in sent if isinstance(one, Grant)}
    durable.clear()
    runner.post(
        Received("box", update(*(on(stream, 1, lease_epoch) for stream, lease_epoch in streams.items())))
    )
    await refused.wait()
    for offset in range(2, 5000):
        runner.renewed_at = now_ms()
        runner.post(
            Received(
                "box", update(*(on(stream, offset, lease_epoch) for stream, lease_epoch in streams.items()))
            )
        )
        runner.post(Received("box", ping()))
        runner.post(Received("box", wanted("b", name="n", session="s")))
        runner.tick(None, now_ms())
    assert len(runner.waiting) in (3, 4), "progress, ping and request of the borrower, and a tick"
    facts = runner.facts()
    assert facts is not None
    assert facts.inbox == len(runner.waiting)
    durable.set()

    async def committed() -> bool:
        return any(isinstance(one, ProgressCommitted) and one.progress[0].offset == 4999 for one in sent)

    await until(committed)
    state = (await recover(redis, GROUP)).state
    assert {state.streams[stream].committed for stream in streams} == {4999}
    runner.step_down()
    assert await task == "drained"
