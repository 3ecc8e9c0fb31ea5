"""Eager subscriptions on every kind of server: data as it is staged, aborts, and the frontier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.epochs.epoch_items import EpochBatch
from streamlease.agent.epochs.epoch_reading import EpochSubscription
from streamlease.protocol.errors import InvalidOption, SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys, staged_reading
from streamlease.streams.epochs.beginning import Before
from streamlease.streams.epochs.boundary_reading import EpochsLost, FollowedSpace, PartsLost
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.epochs.staged_reading import StagedLogs
from streamlease.streams.epochs.writing import lose
from streamlease.streams.redis.connection import ask
from streamlease.testing.memory.memory_connection import connect as connect_in_memory
from streamlease.testing.memory.memory_server import MemoryServer
from tests.epochs.playing import SECONDS, everything, hand, kept, shown, some

ALL = "space/#"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with connect(redis_url, embedded=False) as client:
        await client.create_space("space", ["space/#"], streams=3, epochs=1)
        yield client


async def settled(keeper: Keeper) -> None:
    while await keeper.turn():
        pass


async def until_frontier(items: EpochSubscription, *lower: int) -> list[Any]:
    """All items up to the one that says so."""
    found: list[Any] = []
    async with asyncio.timeout(SECONDS):
        while not found or found[-1][:2] != ("frontier", [(one,) for one in lower]):
            found.append(shown(await anext(items)))
    return found


@pytest.mark.slow
async def test_data_comes_before_its_epoch_completes(client: Client) -> None:
    a, keeper = await hand(client.redis), await kept(client)
    async with client.listen(ALL, epochs="eager") as eager:
        assert await some(eager, 1) == [("snapshot", [(0,)], [])]
        await a.send(0, "x")
        assert await some(eager, 1) == [((0,), "a", ["x"])]
        await a.send(2, "y", shard=1)
        assert await some(eager, 1) == [((2,), "a", ["y"])]
        await a.advance(1)
        await settled(keeper)
        assert await some(eager, 1) == [("frontier", [(1,)], {(0,): -1, (1,): 1})]
        await a.advance(3)
        await settled(keeper)
        assert await some(eager, 1) == [("frontier", [(3,)], {(1,): -1, (3,): 1})]


async def test_who_comes_late_sees_nothing_of_what_was_active(client: Client) -> None:
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    await a.send(3, "a3")
    await b.send(5, "b5", shard=2)
    async with client.listen(ALL, epochs="eager") as eager:
        assert await some(eager, 1) == [("snapshot", [(0,)], [(5,)])]
        for epoch in (4, 5, 6):
            await a.send(epoch, f"a{epoch}")
        assert await some(eager, 1) == [((6,), "a", ["a6"])]
        await a.advance(6)
        await b.advance(6)
        await settled(keeper)
        assert await some(eager, 1) == [("frontier", [(6,)], {(0,): -1, (6,): 1})]
        await a.advance(7)
        await b.advance(9)
        await settled(keeper)
        assert await some(eager, 1) == [("frontier", [(7,)], {(6,): -1, (7,): 1})]


async def test_what_was_moved_unseen_is_read_from_the_streams(client: Client) -> None:
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await b.send(1, "seen")
        assert await some(eager, 1) == [((1,), "b", ["seen"])]
        await a.send(1, "a1", "other")
        await a.send(1, "none", topic="space/elsewhere")
        await b.send(1, "b1")
        await a.advance(2)
        await b.advance(2)
        await settled(keeper)
        found = await until_frontier(eager, 2)
        assert found[:-1] == [((1,), "a", ["a1", "other", "none"]), ((1,), "b", ["b1"])]


@pytest.mark.slow
async def test_nothing_twice_and_nothing_lost_however_it_falls(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_reading, "COUNT", 2)
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    async with (
        client.listen(ALL, epochs="eager") as eager,
        client.listen(ALL, start="earliest", epochs="eager") as earliest,
    ):
        (first,) = await some(eager, 1)
        assert first[0] == "snapshot"
        one = asyncio.create_task(until_frontier(eager, 20))
        two = asyncio.create_task(until_frontier(earliest, 20))
        for epoch in range(20):
            await asyncio.gather(
                a.send(epoch, *(f"a{epoch}.{n}" for n in range(5)), shard=epoch % 3),
                b.send(epoch, f"b{epoch}", shard=(epoch + 1) % 3),
            )
            await asyncio.gather(a.advance(epoch + 1), b.advance(epoch + 1), settled(keeper))
        await settled(keeper)
        wanted = sorted(
            [f"a{epoch}.{n}" for epoch in range(20) for n in range(5)] + [f"b{epoch}" for epoch in range(20)]
        )
        for task in (one, two):
            found = await task
            texts = [text for item in found if isinstance(item[0], tuple) for text in item[2]]
            assert sorted(texts) == wanted
            open_from = 0
            for item in found:
                if item[0] == "frontier":
                    ((open_from,),) = item[1]
                else:
                    assert item[0][0] >= open_from, "behind its end"
    assert (
        sum(
            len(item[1])
            for item in await everything(client.history(ALL, epochs="atomic"))
            if item[0] != "frontier"
        )
        == 120
    )


@pytest.mark.slow
async def test_aborts_are_told(client: Client) -> None:
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await a.send(0, "kept")
        await a.advance(1)
        await a.send(1, "dropped")
        await b.send(1, "b1")
        assert sorted(await some(eager, 3)) == [
            ((0,), "a", ["kept"]),
            ((1,), "a", ["dropped"]),
            ((1,), "b", ["b1"]),
        ]
        await lose(client.redis, "space", "a", 1, "silent")
        await b.advance(2)
        await settled(keeper)
        assert await until_frontier(eager, 2) == [
            ("aborted", "a", 1, [(1,)]),
            ("frontier", [(2,)], {(0,): -1, (2,): 1}),
        ]
    assert [item[1] for item in await everything(client.history(ALL, epochs="atomic"))][:2] == [
        ["kept"],
        ["b1"],
    ]


async def test_nothing_of_what_was_aborted_comes_behind_the_abort(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that does not know that it was given up stages on, until the keeper fences it."""
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    removed, sent = Keeper._remove, asyncio.Event()

    async def remove(self: Keeper, wanted: Mapping[StreamId, Sequence[bytes]], name: str, fence: int) -> None:
        if not sent.is_set():
            sent.set()
            await a.send(2, "late")
        await removed(self, wanted, name, fence)

    monkeypatch.setattr(Keeper, "_remove", remove)
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await a.send(1, "dropped")
        assert await some(eager, 1) == [((1,), "a", ["dropped"])]
        await lose(client.redis, "space", "a", 1, "operator")
        await b.advance(1)
        await settled(keeper)
        assert sent.is_set()
        found = await until_frontier(eager, 1)
        assert found[-2] == ("aborted", "a", 1, [(0,)])
        await b.send(2, "b2")
        assert await some(eager, 1) == [((2,), "b", ["b2"])]


@pytest.mark.slow
async def test_who_comes_back_sends_again_under_another_incarnation(client: Client) -> None:
    old, keeper = await hand(client.redis, "a"), await kept(client)
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await old.send(0, "old")
        assert await some(eager, 1) == [((0,), "a", ["old"])]
        new = await hand(client.redis, "a")
        await new.send(0, "new")
        found = [await anext(eager)]
        await settled(keeper)
        found.append(await anext(eager))
        await new.advance(1)
        await settled(keeper)
        assert [shown(one) for one in found] == [((0,), "a", ["new"]), ("aborted", "a", 1, [(0,)])]
        assert isinstance(found[0], EpochBatch)
        assert found[0].incarnation == 2, "so whoever drops what was aborted keeps it"
        assert [message.offset for message in found[0].messages] == [-1]
        assert await until_frontier(eager, 1) == [("frontier", [(1,)], {(0,): -1, (1,): 1})]


async def test_what_nobody_named_is_of_no_epoch(client: Client) -> None:
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await a.send(0, "named")
        await a.advance(1)
        await b.advance(1)
        await settled(keeper)
        await until_frontier(eager, 1)
        # Its publisher had no answer, and so does not name it; here long after the epoch.
        await a.send(0, "orphan")
        await a.send(1, "more")
        assert await some(eager, 1) == [((1,), "a", ["more"])]


@pytest.mark.slow
async def test_two_spaces_are_one_frontier(client: Client) -> None:
    await client.create_space("other", ["other/#"], streams=1, epochs=1)
    a, b = await hand(client.redis, "a"), await hand(client.redis, "b", "other")
    one, two = await kept(client), await kept(client, "other")
    async with client.listen("#", epochs="eager") as both:
        assert await some(both, 1) == [("snapshot", [(0,)], [])]
        await a.send(0, "a0")
        await b.send(1, "b1")
        assert sorted(await some(both, 2)) == [((0,), "a", ["a0"]), ((1,), "b", ["b1"])]
        await b.advance(2)
        await settled(two)
        await a.advance(1)
        await settled(one)
        assert await some(both, 1) == [("frontier", [(1,)], {(0,): -1, (1,): 1})], "net changes only"


async def test_what_was_lost_while_it_was_staged_is_told(client: Client) -> None:
    a, keeper = await hand(client.redis), await kept(client)
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await a.send(0, "x", "y")
        await some(eager, 1)
        await ask(client.redis, [("XDEL", keys.staged_log(StreamId("space", 0, 0)), "0-1")])
        await a.advance(1)
        await settled(keeper)
        with pytest.raises(PartsLost, match="epoch 0 of publisher a lacks 1 of 2"):
            await until_frontier(eager, 1)
        await until_frontier(eager, 1)


@pytest.mark.slow
async def test_a_staged_log_that_was_rolled_back_is_noticed(client: Client) -> None:
    a = await hand(client.redis)
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await a.send(0, "x")
        await some(eager, 1)
        await ask(
            client.redis,
            [
                ("DEL", keys.staged_log(StreamId("space", 0, 0))),
                ("HSET", keys.staged_meta(StreamId("space", 0, 0)), "next", "0"),
            ],
        )
        with pytest.raises(EpochsLost, match="ends at 0, and was read up to 1"):
            await some(eager, 1)


async def test_a_damaged_entry_is_told(client: Client) -> None:
    log = keys.staged_log(StreamId("space", 0, 0))
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await ask(
            client.redis,
            [
                ("HSET", keys.staged_meta(StreamId("space", 0, 0)), "next", "1"),
                ("XADD", log, "0-1", "x", "y"),
            ],
        )
        with pytest.raises(SchemaMismatch, match="is damaged"):
            await some(eager, 1)


@pytest.mark.slow
async def test_one_that_breaks_off_harms_no_other(client: Client) -> None:
    """E11."""
    a, keeper = await hand(client.redis), await kept(client)
    async with client.listen(ALL, epochs="eager") as eager, client.listen(ALL, epochs="atomic") as atomic:
        await some(eager, 1)
        await some(atomic, 1)
        async with client.listen(ALL, epochs="eager") as other:
            await some(other, 1)
            await a.send(0, "x")
            assert await some(other, 1) == [((0,), "a", ["x"])]
        await a.advance(1)
        await settled(keeper)
        assert (await until_frontier(eager, 1))[0] == ((0,), "a", ["x"])
        assert (await until_frontier(atomic, 1))[0] == ((0,), ["x"])


async def test_history_has_only_whole_epochs(client: Client) -> None:
    with pytest.raises(InvalidOption, match="history ends at a boundary"):
        client.history(ALL, epochs="eager")  # type: ignore[call-overload]


async def test_who_was_handed_out_something_open_ends_when_redis_goes_on_with_other_data(
    client: Client,
) -> None:
    a = await hand(client.redis)
    async with client.listen(ALL, epochs="eager") as eager:
        await some(eager, 1)
        await ask(client.redis, [("HSET", keys.state("space"), "lineage", "one")])
        await a.send(2, "x")
        assert await some(eager, 1) == [((2,), "a", ["x"])]
        await ask(client.redis, [("HSET", keys.state("space"), "lineage", "another")])
        with pytest.raises(EpochsLost, match="failed over or was restarted"):
            await some(eager, 1)


def test_other_data_are_noticed_once_and_only_where_redis_tells() -> None:
    followed = FollowedSpace("space", Before(0, None, {}))
    seen = []
    for lineage in (None, b"one", b"one", b"two", b"two", None, b"two", b"three"):
        followed.taken([[b"0", lineage], []])
        seen.append(followed.has_failed_over)
    assert seen == [False, False, False, True, False, False, False, True]


async def test_what_is_staged_by_somebody_of_whom_redis_lost_that_he_entered_is_left_out(
    client: Client,
) -> None:
    """As after a failover: it becomes part of no epoch, and nobody would tell that it was aborted."""
    a, b, keeper = await hand(client.redis, "a"), await hand(client.redis, "b"), await kept(client)
    await settled(keeper)
    async with client.listen(ALL, start="earliest", epochs="eager") as eager:
        await ask(client.redis, [("HDEL", keys.writers("space"), "a")])
        await a.send(0, "void")
        await b.send(0, "b0")
        assert await some(eager, 1) == [((0,), "b", ["b0"])]
        again = await hand(client.redis, "a")
        await again.send(0, "a0", shard=1)
        await b.send(0, "b1", shard=2)
        found = sorted(await some(eager, 2))
        assert found == [((0,), "a", ["a0"]), ((0,), "b", ["b1"])]


async def test_what_is_staged_is_not_taken_where_a_failover_undid_its_abort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it came behind its abort: the boundary was read before the failover, what is staged after it."""
    ticks = count(1_000_000_000)
    server = MemoryServer(lambda: next(ticks) / 1000, replicated=True)
    read, aborted = StagedLogs.read, asyncio.Event()

    async def late(logs: StagedLogs, streams: Sequence[StreamId], spaces: Any) -> Any:
        if not aborted.is_set():
            return [], {*streams}
        monkeypatch.setattr(StagedLogs, "read", read)
        assert server.fail_over(10_000) > 0
        return await read(logs, streams, spaces)

    monkeypatch.setattr(StagedLogs, "read", late)
    async with connect_in_memory(server, embedded=False) as client:
        await client.create_space("space", ["space/#"], streams=1, epochs=1)
        one, keeper = await hand(client.redis, "one"), await kept(client)
        await settled(keeper)
        async with client.listen(ALL, epochs="eager") as eager:
            assert (await some(eager, 1))[0][0] == "snapshot"
            await one.send(1, "early")
            await ask(client.redis, [("WAIT", 1, 100)])
            await lose(client.redis, "space", "one", 1, "operator")
            await settled(keeper)
            assert (await some(eager, 1))[0][0] == "aborted"
            aborted.set()
            with pytest.raises(EpochsLost):
                while True:
                    assert (await some(eager, 1))[0][0] == "frontier"
