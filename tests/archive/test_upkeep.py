"""What leader hosts do by themselves; and archivers that are killed in the middle of it."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from streamlease.admin.facts.groups import summaries
from streamlease.admin.ui.board import Board
from streamlease.agent.client import Client
from streamlease.hosts import archiving
from streamlease.hosts.archiving import ArchiveUpkeep
from streamlease.hosts.signals.group_signals import read_signals
from streamlease.hosts.trimming import Retainer, in_memory
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.group_needs import GroupProgress
from streamlease.registry.groups import Groups
from streamlease.streams.archive.archiver import Archiver
from streamlease.streams.archive.checking import verify
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.archive.recording import recorded
from streamlease.streams.collections.snapshots import make_snapshot, newest_snapshots
from streamlease.streams.log.archived import files_commands, parse_files
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import Extent, LogState
from streamlease.streams.log.times import server_time, waiting
from streamlease.streams.redis.connection import (
    AsyncRedis,
    BlockingRedis,
    ask,
    connect_blocking,
    run_blocking,
)
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Generation, Space
from streamlease.streams.spaces.retention import NOTHING_NEWER, Newer, Retention
from streamlease.streams.spaces.retirement import retirable
from streamlease.streams.spaces.spaces import SpaceStore
from tests.archive.helpers import Clock, all_of, archive, in_table, publish, rows, same, space_of, trim_all


async def test_a_host_archives_what_has_waited_and_lets_it_go(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await client.create_space(
        "flights", ["flights/#"], streams=2, archive=ArchiveSettings.of(uri, keep_bytes=2000)
    )
    await publish(client, 0, 400)
    whole = await rows(client, space)
    clock = Clock()
    host, retainer = ArchiveUpkeep(client.redis, "host-a", clock), Retainer(client.redis, "host-a", clock)
    other = ArchiveUpkeep(client.redis, "host-b", clock)
    (done,) = await host.round()
    assert done.messages == 0, "they may wait for others"
    assert await other.round() == []
    clock.now += int(archiving.WAIT_SECONDS * 1000)
    (done,) = await host.round()
    assert done.messages == 400
    await retainer.round()
    states = await AsyncLog(client.redis).states(space.streams())
    assert sum(state.bytes for state in states.values()) <= 2000
    assert same(whole, await rows(client, space))
    await host.close()
    await publish(client, 400, 100)
    await other.round()
    clock.now += int(archiving.WAIT_SECONDS * 1000)
    (done,) = await other.round()
    assert done.messages == 100, "under a higher term"
    await other.close()
    await retainer.close()


async def test_a_damaged_number_of_one_archive_stops_no_other(
    client: Client, blocking: BlockingRedis, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the host, with all that it led, and then the next host."""
    bad = await client.create_space("bad", ["bad/#"], streams=1, archive=f"{uri}-bad")
    await space_of(client, uri)
    async with client.publisher() as publisher:
        await publisher.send("bad/a", b"x")
    await publish(client, 0, 100)
    key = stream_meta(bad.streams()[0])
    await ask(client.redis, [("HSET", key, "archive_term", b"\xff")])
    clock = Clock()
    host = ArchiveUpkeep(client.redis, "host-a", clock)
    await host.round()
    clock.now += int(archiving.WAIT_SECONDS * 1000)
    assert [done.messages for done in await host.round()] == [100]
    assert f"archive of space bad: key {key} holds b'\\xff', which is no number" in caplog.text
    await host.close()


async def test_what_groups_need_is_asked_only_where_retention_may_take_a_file(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await client.create_space(
        "flights", ["flights/#"], archive=ArchiveSettings.of(uri), retention=Retention(messages=300)
    )
    asked: list[str] = []
    needs = archiving.needs

    async def noted(redis: AsyncRedis, groups: Groups, spaces: Sequence[Space]) -> list[GroupProgress]:
        asked.extend(one.name for one in spaces)
        return await needs(redis, groups, spaces)

    monkeypatch.setattr(archiving, "needs", noted)
    clock = Clock()
    host = ArchiveUpkeep(client.redis, "host-a", clock)
    for first, files, wanted in ((0, 1, []), (200, 2, []), (400, 2, ["flights"])):
        await publish(client, first, 200)
        await host.round()
        clock.now += int(archiving.WAIT_SECONDS * 1000)
        await host.round()
        (known,) = recorded(blocking, space.streams()).values()
        assert (len(known.files), [*dict.fromkeys(asked)]) == (files, wanted)
    await host.close()


async def test_retention_rules_the_archive_and_waits_for_groups(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await client.create_space(
        "flights", ["flights/#"], archive=ArchiveSettings.of(uri), retention=Retention(messages=100)
    )
    (stream,) = space.streams()
    clock = Clock()
    host, retainer = ArchiveUpkeep(client.redis, "host-a", clock), Retainer(client.redis, "host-a", clock)
    shared = SharedSubscription.parse("$shared/g/flights/#")
    await client.groups.declare(shared, "earliest")
    for first in (0, 200):
        await publish(client, first, 200)
        await host.round()
        clock.now += int(archiving.WAIT_SECONDS * 1000)
        await host.round()
    await retainer.round()
    (known,) = recorded(blocking, [stream]).values()
    assert (known.exists, len(known.files)) == (0, 2), "the group needs it"
    assert known.state.memory.first == 300, "though not in memory"
    await client.groups.forget(shared)
    clock.now += int(archiving.PRUNE_SECONDS * 1000)
    await host.round()
    (known,) = recorded(blocking, [stream]).values()
    assert (known.exists, len(known.files)) == (200, 1), "files go as wholes"
    assert known.retired_at > 0
    await host.close()
    await retainer.close()


@pytest.mark.parametrize("limit", ["age", "bytes"])
async def test_an_archive_has_no_more_than_retention_lets_it(
    client: Client, blocking: BlockingRedis, uri: str, limit: str
) -> None:
    space = await client.create_space("flights", ["flights/#"], archive=ArchiveSettings.of(uri))
    (stream,) = space.streams()
    clock = Clock()
    host = ArchiveUpkeep(client.redis, "host-a", clock)
    for first in (0, 100, 200):
        await publish(client, first, 100)
        await host.round()
        clock.now += int(archiving.WAIT_SECONDS * 1000)
        await host.round()
    files = recorded(blocking, [stream])[stream].files
    assert len(files) == 3
    if limit == "age":
        # Older than what came when the second file was full, by the clock of Redis.
        seconds, micros = await client.redis.time()
        age = (seconds * 1_000_000 + micros - files[1].until) // 1000 - 1
        kept = Retention(age_ms=max(1, age))
    else:
        kept = Retention(bytes=files[2].size)
    await client.spaces.change("flights", lambda space: space.model_copy(update={"retention": kept}))
    clock.now += int(archiving.PRUNE_SECONDS * 1000)
    await host.round()
    known = recorded(blocking, [stream])[stream]
    assert not {*files[:2]} & {*known.files}
    assert known.exists >= 200
    if limit == "bytes":
        assert known.files == files[2:]
        assert [offset for _, offset in in_table(blocking, space)] == [*range(200, 300)]
    await host.close()


async def test_changes_of_a_collection_stay_until_they_are_in_a_snapshot(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await client.create_space(
        "flights",
        ["flights/#"],
        collection=True,
        archive=ArchiveSettings.of(uri),
        retention=Retention(messages=1, force=True),
    )
    (stream,) = space.streams()
    clock = Clock()
    host, retainer = ArchiveUpkeep(client.redis, "host-a", clock), Retainer(client.redis, "host-a", clock)

    async def changed(first: int) -> None:
        """A file with a hundred changes, and as little as retention lets stay in memory."""
        async with client.publisher() as publisher:
            for number in range(first, first + 100):
                await publisher.submit("flights/a", b"item %d" % (number % 10), diff=1)
        await host.round()
        clock.now += int(archiving.WAIT_SECONDS * 1000)
        await host.round()
        await retainer.round()

    async def counts() -> dict[bytes, int]:
        async with asyncio.timeout(30), client.collection("flights/#") as items:
            return {payload: count for (_, _, payload), count in items.items.items()}

    await changed(0)
    await changed(100)
    assert recorded(blocking, [stream])[stream].exists == 0, "the files are the only copy"
    assert await counts() == {b"item %d" % number: 20 for number in range(10)}
    stored = (await newest_snapshots(client.redis, [stream]))[stream]
    assert await make_snapshot(client.redis, space, stream, 100, stored) is not None
    await changed(200)
    known = recorded(blocking, [stream])[stream]
    assert (known.exists, len(known.files)) == (100, 2), "what is behind the snapshot stays"
    assert await counts() == {b"item %d" % number: 30 for number in range(10)}
    await host.close()
    await retainer.close()


async def test_a_former_generation_does_not_keep_its_last_messages(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await client.create_space(
        "flights", ["flights/#"], archive=ArchiveSettings.of(uri), retention=Retention(messages=100)
    )
    clock = Clock()
    host, retainer = ArchiveUpkeep(client.redis, "host-a", clock), Retainer(client.redis, "host-a", clock)
    (former,) = space.streams()
    for first in (0, 50):
        await publish(client, first, 50)
        await host.round()
        clock.now += int(archiving.WAIT_SECONDS * 1000)
        await host.round()
        if first == 0:
            await client.alter_space("flights", rotate=True)
    known = recorded(blocking, [former])[former]
    assert (known.exists, len(known.files)) == (0, 1), "both together are not too many"
    await publish(client, 100, 50)
    await host.round()
    clock.now += int(max(archiving.WAIT_SECONDS, archiving.PRUNE_SECONDS) * 1000)
    await host.round()
    await retainer.round()
    known = recorded(blocking, [former])[former]
    assert (known.exists, known.files, known.state.memory.first) == (50, [], 50)
    await host.close()
    await retainer.close()


def test_bytes_in_memory_are_those_of_the_whole_space() -> None:
    space = space_with(ArchiveSettings.of("/data/x", keep_bytes=100), Retention(age_ms=5000))
    alone = [NOTHING_NEWER] * 2
    assert in_memory(space, [150, 50], alone) == [
        Retention(age_ms=5000, bytes=75),
        Retention(age_ms=5000, bytes=25),
    ]
    assert in_memory(space, [10, 20], alone) == [Retention(age_ms=5000), Retention(age_ms=5000)]
    assert in_memory(space_with(ArchiveSettings.of("/data/x"), Retention()), [5], alone[:1]) == [None]


def test_what_follows_a_stream_counts_first() -> None:
    space = space_with(ArchiveSettings.of("/data/x"), Retention(bytes=100, messages=10))
    assert in_memory(space, [60, 50], [Newer(4, 70), Newer(4, 150)]) == [
        Retention(bytes=30, messages=10),
        Retention(bytes=1, messages=10),
    ]
    former, last = (StreamId("x", number, 0) for number in (0, 1))
    two = space.model_copy(
        update={"generations": tuple(Generation(number=number, streams=1) for number in (0, 1))}
    )
    files = [ArchivedFile(f"/{one}", 10 * one, 10 * one + 10, 40, "", one, one) for one in range(3)]

    def limits(retention: Retention, newest: int, later: list[ArchivedFile]) -> tuple[int, int]:
        held = {former: (files, state_of(30)), last: (later, state_of(newest))}
        kept = two.model_copy(update={"retention": retention})
        found = retirable(kept, held, now=1000)
        return found[former], found[last]

    assert limits(Retention(messages=15), 0, []) == (10, 0)
    assert limits(Retention(messages=15), 5, []) == (20, 0)
    assert limits(Retention(messages=15), 15, files[:1]) == (30, 0)
    assert limits(Retention(messages=15), 29, files[:2]) == (30, 10)
    assert limits(Retention(bytes=80), 0, []) == (10, 0)
    assert limits(Retention(bytes=80), 30, files[:1]) == (20, 0)
    assert limits(Retention(bytes=80), 30, files) == (30, 10)
    assert limits(Retention(age_ms=1), 30, files) == (0, 0)


def state_of(next: int) -> LogState:
    return LogState(Extent(next, next), sealed=False, last_append=0)


def space_with(archive: ArchiveSettings, retention: Retention) -> Space:
    generations = (Generation(number=0, streams=2),)
    return Space(name="x", topics=("x",), generations=generations, archive=archive, retention=retention)


WORKER = """
import sys
from tests.archive.test_upkeep import work
work(sys.argv[1])
"""


def work(url: str) -> None:
    """Archive again and again, and join files."""
    from streamlease.streams.archive import stream_pieces
    from streamlease.streams.archive.upkeep_steps import merge

    stream_pieces.FILE_BYTES = 10_000
    redis = connect_blocking(url)
    space = run_blocking(SpaceStore(redis).get("flights"))
    assert space.archive is not None
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while True:
        one = Archiver(redis, space, space.archive)
        one.run()
        merge(one)


async def test_archivers_that_are_killed_leave_no_gap_and_no_double(
    client: Client, blocking: BlockingRedis, uri: str, embedded_redis_url: str
) -> None:
    """Two at a time, of which one is killed, while what is archived leaves the memory and somebody reads."""
    space = await client.create_space("flights", ["flights/#"], streams=2, archive=ArchiveSettings.of(uri))
    random_times, published = random.Random(7), 0
    heard: list[tuple[str, int]] = []

    async def listen() -> None:
        async with client.listen("flights/#", start="earliest", max_batch=50) as batches:
            async for batch in batches:
                heard.extend((one.stream, one.offset) for one in batch.messages)

    async def begun() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, embedded_redis_url, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        return process

    listening = asyncio.create_task(listen())
    processes = [await begun()]
    try:
        for _ in range(3):
            processes.append(await begun())
            until = time.monotonic() + random_times.uniform(0.1, 1.0)
            while time.monotonic() < until:
                await publish(client, published, 100)
                published += 100
                await trim_all(client, space)
            killed = processes.pop(0)
            killed.kill()
            await killed.wait()
    finally:
        for process in processes:
            process.kill()
            await process.wait()
    assert space.archive is not None
    Archiver(blocking, space, space.archive).run()
    await trim_all(client, space)
    whole = await rows(client, space)
    assert sum(table.num_rows for table in whole.values()) == published
    assert all(table["offset"].to_pylist() == [*range(table.num_rows)] for table in whole.values())
    assert in_table(blocking, space) == all_of(whole)
    assert verify(blocking, space, space.archive).wrong == []
    async with asyncio.timeout(120):
        while len(heard) < published:
            assert not listening.done(), listening
            await asyncio.sleep(0.01)
    listening.cancel()
    assert sorted(heard) == all_of(whole)


def waits(seconds: float | None) -> float:
    assert seconds, "it is not known for how long it waits"
    return seconds


async def test_what_left_memory_for_the_archive_is_as_old_as_its_file_says(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    """Nobody consumes it: it is told how long it waits, at least; also when nothing is left in memory."""
    space = await space_of(client, uri, streams=1)
    group = SharedSubscription.parse("$shared/dead/flights/#")
    half = SharedSubscription.parse("$shared/half/flights/#")
    await client.groups.declare(group, "earliest")
    await client.groups.declare(half, "earliest", positions={"flights.0.0": 30})
    await publish(client, 0, 100)
    archive(blocking, space)
    for keep, first in ((1, 50), (0, 100)):
        await trim_all(client, space, keep=keep)
        (stream,) = space.streams()
        (state,) = (await AsyncLog(client.redis).states([stream])).values()
        assert (state.floor, state.memory.first) == (0, first)
        seen = await read_signals(client.redis, client.groups, client.spaces)
        files = parse_files(stream, await ask(client.redis, files_commands(stream, 0))).some
        now = await server_time(client.redis)
        assert [one.lag for one in seen] == [100, 70]
        exact, bound = (now / 1e6 - waits(one.lag_seconds) for one in seen)
        assert exact == pytest.approx(files[0].since / 1e6, abs=2.0)
        assert bound == pytest.approx(files[0].until / 1e6, abs=2.0)
        (listed, _), _ = await summaries(client, [group, half])
        assert listed.lag_seconds is not None
    there = await waiting(client.redis, [(stream, 0), (stream, 30), (stream, 100)])
    assert [(one.since, one.by) for one in there.values()] == [
        (files[0].since, files[0].since),
        (None, files[0].until),
        (None, None),
    ]
    board = Board(client)
    await board._look()
    shown = [board.groups[str(one)].summary for one in (group, half)]
    now = await server_time(client.redis)
    exact, bound = (now / 1e6 - waits(one.lag_seconds) for one in shown if one is not None)
    assert exact == pytest.approx(files[0].since / 1e6, abs=2.0)
    assert bound == pytest.approx(files[0].until / 1e6, abs=2.0), "the console says it, too"
