"""Snapshots of collections: with what is behind them they are all changes, whatever died."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import Client
from streamlease.hosts.forgetting import spent
from streamlease.hosts.snapshot_maker import LEAST_CHANGES, SnapshotMaker, is_due
from streamlease.hosts.trimming import Retainer
from streamlease.protocol.errors import HistoryTruncated, NotDurable
from streamlease.protocol.ids import StreamId
from streamlease.streams.collections import change_reading, snapshots
from streamlease.streams.collections.core.multiset import Item
from streamlease.streams.collections.core.tables import taken_in
from streamlease.streams.collections.snapshots import StoredSnapshot, make_snapshot, newest_snapshots
from streamlease.streams.log.keys import snapshot_entries, snapshot_state, stream_log
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import ask
from streamlease.streams.redis.durability import Durability
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.spaces.retention import Newer, Retention, Trim, trim
from streamlease.streams.spaces.spaces import Space
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.memory.memory_server import MemoryServer
from tests.collections.test_collection import item, send, settled, soon
from tests.epochs.playing import kept

STREAM = StreamId("prices", 0, 0)


async def collection(client: Client, **options: object) -> Space:
    return await client.create_space("prices", ["prices/#"], collection=True, **options)  # type: ignore[arg-type]


async def snap(client: Client, space: Space, upto: int, stream: StreamId = STREAM) -> StoredSnapshot | None:
    former = (await newest_snapshots(client.redis, [stream]))[stream]
    return await make_snapshot(client.redis, space, stream, upto, former)


async def items_of(client: Client) -> dict[Item, int]:
    async with client.collection("#") as found:
        return found.items


@pytest.mark.slow
async def test_at_every_point_a_snapshot_and_what_is_behind_it_are_all_changes(client: Client) -> None:
    """Invariant 14, with each snapshot made of the one before, and all below it removed."""
    space = await collection(client)
    chance, sums = random.Random(7), Counter[Item]()
    for end in range(1, 25):
        payload, diff = b"%d" % chance.randrange(3), chance.choice([1, -1, 2, -2])
        sums[item(payload)] += diff
        await send(client, (payload, diff))
        expected = {one: count for one, count in sums.items() if count}
        assert await items_of(client) == expected
        if chance.random() < 0.5:
            upto = chance.randint((await newest_snapshots(client.redis, [STREAM]))[STREAM].upto, end)
            made = await snap(client, space, upto)
            assert made is not None and made.upto == upto
            await trim(client.redis, Trim(STREAM, Retention(messages=1), upto))
            assert await items_of(client) == expected
    async with client.collection("prices/#") as prices:
        await send(client, (b"x", 4))
        assert (await soon(anext(prices))).diff == 4


async def test_a_snapshot_in_many_entries_with_all_that_items_may_be(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "ENTRY_BYTES", 200)
    space = await collection(client)
    async with client.publisher() as pub:
        for number in range(300):
            await pub.submit("prices/a", b"%d" % (number % 150), key=b"k" if number % 3 else None, diff=3)
        await pub.submit("prices/$b", b"\xff\x00")
    before = await items_of(client)
    made = await snap(client, space, 301)
    assert made is not None and made.entries > snapshots.AT_ONCE and made.messages == len(before)
    await client.redis.delete(stream_log(STREAM))
    assert await items_of(client) == before
    async with client.collection("prices/$b") as prices:
        assert prices.items == {item(b"\xff\x00", topic="prices/$b"): 1}


@pytest.mark.slow
async def test_of_a_large_snapshot_only_a_part_is_in_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of many changes only some are taken in at once."""
    monkeypatch.setattr(snapshots, "ENTRY_BYTES", 300)
    monkeypatch.setattr(snapshots, "PAGE_BYTES", 1000)
    monkeypatch.setattr(snapshots, "CHANGES_BYTES", 2000)
    monkeypatch.setattr(change_reading, "READ_BYTES", 2000)
    monkeypatch.setattr(snapshots, "AT_ONCE", 2)
    most = {"page": 0, "changes": 0}

    def noted(page: pa.Table, changes: pa.Table) -> tuple[pa.Table, pa.Table]:
        most["page"] = max(most["page"], page.num_rows)
        most["changes"] = max(most["changes"], changes.num_rows)
        return taken_in(page, changes)

    monkeypatch.setattr(snapshots, "taken_in", noted)
    space, chance, sums = await collection(client), random.Random(3), Counter[Item]()
    for _ in range(40):
        changes = [(b"%05d" % chance.randrange(700), chance.choice([1, 1, -1])) for _ in range(50)]
        for payload, diff in changes:
            sums[item(payload)] += diff
        await send(client, *changes)
    made = [await snap(client, space, 2000)]
    while (newest := made[-1]) is not None and newest.upto < 2000:
        made.append(await snap(client, space, 2000))
    assert len(made) > 3
    expected = {one: count for one, count in sums.items() if count}
    assert newest is not None and newest.messages == len(expected) > 2 * most["page"] > 0
    assert 0 < most["changes"] < 200
    await trim(client.redis, Trim(STREAM, Retention(messages=1), 2000))
    assert await items_of(client) == expected


async def test_a_snapshot_of_what_a_failover_has_replaced_is_not_taken(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await collection(client)
    await send(client, (b"kept", 1))
    await send(client, (b"lost", 1))
    real = snapshots._changes

    async def read_and_failed_over(*args: Any) -> Any:
        found = await real(*args)
        (first, last) = (await ask(client.redis, [("XRANGE", stream_log(STREAM), "-", "+")]))[0]
        other = [b"a", b"%d" % (int(last[1][1]) + 5), *last[1][2:]]
        adding = [("XADD", stream_log(STREAM), id, *fields) for id, fields in (first, (last[0], other))]
        await ask(client.redis, [("DEL", stream_log(STREAM)), *adding])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "_changes", read_and_failed_over)
        assert await snap(client, space, 2) is None
    assert (await newest_snapshots(client.redis, [STREAM]))[STREAM].number == 0
    made = await snap(client, space, 2)
    assert made is not None and made.messages == 2


async def test_a_snapshot_counts_as_made_once_it_is_as_durable_as_the_space(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await collection(client)
    await send(client, (b"x", 1))
    demands = space.model_copy(update={"durability": "replicated:3"})
    asked: list[list[Durability]] = []

    async def unconfirmed(redis: Any, call: Any, choices: list[Durability]) -> Any:
        asked.append(choices)
        return (await run_durably(redis, call, []))[0], "no replica has it"

    monkeypatch.setattr(snapshots, "run_durably", unconfirmed)
    with pytest.raises(
        NotDurable, match=r"the snapshot of stream prices\.0\.0 up to 1 is there, and not durable yet"
    ):
        await snap(client, demands, 1)
    assert asked == [[Durability.parse("replicated:3")]]


async def test_no_failover_keeps_a_trim_and_loses_the_snapshot_above_it() -> None:
    """A replica has the writes of a server in their order, so a WAIT between the two would add nothing."""
    took, lost = 1, 0
    while lost <= took:
        ticks = count(1_000_000_000)
        server = MemoryServer(lambda ticks=ticks: next(ticks) / 1000, replicated=True)  # type: ignore[misc]
        client = connect(server, embedded=False)
        space = await collection(client)
        await send(client, (b"x", 2), (b"y", 1), (b"x", -1))
        await ask(client.redis, [("WAIT", 1, 100)])
        began = server.now()
        assert await snap(client, space, 2) is not None
        await trim(client.redis, Trim(STREAM, Retention(messages=1), 2))
        took = server.now() - began
        server.fail_over(lost)
        assert await items_of(client) == {item(b"x"): 1, item(b"y"): 1}
        await client.close()
        lost += 1
    assert took > 5


async def test_of_two_makers_one_is_the_first(client: Client) -> None:
    space = await collection(client)
    await send(client, (b"x", 1), (b"y", 1))
    none = StoredSnapshot()
    first = await make_snapshot(client.redis, space, STREAM, 1, none)
    assert first is not None
    assert await make_snapshot(client.redis, space, STREAM, 2, none) is None
    assert (await newest_snapshots(client.redis, [STREAM]))[STREAM] == first
    names = await client.redis.keys("sl:*:snapshot:*")
    assert names == [snapshot_entries(STREAM, first.token).encode()]


async def test_a_maker_that_dies_anywhere_leaves_what_was_there(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await collection(client)
    await send(client, (b"x", 1), (b"y", 1))
    first = await snap(client, space, 1)
    assert first is not None
    assert await client.redis.ttl(snapshot_entries(STREAM, first.token)) == -1

    class Killed(BaseException):
        pass

    async def die(*_: object) -> None:
        raise Killed

    for where, name in ((snapshots._Parts, "add"), (snapshots, "run_durably")):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, die)
            with pytest.raises(Killed):
                await snap(client, space, 2)
        assert (await newest_snapshots(client.redis, [STREAM]))[STREAM] == first
        assert await items_of(client) == {item(b"x"): 1, item(b"y"): 1}
    left = {*await client.redis.keys("sl:*:snapshot:*")} - {snapshot_entries(STREAM, first.token).encode()}
    assert len(left) == 1  # written and not taken: it goes by itself
    assert 0 < await client.redis.ttl(left.pop()) <= snapshots.UNFINISHED_SECONDS
    second = await snap(client, space, 2)
    assert second is not None and second.number == 2
    assert 0 < await client.redis.ttl(snapshot_entries(STREAM, first.token)) <= snapshots.FORMER_SECONDS


async def test_what_redis_lost_is_told_to_who_reads_the_snapshot(client: Client) -> None:
    space = await collection(client)
    for payload in (b"x", b"y", b"z"):
        await send(client, (payload, 1))
    entries = await client.redis.xrange(stream_log(STREAM))
    await client.redis.xdel(stream_log(STREAM), entries[1][0])
    made = await snap(client, space, 3)
    assert made is not None and made.lost == ((1, 2),)
    again = await snap(client, space, 3)
    assert again is not None and again.lost == ((1, 2),)
    async with client.collection("prices/#") as prices:
        assert prices.items == {item(b"x"): 1, item(b"z"): 1}
        with pytest.raises(MissingOffsets):
            await soon(anext(prices))


def clock() -> int:
    return 0


async def test_retention_never_passes_the_newest_snapshot(client: Client) -> None:
    await collection(client, retention=Retention(messages=1, force=True))
    await send(client, *((b"%d" % n, 1) for n in range(10)))
    retainer = Retainer(client.redis, "host", clock)
    assert (await retainer.round()).trimmed == []
    async with client.publisher() as pub:
        await pub.send_many("prices/a", [b"same"] * LEAST_CHANGES)
    maker = SnapshotMaker(client.redis, "host", clock)
    assert await maker.round() == [STREAM]
    before = await items_of(client)
    assert (await maker.round()) == []
    await send(client, (b"last", 1))
    await retainer.round()
    stored = (await newest_snapshots(client.redis, [STREAM]))[STREAM]
    state = (await AsyncLog(client.redis).states([STREAM]))[STREAM]
    assert 0 < state.floor <= stored.upto
    assert await items_of(client) == before | {item(b"last"): 1}
    with pytest.raises(HistoryTruncated):
        async with client.collection("prices/#", start={str(STREAM): 0}):
            pass
    await retainer.close()
    await maker.close()


async def test_a_snapshot_is_due_when_there_are_half_as_many_changes_as_items() -> None:
    assert not is_due(StoredSnapshot(), LEAST_CHANGES - 1)
    assert is_due(StoredSnapshot(), LEAST_CHANGES)
    large = StoredSnapshot(1, 100, "t", 10_000, 1)
    assert not is_due(large, 5099) and is_due(large, 5100)


async def test_former_generations_of_a_collection_stay(client: Client) -> None:
    await collection(client, streams=1)
    await send(client, (b"x", 1))
    await client.spaces.generations.alter("prices", streams=2)
    space = await client.spaces.get("prices")
    assert await snap(client, space, 1) is not None
    await trim(client.redis, Trim(STREAM, Retention(messages=1), 1, newer=Newer(messages=10)))
    states = await AsyncLog(client.redis).states(space.streams())
    assert states[STREAM].floor == states[STREAM].next
    assert spent(space, states, []) == []
    assert spent(space.model_copy(update={"collection": False}), states, []) != []
    assert await items_of(client) == {item(b"x"): 1}


async def test_a_space_that_is_deleted_takes_its_snapshots_with_it(client: Client) -> None:
    space = await collection(client)
    await send(client, (b"x", 1))
    assert await snap(client, space, 1) is not None
    assert await client.redis.exists(snapshot_state(STREAM))
    await client.spaces.delete("prices")
    assert await client.redis.keys("sl:{prices*") == []


@pytest.mark.slow
async def test_with_epochs_and_a_schema(client: Client) -> None:
    schema = {"columns": [{"name": "n", "type": "int64"}]}
    await client.create_space("space", ["space/#"], streams=3, epochs=1, collection=True, schema=schema)
    keeper = await kept(client)
    maker = SnapshotMaker(client.redis, "host", clock)
    async with client.epoch_publisher("space", "one") as pub:
        topics = [f"space/{n % 7}" for n in range(6 * LEAST_CHANGES)]
        rows = [{"n": n % 5} for n in range(6 * LEAST_CHANGES)]
        await pub.send_many(topics, rows, epoch=0)
        await pub.advance(1)
        await settled(keeper)
        await pub.send("space/0", {"n": 1}, diff=5, epoch=1)
        before = await items_of(client)
        assert await maker.round() != []
        assert await items_of(client) == before and sum(before.values()) == 6 * LEAST_CHANGES
        await pub.advance(2)
        await settled(keeper)
        after = await items_of(client)
        assert sum(after.values()) == 6 * LEAST_CHANGES + 5
    await maker.close()
