"""Operators' acts whose answers are lost: what was perhaps done is never reported as not done (invariant 12).

The simulation has operators who act by `Agent.act`; here each loss is placed by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.agent.membership import commanding
from streamlease.agent.membership.agent import Agent
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.journal import recover
from streamlease.protocol.acts import DescribeGroup, PauseGroup
from streamlease.protocol.errors import Indefinite, NotLeader, StoreUnavailable
from streamlease.protocol.messages import Command, CommandAstray, CommandDone, CommandReply, Message
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership, spawn
from streamlease.streams.redis.connection import AsyncRedis, connect
from tests.agent.helpers import SECONDS

SHARED = SharedSubscription.parse("$shared/g/a/#")


def pause(request: str = "r1", *, dry_run: bool = False) -> Command:
    return Command(group=SHARED.id, request=request, act=PauseGroup(), who="me", dry_run=dry_run)


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(embedded_redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def agent(redis: AsyncRedis, embedded_redis_url: str) -> AsyncIterator[Agent]:
    """An agent that leads nothing itself."""
    agent = Agent(redis, embedded=False)
    await agent.start()
    yield agent
    await agent.close()


@pytest.fixture
async def host(redis: AsyncRedis, embedded_redis_url: str) -> AsyncIterator[LeaderHost]:
    """A host that leads the group."""
    async with Client(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        await client.groups.declare(SHARED)
    host = LeaderHost(redis, HostConfig(name="h", registered=False))
    await host.start()
    host.lead(SHARED.id)
    async with asyncio.timeout(SECONDS):
        while not (await leadership.read(redis, SHARED.id)).held:  # noqa: ASYNC110 (a condition in Redis)
            await asyncio.sleep(0.01)
    yield host
    await host.close()


def losing(host: LeaderHost, lost: Callable[[Message], bool]) -> None:
    """Let letters of the host get lost."""
    post = host._postbox.post

    def lose(receiver: str, message: Message) -> None:
        if not lost(message):
            post(receiver, message)

    host._postbox.post = lose  # type: ignore[method-assign]
    for runner in host._runners.values():
        runner.outbox = lose


async def was_done(redis: AsyncRedis) -> bool:
    return (await recover(redis, SHARED.id)).state.operated.paused is not None


@pytest.mark.slow
async def test_an_act_whose_answer_is_lost_is_indefinite_also_if_nobody_leads_later(
    redis: AsyncRedis, agent: Agent, host: LeaderHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commanding, "ASK_SECONDS", 0.3)
    denied = asyncio.Event()

    def lost(message: Message) -> bool:
        if isinstance(message, CommandAstray):
            denied.set()
        return isinstance(message, CommandReply)

    losing(host, lost)
    trying = asyncio.create_task(agent.commands.act(pause(), 3.0))
    async with asyncio.timeout(SECONDS):
        while not await was_done(redis):  # noqa: ASYNC110 (a condition in Redis)
            await asyncio.sleep(0.01)
        # Its host lives on and says that it does not lead; then nobody does.
        runner = host._runners.pop(SHARED.id)
        await denied.wait()
        runner.step_down()
    with pytest.raises(Indefinite, match="it was done, or it was not; look for request r1") as caught:
        await trying
    assert "nothing was done" not in str(caught.value)


async def test_a_redis_that_is_away_at_last_does_not_make_it_certain(
    agent: Agent, host: LeaderHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commanding, "ASK_SECONDS", 0.3)
    losing(host, lambda message: isinstance(message, CommandReply))

    async def away(*_: Any) -> spawn.Found:
        raise StoreUnavailable("Redis does not answer")

    why_not = agent.commands._why_not

    async def last(*words: Any, **more: Any) -> Any:
        monkeypatch.setattr(spawn, "find", away)
        return await why_not(*words, **more)

    monkeypatch.setattr(agent.commands, "_why_not", last)
    with pytest.raises(Indefinite, match="it was done, or it was not"):
        await agent.commands.act(pause(), 0.7)
    with pytest.raises(StoreUnavailable):  # here nobody could be asked
        await agent.commands.act(pause("r2"), 0.3)


async def test_nothing_was_done_where_nobody_was_asked(agent: Agent, host: LeaderHost) -> None:
    await host.close()
    with pytest.raises(NotLeader, match="nothing was done"):
        await agent.commands.act(pause(), 0.5)


async def test_a_dry_run_without_an_answer_changed_nothing(agent: Agent, host: LeaderHost) -> None:
    losing(host, lambda message: isinstance(message, CommandReply))
    with pytest.raises(Indefinite, match="so nothing was changed"):
        await agent.commands.act(pause(dry_run=True), 0.5)


async def test_an_act_that_is_asked_for_again_is_done_once(
    redis: AsyncRedis, agent: Agent, host: LeaderHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commanding, "ASK_SECONDS", 0.2)
    left = iter([True, True])
    losing(host, lambda message: isinstance(message, CommandReply) and next(left, False))
    assert isinstance(await agent.commands.act(pause(), 10.0), CommandDone)
    assert [act.act for act in (await recover(redis, SHARED.id)).state.operated.acts] == ["pause"]


async def test_who_does_not_answer_is_told_with_what_it_was_asked(agent: Agent) -> None:
    with pytest.raises(Indefinite, match=r"did not answer 'pause' .*: look with 'streamlease group history'"):
        await agent.commands.ask("nobody", pause(), 0.1)
    asked = pause("r2").model_copy(update={"act": DescribeGroup()})
    with pytest.raises(Indefinite, match=r"did not answer 'describe' .*: it may be busy: ask again"):
        await agent.commands.ask("nobody", asked, 0.1)
