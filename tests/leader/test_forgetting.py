"""Generations that nobody needs leave, and stay away; what a crash left half done is finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.agent.client import connect
from streamlease.hosts.forgetting import spent
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.trimming import Retainer
from streamlease.leader import journal
from streamlease.protocol.errors import Fenced, HistoryTruncated, Indefinite, StoreUnavailable, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys, leadership
from streamlease.registry.group_needs import GroupProgress
from streamlease.streams.imports.transfer import Item, Transfer
from streamlease.streams.log.keys import stream_publishers
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import Extent, LogState
from streamlease.streams.log.times import EPOCH, MICROSECOND, server_time
from streamlease.streams.spaces.altering import Generations
from streamlease.streams.spaces.retention import Retention
from streamlease.streams.spaces.spaces import Generation, Space, SpaceStore
from streamlease.streams.spaces.table import DefinitionTable
from tests.conftest import MakeServer
from tests.leader.test_retention import SHARED, SUB, Rig
from tests.streams.test_generations import crash_after, states

OLD, NEW = StreamId("s", 0, 0), StreamId("s", 1, 0)
LAST_ONE = Retention(messages=1)


@pytest.fixture
async def rig(real_redis_url: str) -> AsyncIterator[Rig]:
    async with connect(real_redis_url) as client:
        rig = Rig(client)
        yield rig
        await rig.client.close()


async def generations(rig: Rig) -> list[int]:
    return [one.number for one in (await rig.client.spaces.get("s")).generations]


async def rounds(rig: Rig, retainer: Retainer, most: int = 6) -> list[tuple[str, int]]:
    """Rounds until nothing changes any more; what was dropped."""
    await rig.free()
    dropped: list[tuple[str, int]] = []
    for _ in range(most):
        done = await retainer.round()
        assert done.claimed
        dropped += done.dropped
    return dropped


async def two_generations(rig: Rig, before: int = 6, after: int = 4) -> None:
    """A space whose generation 0 was consumed by a group and followed by generation 1."""
    await rig.space(LAST_ONE, before)
    await rig.client.spaces.generations.alter("s", streams=2)
    await rig.publish(after)


async def everything(rig: Rig, count: int) -> list[int]:
    """The payloads of the next `count` messages of the group, committed one by one."""
    got: list[int] = []
    async with asyncio.timeout(60), rig.client.subscribe(SUB, start="earliest", max_batch=1) as reader:
        while len(got) < count:
            batch = await anext(reader)
            got += [int(message.payload) for message in batch.messages]
            await batch.commit()
    return got


async def no_field_of(rig: Rig, stream: StreamId) -> None:
    """Wait until nothing is left of a stream: no key, nothing in the group's journal or its mirror."""
    assert await rig.client.redis.keys(f"sl:{{{stream}}}:*") == []
    async with asyncio.timeout(30):
        while True:
            mirrored = await rig.client.redis.hkeys(keys.progress(SHARED.id))
            known = (await journal.recover(rig.client.redis, SHARED.id)).state.streams
            if str(stream).encode() not in mirrored and str(stream) not in known:
                return
            await asyncio.sleep(0.05)


# -- they leave ----------------------------------------------------------------------------------------------


async def test_what_is_consumed_and_trimmed_leaves_and_stays_forgotten(rig: Rig) -> None:
    await two_generations(rig)
    await rig.client.groups.declare(SHARED, "earliest")
    retainer = rig.retainer()
    assert await rounds(rig, retainer) == []
    assert await everything(rig, 10) == [*range(6), *range(4)]
    assert await rounds(rig, retainer) == [("s", 0)]
    assert await generations(rig) == [1]
    for _ in range(3):
        await rig.leave()  # another leader each time
        await rig.publish(2)
        assert await everything(rig, 2) == [0, 1]
        await no_field_of(rig, OLD)
        assert await rounds(rig, retainer) == []
    assert await generations(rig) == [1]


async def test_hosts_forget_by_themselves(rig: Rig) -> None:
    await rig.space(Retention(), 0)
    for _ in range(4):  # nothing was ever published: even a space that keeps everything needs none of them
        await rig.client.spaces.generations.alter("s", rotate=True)
    host = LeaderHost(rig.client.redis, HostConfig(retention_interval=0.05, registered=False))
    await host.start()
    try:
        async with asyncio.timeout(30):
            # The definition changes first; the keys go after that, by another host if this one ends between.
            while (  # noqa: ASYNC110 (conditions in Redis)
                await generations(rig) != [4] or await rig.client.redis.keys("sl:{s.[0-3].*")
            ):
                await asyncio.sleep(0.02)
        assert host.failure is None
        assert await rig.client.redis.keys("sl:{s.4.*") != [], "the newest generation stays"
    finally:
        await host.close()


async def test_a_group_that_is_behind_keeps_a_generation_and_an_expired_one_does_not(rig: Rig) -> None:
    await two_generations(rig)
    assert await everything(rig, 3) == [0, 1, 2]
    await rig.leave()
    retainer = rig.retainer()
    assert await rounds(rig, retainer) == []
    assert await generations(rig) == [0, 1]
    await rig.age(8 * 86_400_000)
    assert await rounds(rig, retainer) == [("s", 0)]
    # It comes back to what is left, and its journal says what happened.
    assert await everything(rig, 1) == [3]
    await no_field_of(rig, OLD)
    assert (await journal.recover(rig.client.redis, SHARED.id)).state.expired_at is None


async def test_a_space_that_keeps_everything_keeps_its_generations(rig: Rig) -> None:
    await rig.space(Retention(), 3)
    await rig.client.spaces.generations.alter("s", rotate=True)
    await rig.publish(3)
    assert await rounds(rig, rig.retainer()) == []
    assert await generations(rig) == [0, 1]


async def test_what_a_named_publisher_may_repeat_is_remembered_for_a_week(rig: Rig) -> None:
    await rig.space(LAST_ONE, 0)
    transfer = Transfer(rig.client.redis, "import:night", space="s")
    items = [Item((1, number), "a/b", b"%d" % number) for number in range(5)]
    assert await transfer.put(items) == 5
    await rig.client.spaces.generations.alter("s", streams=2)
    await rig.publish(3)
    retainer = rig.retainer()
    assert await rounds(rig, retainer) == []
    assert await Transfer(rig.client.redis, "import:night", space="s").put(items) == 0
    record = (await rig.client.redis.hget(stream_publishers(OLD), "import:night")).split()
    week = await server_time(rig.client.redis) - 8 * 86_400_000_000
    await rig.client.redis.hset(stream_publishers(OLD), "import:night", b" ".join(record[:4]) + b" %d" % week)
    assert await rounds(rig, retainer) == [("s", 0)]


async def test_a_history_from_before_a_dropped_generation_is_truncated(rig: Rig) -> None:
    await rig.space(Retention(messages=2), 3)
    last = (await AsyncLog(rig.client.redis).states([OLD]))[OLD].last_append
    await rig.client.spaces.generations.alter("s", streams=2)
    await rig.publish(2)
    assert await rounds(rig, rig.retainer()) == [("s", 0)]
    for back in (1, 1_000_000):
        with pytest.raises(HistoryTruncated):
            await rig.client.history("a/#", since=EPOCH + (last - back) * MICROSECOND).__aenter__()
    async with rig.client.history("a/#", since=EPOCH + last * MICROSECOND) as batches:
        assert [message.payload async for batch in batches for message in batch.messages] == [b"0", b"1"]


# -- the defects of others -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_leader_lives_through_the_end_of_a_stream_that_vanishes(rig: Rig) -> None:
    """EMQX 5: the stream is deleted at its end and looked up once more, and the leader crashes for ever."""
    await two_generations(rig, 3, 2)
    async with rig.client.subscribe(SUB, start="earliest", max_batch=1) as reader, asyncio.timeout(60):
        got = []
        for _ in range(3):
            batch = await anext(reader)
            got.append(int(batch.messages[0].payload))
            if len(got) == 3:
                await rig.client.spaces.generations.drop("s", 0)  # as an operator may, at the worst moment
            (outcome,) = await asyncio.gather(batch.commit(), return_exceptions=True)
            assert outcome is None or (len(got) == 3 and isinstance(outcome, Fenced)), outcome
        term = (await leadership.read(rig.client.redis, SHARED.id)).term
        for _ in range(2):
            batch = await anext(reader)
            got.append(int(batch.messages[0].payload))
            await batch.commit()
        assert got == [0, 1, 2, 0, 1]
        assert (await leadership.read(rig.client.redis, SHARED.id)).term == term
    await no_field_of(rig, OLD)


@pytest.mark.slow
async def test_the_newest_finished_generation_is_not_replayed(make_redis_server: MakeServer) -> None:
    """EMQX 5: the replayed streams of the newest finished generation are forgotten, and added from the start.
    And: after a restart of the node, streams at their end are granted again."""
    server = make_redis_server("redis7", persistent=True)
    async with connect(server.url) as client:
        rig = Rig(client)
        await rig.space(Retention(), 5)
        await client.spaces.generations.alter("s", streams=2)
        await client.spaces.generations.alter("s", streams=3)
        assert await everything(rig, 5) == [0, 1, 2, 3, 4]
    for number in range(3):
        server.restart()
        async with connect(server.url) as client:
            rig = Rig(client)
            async with client.subscribe(SUB, start="earliest") as reader, client.publisher() as publisher:
                await publisher.send("a/b", b"%d" % number)
                async with asyncio.timeout(60):
                    batch = await anext(reader)
                assert [int(message.payload) for message in batch.messages] == [number]
                await batch.commit()
                assert {StreamId.parse(stream).generation for stream in reader.streams} == {2}
            state = (await journal.recover(client.redis, SHARED.id)).state
            former = {s: p for s, p in state.streams.items() if StreamId.parse(s).generation < 2}
            assert len(former) == 3
            assert all(p.finished and p.owner is None for p in former.values())


# -- races ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "moment"), [(DefinitionTable, "write"), (Generations, "unmake")])
async def test_a_group_that_arrives_while_a_generation_is_dropped(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, part: type, moment: str
) -> None:
    await rig.space(LAST_ONE, 4)
    await rig.client.spaces.generations.alter("s", streams=2)
    await rig.publish(3)
    retainer = rig.retainer()
    real = getattr(part, moment)
    arrived: list[SharedSubscription] = []

    async def interrupted(own: Any, *args: Any) -> Any:
        if not arrived:
            arrived.append(SHARED)
            await rig.client.groups.declare(SHARED, "earliest")
            listing = await rig.client.groups.starts(await rig.client.groups.get(SHARED))
            assert set(listing) >= {"s.1.0", "s.1.1"}
        return await real(own, *args)

    await retainer.round()
    await retainer.round()
    monkeypatch.setattr(part, moment, interrupted)
    assert await rounds(rig, retainer) == [("s", 0)]
    assert arrived
    assert await everything(rig, 1) == [2]
    await no_field_of(rig, OLD)
    await rig.publish(1)
    assert await everything(rig, 1) == [0]


@pytest.mark.slow
async def test_a_group_that_returns_while_it_expires_is_told_what_is_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.space(LAST_ONE, 10)
    assert await rig.consume(2) == [0, 1]
    await rig.leave()
    await rig.age(8 * 86_400_000)
    retainer = rig.retainer()
    real = Retainer._trim

    async def late(self: Retainer, *args: Any) -> Any:
        # It comes back after the host has let it go, and reads the floors before they are raised.
        assert await rig.consume(1) == [2]
        await self.close()
        assert await self._claim.get()
        return await real(self, *args)

    monkeypatch.setattr(Retainer, "_trim", late)
    done = await retainer.round()
    monkeypatch.undo()
    assert (done.expired, done.passed, await rig.floor()) == ([SHARED], [SHARED], 9)
    async with asyncio.timeout(30):
        while True:  # a leader that has not looked yet grants the old place, and the reader says so
            try:
                assert await rig.consume(1) == [9]
                break
            except HistoryTruncated as error:
                assert (error.asked, error.oldest) == (3, 9)
    state = (await journal.recover(rig.client.redis, SHARED.id)).state
    assert state.streams[str(OLD)].truncated == 6


# -- crashes -------------------------------------------------------------------------------------------------

ACTS = {
    "alter": lambda spaces: spaces.generations.alter("s", streams=5, expected=1),
    "seal": lambda spaces: spaces.generations.seal("s"),
    "drop": lambda spaces: spaces.generations.drop("s", 0),
}


@pytest.mark.parametrize("act", ACTS)
async def test_a_round_finishes_what_a_crash_left_half_done(
    embedded_redis_url: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0
    async with connect(embedded_redis_url) as client:
        for step in range(40):
            await client.redis.flushall()
            client.spaces.forget()
            rig = Rig(client)
            await rig.space(Retention(), 3)
            await client.spaces.generations.alter("s", streams=2)
            await rig.publish(3)
            with crash_after(step, "all", monkeypatch) as done:
                try:
                    await ACTS[act](SpaceStore(client.redis))
                except (StoreUnavailable, Indefinite):
                    crashes += 1
                finished = done[0] <= step
            retainer = rig.retainer()
            await retainer.round()
            await retainer.close()
            space = await client.spaces.get("s")
            assert space.settled
            known = await states(client.redis, space)
            assert known.pop(space.newest.number) == ({"sealed"} if space.ended else {"open"})
            assert all(state == {"sealed"} for state in known.values())
            if len(space.generations) == 1:
                assert await client.redis.keys("sl:{s.0.*") == []
            if finished:
                break
        else:
            pytest.fail("the command never came to its end")
    assert crashes >= 3


async def test_a_space_deleted_in_the_middle_does_no_harm(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await two_generations(rig)
    retainer = rig.retainer()
    await retainer.round()
    await retainer.round()

    async def gone(*_: Any) -> None:
        raise UnknownSpace("there is no space 's'")

    monkeypatch.setattr(Generations, "drop", gone)
    assert await rounds(rig, retainer) == []


# -- what is spent, without Redis ----------------------------------------------------------------------------


def space(*sizes: int) -> Space:
    last = len(sizes) - 1
    many = tuple(Generation(number=n, streams=size, sealed=n < last) for n, size in enumerate(sizes))
    return Space(name="s", topics=("a/#",), generations=many)


def stream_state(next: int, floor: int, sealed: bool = True) -> LogState:
    return LogState(Extent(floor, next), sealed, 0)


def group(need: int, *, expired: bool = False, begun: bool = True) -> GroupProgress:
    return GroupProgress(
        SHARED, {OLD: need}, 0, 1 if expired else None, begun=frozenset([OLD] if begun else [])
    )


def test_the_newest_generation_is_never_spent() -> None:
    assert spent(space(1), {OLD: stream_state(0, 0)}, []) == []


@pytest.mark.parametrize(
    ("state", "groups", "gone"),
    [
        (stream_state(5, 5), [], True),
        (stream_state(0, 0), [], True),
        (None, [], True),
        (stream_state(5, 5, sealed=False), [], False),
        (stream_state(5, 4), [], False),
        (stream_state(5, 5), [group(5)], True),
        (stream_state(5, 5), [group(4)], False),
        (stream_state(5, 5), [group(4), group(5)], False),
        (stream_state(5, 5), [group(4, expired=True)], True),
        (stream_state(5, 5), [group(0, begun=False)], True),
    ],
)
def test_what_is_spent(state: LogState | None, groups: list[GroupProgress], gone: bool) -> None:
    known = {} if state is None else {OLD: state}
    assert [one.number for one in spent(space(1, 2), known, groups)] == ([0] if gone else [])


def test_generations_leave_from_the_oldest_on() -> None:
    empty, full = stream_state(3, 3), stream_state(3, 1)
    known = {OLD: full, NEW: empty}
    assert spent(space(1, 1, 1), known, []) == []
    assert [one.number for one in spent(space(1, 1, 1), {OLD: empty, NEW: empty}, [])] == [0, 1]
