"""A group that is declared is in the set of groups, whoever dies when: retention knows of no others.

The simulation shows none of this: it declares its one group once and deletes none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.protocol.errors import GroupConflict, UnknownGroup
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import groups as groups_room
from streamlease.registry import keys
from streamlease.registry.groups import Groups
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.redis.scripts import Script
from streamlease.streams.spaces.spaces import SpaceStore

SHARED = SharedSubscription.parse("$shared/g/a/#")
QUEUE = SharedSubscription.parse("$queue/g/a/#")


class Killed(BaseException):
    """The process died."""


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(embedded_redis_url)
    await SpaceStore(client).create("a", ["a/#"])
    yield client
    await client.aclose()


@pytest.fixture(params=[False, True], ids=["one server", "as on a cluster"])
def groups(redis: AsyncRedis, request: pytest.FixtureRequest) -> Groups:
    groups = Groups(redis)
    groups._apart = request.param
    return groups


async def state(redis: AsyncRedis) -> tuple[bool, bool]:
    """Whether the group is declared, and whether it is in the set."""
    declared, there = await ask(
        redis, [("EXISTS", keys.definition(SHARED.id)), ("SISMEMBER", keys.GROUPS, str(SHARED))]
    )
    return bool(declared), bool(there)


def before_each_write(monkeypatch: pytest.MonkeyPatch, do: Callable[[], Awaitable[None]]) -> None:
    """Call `do` before each exchange of `Groups` with Redis."""
    run, plain, always = Script.run, groups_room.ask, groups_room.ask_always

    async def run_then(*words: Any, **more: Any) -> Any:
        await do()
        return await run(*words, **more)

    async def plain_then(*words: Any) -> Any:
        await do()
        return await plain(*words)

    async def always_then(*words: Any) -> Any:
        await do()
        return await always(*words)

    monkeypatch.setattr(Script, "run", run_then)
    monkeypatch.setattr(groups_room, "ask", plain_then)
    monkeypatch.setattr(groups_room, "ask_always", always_then)


class Turns:
    """Lets tasks take turns, in the order of their names, as long as they run."""

    def __init__(self, order: Sequence[str]) -> None:
        self.order = iter(order)
        self.next = next(self.order)
        self.running = set(order)
        self.changed = asyncio.Condition()

    async def turn(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        name = task.get_name()
        async with self.changed:
            await self.changed.wait_for(lambda: self.next == name or self.next not in self.running)
            self.next = next(self.order, "")
            self.changed.notify_all()

    async def run(self, work: Awaitable[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        await work
        async with self.changed:
            self.running.discard(task.get_name())
            self.changed.notify_all()


@pytest.mark.parametrize("act", ["declare", "forget", "forget with wishes"])
async def test_a_death_at_any_point_leaves_no_group_that_retention_does_not_see(
    groups: Groups, redis: AsyncRedis, act: str
) -> None:
    for point in itertools.count():
        await groups.forget(SHARED)
        wishes = None
        if act != "declare":
            await groups.declare(SHARED, "earliest")
            wishes = await groups.wishes(SHARED) if act == "forget with wishes" else None
        left = [point]

        async def die(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        with pytest.MonkeyPatch.context() as patch:
            before_each_write(patch, die)
            try:
                await (groups.declare(SHARED) if act == "declare" else groups.forget(SHARED, wishes))
            except Killed:
                pass
            else:
                break
        declared, there = await state(redis)
        assert there or not declared, f"dead before exchange {point}"
    assert point >= 1


async def test_whoever_declares_and_deletes_at_once_leaves_it_in_the_set(
    groups: Groups, redis: AsyncRedis
) -> None:
    """Every order of the exchanges of one that declares and one that deletes."""
    for order in itertools.product("df", repeat=7):
        await groups.forget(SHARED)
        await groups.declare(SHARED, "earliest")
        takes = Turns(order)
        with pytest.MonkeyPatch.context() as patch:
            before_each_write(patch, takes.turn)
            tasks = [
                asyncio.create_task(takes.run(groups.declare(SHARED)), name="d"),
                asyncio.create_task(takes.run(groups.forget(SHARED)), name="f"),
            ]
            async with asyncio.timeout(20):
                await asyncio.gather(*tasks)
        declared, there = await state(redis)
        assert there or not declared, "".join(order)


async def test_a_group_that_is_deleted_meanwhile_is_declared_anew_and_not_as_it_was(
    groups: Groups, redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GET, FORGET, DECLARE in a row: else the new group would begin where the deleted one began."""
    async with Publisher(redis) as publisher:
        await publisher.send("a/x", b"1")
        assert (await groups.declare(SHARED, "latest")).positions == {"a.0.0": 1}
        await publisher.send("a/x", b"2")
    run, left = Script.run, iter([True])

    async def forget_first(script: Script, *words: Any) -> Any:
        if script is groups_room._DECLARE and next(left, False):
            await Groups(redis).forget(SHARED)
        return await run(script, *words)

    monkeypatch.setattr(Script, "run", forget_first)
    assert (await groups.declare(SHARED, "latest")).positions == {"a.0.0": 2}
    assert await state(redis) == (True, True)


async def test_a_queue_that_is_deleted_meanwhile_is_not_declared_by_who_joins(
    groups: Groups, redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await groups.declare(QUEUE)
    run, left = Script.run, iter([True])

    async def forget_first(script: Script, *words: Any) -> Any:
        if script is groups_room._DECLARE and next(left, False):
            await Groups(redis).forget(QUEUE)
        return await run(script, *words)

    monkeypatch.setattr(Script, "run", forget_first)
    with pytest.raises(UnknownGroup, match="declare it first"):
        await groups.join(QUEUE)
    assert await groups.list() == []


async def test_a_refused_kind_is_not_put_into_the_set(groups: Groups) -> None:
    await groups.declare(QUEUE)
    with pytest.raises(GroupConflict):
        await groups.declare(SHARED)
    assert await groups.list() == [QUEUE]


async def test_a_leader_puts_its_group_into_the_set_when_its_term_begins(redis: AsyncRedis) -> None:
    groups = Groups(redis)
    await groups.declare(QUEUE)
    await ask(redis, [("SREM", keys.GROUPS, str(QUEUE))])
    host = LeaderHost(redis, HostConfig(registered=False))
    await host.start()
    try:
        host.lead(QUEUE.id)
        async with asyncio.timeout(30):
            while await groups.list() != [QUEUE]:  # noqa: ASYNC110 (a condition in Redis)
                await asyncio.sleep(0.01)
        assert host.leaders == [QUEUE.id], "it was put there by its leader"
        assert not await groups.enlist(QUEUE)
    finally:
        await host.close()


async def test_only_what_is_declared_and_missing_is_enlisted(groups: Groups, redis: AsyncRedis) -> None:
    assert not await groups.enlist(SHARED)
    await groups.declare(SHARED)
    assert not await groups.enlist(SHARED)
    await ask(redis, [("SREM", keys.GROUPS, str(SHARED))])
    assert await groups.enlist(SHARED)
    assert await groups.list() == [SHARED]
