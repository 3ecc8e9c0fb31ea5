"""Readers that go from the files into the memory, and from any moment."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import Client
from streamlease.protocol.errors import ArchiveUnavailable, HistoryTruncated, Lost
from streamlease.streams.archive.files import file_reading, places
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.upkeep_steps import merge, retire, tidy
from streamlease.streams.entries.message_rows import ALL_COLUMNS
from streamlease.streams.log import times
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.times import microseconds
from streamlease.streams.redis.connection import BlockingRedis, run_blocking
from streamlease.streams.spaces.definitions import Space
from tests.archive.helpers import archive, archiver, in_table, move, publish, rows, same, space_of, trim_all


async def past(client: Client, blocking: BlockingRedis, uri: str, *, streams: int = 2) -> Space:
    """A space whose messages are in two files of each stream, and the newest in memory too."""
    space = await space_of(client, uri, streams=streams)
    for first in (0, 200):
        await publish(client, first, 200)
        await asyncio.to_thread(archive, blocking, space)
    await trim_all(client, space)
    await publish(client, 400, 100)
    return space


def shown(messages: list[tuple[str, int, bytes]], count: int) -> None:
    assert len(messages) == len(set(messages)) == count
    assert sorted(payload for _, _, payload in messages) == sorted(b"message %d" % n for n in range(count))
    by_stream: dict[str, list[int]] = {}
    for stream, offset, _ in messages:
        by_stream.setdefault(stream, []).append(offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_stream.values())


async def test_listening_and_groups_begin_in_the_files(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    await past(client, blocking, uri)
    found: list[tuple[str, int, bytes]] = []
    async with asyncio.timeout(60), client.listen("flights/#", start="earliest") as heard:
        async for batch in heard:
            found += [(one.stream, one.offset, one.payload) for one in batch.messages]
            if len(found) >= 500:
                break
    shown(found, 500)
    found.clear()
    async with asyncio.timeout(60), client.subscribe("$shared/g/flights/#", start="earliest") as taken:
        async for part in taken:
            found += [(one.stream, one.offset, one.payload) for one in part.messages]
            await part.commit()
            if len(found) >= 500:
                break
    shown(found, 500)


async def test_a_reader_that_is_slower_than_trimming_goes_on_in_the_files(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 400)
    found: list[tuple[str, int, bytes]] = []
    async with asyncio.timeout(60), client.listen("flights/#", start="earliest", max_batch=20) as heard:
        async for batch in heard:
            found += [(one.stream, one.offset, one.payload) for one in batch.messages]
            if len(found) == 20:
                await asyncio.to_thread(archive, blocking, space)
                await trim_all(client, space)
            if len(found) >= 400:
                break
    shown(found, 400)


async def test_a_moment_of_the_past_is_found_in_the_files(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await past(client, blocking, uri)
    log = AsyncLog(client.redis)
    for stream, table in (await rows(client, space)).items():
        times: list[datetime] = table["append_timestamp"].to_pylist()
        for offset in range(0, len(times), 17):
            expected = next((n for n, time in enumerate(times) if time > times[offset]), len(times))
            assert await log.since(stream, times[offset]) == expected
        assert await log.since(stream, times[0] - timedelta(microseconds=1)) == 0
        assert await log.since(stream, datetime(2020, 1, 1, tzinfo=UTC)) == 0


async def test_all_ways_to_read_a_range_give_the_same_rows(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri, streams=1)
    (stream,) = space.streams()
    await publish(client, 0, 300)
    views = (None, ALL_COLUMNS, frozenset({"payload"}), frozenset({"offset", "key", "headers"}))
    ranges = [(0, 300), (0, 1), (49, 51), (120, 299)]

    def read() -> list[list[pa.Table]]:
        return [
            [pa.Table.from_batches(read_range(blocking, stream, *one, columns=view)) for one in ranges]
            for view in views
        ]

    before = read()
    archive(blocking, space)
    await trim_all(client, space)
    for then, now in zip(before, read(), strict=True):
        for one, other in zip(then, now, strict=True):
            assert one.schema == other.schema
            assert one.to_pylist() == other.to_pylist()


async def test_files_are_joined_retired_and_swept_away(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await past(client, blocking, uri, streams=1)
    (stream,) = space.streams()
    whole = await rows(client, space)
    worker = archiver(blocking, space)
    done = merge(worker)
    assert (done.files, done.into) == (2, 1)
    assert same(whole, await rows(client, space))
    assert merge(worker).files == 0
    archive(blocking, space)
    assert retire(worker, {stream: 399}) == {}, "files go as wholes"
    assert retire(worker, {stream: 400}) == {stream: 400}
    assert in_table(blocking, space) == [(str(stream), offset) for offset in range(400, 500)]
    with pytest.raises(HistoryTruncated) as caught:
        await AsyncLog(client.redis).read(stream, 0)
    assert caught.value.oldest in (350, 400)
    with pytest.raises(HistoryTruncated):
        await AsyncLog(client.redis).since(stream, datetime(2020, 1, 1, tzinfo=UTC))
    snapshots, swept = tidy(worker, time.time() + 10, grace=0, keep_seconds=0)
    assert snapshots >= 3
    assert swept >= 3
    left = await rows(client, space)
    assert left[stream]["offset"].to_pylist()[-100:] == list(range(400, 500))


async def test_what_stands_before_a_lost_file_is_read_and_the_group_is_told(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await past(client, blocking, uri, streams=1)
    files = recorded(blocking, space.streams())[space.streams()[0]].files
    await asyncio.to_thread(places.remove, files[1].path)
    for subscribed in (
        client.listen("flights/#", start="earliest"),
        client.subscribe("$shared/g/flights/#", start="earliest"),
    ):
        found: list[int] = []
        async with asyncio.timeout(60), subscribed as taken:
            with pytest.raises(Lost, match="is missing") as caught:
                async for batch in taken:
                    found += [message.offset for message in batch.messages]
        assert found == list(range(200))
        assert (caught.value.file, caught.value.first, caught.value.next) == (files[1].path, 200, 400)


async def test_an_archive_that_cannot_be_read_is_asked_less_and_less_and_loses_nothing(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await past(client, blocking, uri, streams=1)
    read, asked = file_reading.OpenFile._read, []

    def failing(*about: Any) -> Any:
        if len(asked) < 4:
            asked.append(time.monotonic())
            raise ArchiveUnavailable("the store does not answer: Parquet")
        return read(*about)

    monkeypatch.setattr(file_reading.OpenFile, "_read", failing)
    found: list[tuple[str, int, bytes]] = []
    async with asyncio.timeout(60), client.history("flights/#") as heard:
        async for batch in heard:
            found += [(one.stream, one.offset, one.payload) for one in batch.messages]
    shown(found, 500)
    pauses = [later - before for before, later in pairwise(asked)]
    assert all(pause >= 0.2 * 2**number for number, pause in enumerate(pauses)), pauses


async def test_an_archive_that_is_not_there_is_not_lost(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await past(client, blocking, uri, streams=1)
    (stream,) = space.streams()
    move(uri, f"{uri}-unmounted")
    for file in recorded(blocking, [stream])[stream].files:
        file_reading._OPENED.forget(file)
    with pytest.raises(ArchiveUnavailable, match="is the right folder mounted"):
        await AsyncLog(client.redis).read(stream, 0)
    move(f"{uri}-unmounted", uri)
    assert sum(batch.num_rows for batch in await AsyncLog(client.redis).read(stream, 0)) > 0


async def test_a_moment_is_looked_for_in_the_files_of_many_streams_at_once(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await past(client, blocking, uri, streams=4)
    search, together = times.first_behind, threading.Barrier(4)

    def waits(*about: Any) -> int:
        together.wait(60)  # for all the others
        return search(*about)

    monkeypatch.setattr(times, "first_behind", waits)
    tables = await rows(client, space)
    moments = {
        stream: microseconds(table["append_timestamp"][10].as_py()) for stream, table in tables.items()
    }
    found = await times.offsets_after(client.redis, moments)
    assert all(
        tables[one]["append_timestamp"][found[one] - 1].value == moment for one, moment in moments.items()
    )
    again = await asyncio.to_thread(run_blocking, times.offsets_after(blocking, moments))
    assert again == found
    monkeypatch.setattr(times, "SEARCHES_AT_ONCE", 1)
    monkeypatch.setattr(times, "first_behind", search)
    assert await times.offsets_after(client.redis, moments) == found
