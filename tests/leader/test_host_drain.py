"""An operator's drain of a whole host: all its groups go, whatever Redis does meanwhile.

The simulation drains hosts too, of one group; here a host leads several, and each loss is placed by hand.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.hosts import hand_out
from streamlease.hosts.host import LeaderHost
from streamlease.leader.journal import recover
from streamlease.leader.runner import Runner
from streamlease.protocol.errors import Indefinite, StoreUnavailable
from streamlease.protocol.messages import CommandReply, Message
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.registry.groups import Groups
from streamlease.streams.redis.connection import AsyncRedis
from tests.admin.command import InProcess
from tests.leader.test_host import hosting, redis

__all__ = ["redis"]

GROUPS = [SharedSubscription.parse(f"$shared/g{number}/a/#") for number in range(3)]
ALL = [group.id for group in GROUPS]


async def begin(redis: AsyncRedis, host: LeaderHost) -> None:
    for group in GROUPS:
        await Groups(redis).declare(group)
        host.lead(group.id)
    await until_it_leads(host, ALL)


async def until_it_leads(host: LeaderHost, groups: list[str]) -> None:
    async with asyncio.timeout(30):
        while host.leaders != groups:  # noqa: ASYNC110 (a condition of another task)
            await asyncio.sleep(0.01)


async def acts(redis: AsyncRedis) -> list[list[str]]:
    return [[act.act for act in (await recover(redis, group)).state.operated.acts] for group in ALL]


async def test_an_unanswered_question_does_not_end_the_drain(
    redis: AsyncRedis, embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_out, "HAND_OUT_SECONDS", 0.3)
    read, asked = leadership.read, [0]

    async def unanswered(*words: Any) -> Any:
        asked[0] += 1
        if asked[0] <= 2:
            raise StoreUnavailable("Redis does not answer")
        return await read(*words)

    async with hosting(redis, "one") as one, hosting(redis, "two"), Client(embedded_redis_url) as client:
        await begin(redis, one)
        monkeypatch.setattr(hand_out.leadership, "read", unanswered)
        assert (await client.drain_host(one.id, who="me"))["leaders"] == ALL
        await until_it_leads(one, [])
        assert await acts(redis) == [["step_down"]] * len(ALL)


@pytest.mark.slow
async def test_a_lost_answer_is_given_again_and_the_drain_is_done_once(
    redis: AsyncRedis, embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_out, "HAND_OUT_SECONDS", 0.3)
    left = iter([True])
    async with hosting(redis, "one") as one, hosting(redis, "two"), Client(embedded_redis_url) as client:
        await begin(redis, one)
        post = one._postbox.post

        def lose(receiver: str, message: Message) -> None:
            if not (isinstance(message, CommandReply) and next(left, False)):
                post(receiver, message)

        one._postbox.post = lose  # type: ignore[method-assign]
        assert (await client.drain_host(one.id, who="me"))["leaders"] == ALL
        await until_it_leads(one, [])
        assert await acts(redis) == [["step_down"]] * len(ALL)
        with pytest.raises(Indefinite, match="is drained, or it is not; look with 'streamlease status'"):
            await client.drain_host("nobody", who="me", seconds=0.3)


async def test_what_a_drained_host_leads_all_the_same_is_handed_out(
    redis: AsyncRedis, embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a candidate when it was drained, and won; or it was the only host for a while."""
    monkeypatch.setattr(hand_out, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(hand_out, "HAND_OUT_SECONDS", 0.3)
    async with hosting(redis, "one") as one, Client(embedded_redis_url) as client:
        async with hosting(redis, "two"):
            await client.drain_host(one.id, who="me")
        for group in GROUPS:
            await Groups(redis).declare(group)
            one.lead(group.id)
        await until_it_leads(one, ALL)
        async with hosting(redis, "three"):
            await until_it_leads(one, [])
            assert await acts(redis) == [["step_down"]] * len(ALL)


@pytest.mark.slow
async def test_the_command_names_each_group_that_was_not_moved(
    redis: AsyncRedis, embedded_redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group's leader does not step down: the others go, and the command fails with its name."""
    monkeypatch.setattr(hand_out, "HAND_OUT_SECONDS", 0.1)
    command = InProcess(tmp_path, embedded_redis_url)
    async with hosting(redis, "one") as one, hosting(redis, "two"):
        await begin(redis, one)
        monkeypatch.setattr(Runner, "post", _deaf(ALL[1], Runner.post))
        words = ("group", "drain", "--host", "one", "--timeout", "2", "--json")
        outcome = await asyncio.to_thread(command, *words)
        assert (outcome.code, outcome.document["not_moved"]) == (1, [ALL[1]])
        (line,) = outcome.err.splitlines()
        assert line.startswith(f"error: group {ALL[1]} is still led by {one.id}")
        assert one.leaders == [ALL[1]]
        monkeypatch.undo()


def _deaf(group: str, post: Any) -> Any:
    """A runner's `post` that leaves out what is for `group`."""
    return lambda runner, event: None if runner.group == group else post(runner, event)
