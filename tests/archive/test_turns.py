"""Whose turn it is: hosts, jobs with many writers, and backlogs that no turn has time for."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile

from streamlease.agent.client import Client
from streamlease.hosts import archiving
from streamlease.hosts.archiving import ArchiveUpkeep
from streamlease.protocol.errors import Fenced
from streamlease.streams.archive import archive_turns, iceberg_table, stream_pieces
from streamlease.streams.archive.archiver import Archived, Archiver
from streamlease.streams.archive.files import places
from streamlease.streams.archive.files.file_writing import FileWriter
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.archive.iceberg_table import Manifests, SpaceTable
from streamlease.streams.archive.many_writers import WritePieces, fitting, run_in_pieces
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.stream_pieces import Halt, StreamPiece, files_of
from streamlease.streams.log.keys import archive_turn
from streamlease.streams.log.segments import read_range
from streamlease.streams.redis.connection import BlockingRedis, ask, run_blocking
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from tests.archive.helpers import all_of, archiver, in_table, publish, rows, same, space_of, trim_all
from tests.archive.test_upkeep import Clock


def in_fifties(*about: Any, **more: Any) -> Generator[pa.RecordBatch]:
    """`read_range` in small batches."""
    with closing(read_range(*about, **more)) as batches:
        for batch in batches:
            yield from (batch.slice(begin, 50) for begin in range(0, batch.num_rows, 50))


def writes(redis: BlockingRedis, uri: str) -> WritePieces:
    def write(pieces: Sequence[StreamPiece], schema: pa.Schema) -> list[list[ArchivedFile | Halt]]:
        return [[*files_of(redis, uri, piece, schema, collection=False)] for piece in pieces]

    return write


async def test_what_fits_behind_another_archiver_is_committed_all_the_same(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 300)
    whole = await rows(client, space)
    faster: list[int] = []

    def write(pieces: Sequence[StreamPiece], schema: pa.Schema) -> list[list[ArchivedFile | Halt]]:
        written = writes(blocking, uri)(pieces, schema)
        first = space.streams()[0]
        faster.append(archiver(blocking, space).run(lambda stream, *_: stream == first).messages)
        return written

    done = run_in_pieces(archiver(blocking, space), write)
    assert faster[0] > 0
    assert (done.messages, done.streams) == (300 - faster[0], {str(space.streams()[1])})
    named = {file.path for one in recorded(blocking, space.streams()).values() for file in one.files}
    assert set(places.listed(f"{uri}/data")) == named, "what was in vain is gone"
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)


async def test_what_fits_is_what_lies_behind_the_table(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri, streams=1)
    (stream,) = space.streams()
    await publish(client, 0, 100)
    archiver(blocking, space).run()
    _, standing = archiver(blocking, space).look(Archived("flights"))

    def file(first: int, next: int) -> ArchivedFile:
        return ArchivedFile(f"/{first}", first, next, 1, "", 0, 0)

    for files, left in (
        ([file(0, 50), file(50, 100), file(100, 120)], [100]),
        ([file(0, 50), file(50, 110), file(110, 120)], []),
        ([file(105, 120), file(120, 130)], [105, 120]),
        ([file(0, 100)], []),
    ):
        fits, spare = fitting(standing, {stream: files})
        assert [one.first for one in fits.get(stream, [])] == left
        assert {*spare[stream], *fits.get(stream, [])} == {*files}


async def test_a_job_and_a_host_take_turns(
    client: Client,
    blocking: BlockingRedis,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    clock = Clock()
    host = ArchiveUpkeep(client.redis, "host-a", clock)
    await host.round()
    monkeypatch.setattr(archive_turns, "PATIENCE_SECONDS", 0.1)
    clock.now += int(archiving.WAIT_SECONDS * 1000)
    begun, on = threading.Event(), threading.Event()

    def slow(pieces: Sequence[StreamPiece], schema: pa.Schema) -> list[list[ArchivedFile | Halt]]:
        begun.set()
        assert on.wait(60)
        return writes(blocking, uri)(pieces, schema)

    monkeypatch.setattr(archive_turns, "TURN_SECONDS", 0.5)
    assert await archive_turns.take(client.redis, "flights", "a host that died")
    monkeypatch.setattr(archive_turns, "TURN_SECONDS", 8.0)
    job = asyncio.create_task(asyncio.to_thread(run_in_pieces, archiver(blocking, space), slow))
    assert await asyncio.to_thread(begun.wait, 60), "the turn of the dead one ends"
    told = "archive of space flights: others are at work there; waiting for 600 s at most"
    assert caplog.messages.count(told) == 1
    left = archive_turns.TURN_SECONDS * 1000
    while True:  # until it lasts for longer than it was taken for
        (now,) = await ask(client.redis, [("PTTL", archive_turn("flights"))])
        if now > left:
            break
        left = now
        await asyncio.sleep(0.01)
    (idle,) = await host.round()
    assert idle.messages == 0, "the host leaves it alone"
    on.set()
    assert (await job).messages == 100
    assert run_blocking(ask(blocking, [("EXISTS", archive_turn("flights"))])) == [0]
    await publish(client, 100, 100)
    await host.round()
    clock.now += int(archiving.WAIT_SECONDS * 1000)
    (done,) = await host.round()
    assert done.messages == 100
    assert run_blocking(ask(blocking, [("EXISTS", archive_turn("flights"))])) == [0]
    await host.close()


async def test_a_host_makes_room_for_a_job_that_waits(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_pieces, "FILE_BYTES", 1)
    monkeypatch.setattr(stream_pieces, "read_range", in_fifties)
    monkeypatch.setattr(archiving, "RESTS", ((math.inf, 1e6),))
    monkeypatch.setattr(archiving, "LOOK_SECONDS", 0.05)
    space = await space_of(client, uri)
    await publish(client, 0, 300)
    whole = await rows(client, space)
    clock = Clock()
    host = ArchiveUpkeep(client.redis, "host-a", clock)
    await host.round()
    clock.now += int(archiving.WAIT_SECONDS * 1000)
    round = asyncio.create_task(host.round())

    def job() -> Archived:
        while not run_blocking(ask(blocking, [("EXISTS", archive_turn("flights"))]))[0]:
            time.sleep(0.01)
        with archive_turns.turn(blocking, "flights"):
            mine = run_blocking(ask(blocking, [("HKEYS", archive_turn("flights"))]))
            assert mine == [[b"whose"]], "nobody waits for the turn of the job"
            return archiver(blocking, space).run()

    done = await asyncio.to_thread(job)
    (made,) = await round
    assert made.more and len(made.files) == 1, "it was at rest for good, and began no second file"
    assert made.messages + done.messages == 300
    assert run_blocking(ask(blocking, [("EXISTS", archive_turn("flights"))])) == [0]
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    await host.close()


async def test_a_host_that_stops_in_the_middle_leaves_no_work_behind(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    clock = Clock()
    host = ArchiveUpkeep(client.redis, "host-a", clock)
    await host.round()
    clock.now += int(archiving.WAIT_SECONDS * 1000)
    begun, on, ended = threading.Event(), threading.Event(), threading.Event()
    finish, run = FileWriter.finish, Archiver.run

    def slow(writer: FileWriter) -> ArchivedFile:
        begun.set()
        assert on.wait(60)
        return finish(writer)

    def watched(*about: Any, **more: Any) -> Archived:
        try:
            return run(*about, **more)
        finally:
            ended.set()

    monkeypatch.setattr(FileWriter, "finish", slow)
    monkeypatch.setattr(Archiver, "run", watched)
    round = asyncio.create_task(host.round())
    assert await asyncio.to_thread(begun.wait, 60)
    round.cancel()
    with pytest.raises(asyncio.CancelledError):
        await round
    assert run_blocking(ask(blocking, [("EXISTS", archive_turn("flights"))])) == [0]
    on.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert places.listed(f"{uri}/data") == {}
    assert all(one.archived == 0 for one in recorded(blocking, space.streams()).values())
    await host.close()


async def test_a_backlog_waits_for_the_next_turn_and_all_streams_have_theirs(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_pieces, "FILE_BYTES", 1)
    monkeypatch.setattr(stream_pieces, "read_range", in_fifties)
    space = await space_of(client, uri, streams=3)
    await publish(client, 0, 600)
    whole = await rows(client, space)
    last, seen, files = None, [], 0
    while (done := archiver(blocking, space).run(seconds=0, last=last)).files:
        assert (len(done.files), done.more) == (1, True), "no file is begun when the time is over"
        last, files = done.last, files + 1
        seen.append(*done.streams)
    assert len(set(seen[:3])) == 3, "one stream does not keep the others waiting"
    assert files >= 12
    await trim_all(client, space)
    assert same(whole, await rows(client, space))


async def test_each_step_rests_and_one_that_is_stopped_leaves_nothing(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    rests: list[float] = []

    def stop(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 2:
            raise Fenced("this host stops")

    began = time.monotonic()
    assert space.archive is not None
    with pytest.raises(Fenced):
        Archiver(blocking, space, space.archive, rest=stop).run()
    assert 0 < sum(rests) <= time.monotonic() - began
    assert places.listed(f"{uri}/data") == {}
    rests.clear()
    worked = Archiver(blocking, space, ArchiveSettings.of(uri), rest=rests.append).run()
    assert (worked.messages, len(rests)) == (100, 4), "a look, two files, a commit"


async def test_what_a_manifest_says_is_read_once(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, uri)
    fetch, fetched = ManifestFile.fetch_manifest_entry, []

    def counted(manifest: ManifestFile, *about: Any, **more: Any) -> Any:
        fetched.append(manifest.manifest_path)
        return fetch(manifest, *about, **more)

    manifests = Manifests()
    assert space.archive is not None
    for first in (0, 100, 200):
        await publish(client, first, 100)
        Archiver(blocking, space, space.archive, manifests=manifests).run()
    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)
    for _ in range(3):
        files = SpaceTable.open(blocking, space, space.archive, manifests).files()
        assert sum(map(len, files.values())) == 6
    assert len(fetched) == len({*fetched}) <= 1, "only what the newest commit has made"
    monkeypatch.setattr(iceberg_table, "MOST_KNOWN", 2)
    files = SpaceTable.open(blocking, space, space.archive, Manifests()).files()
    assert sum(map(len, files.values())) == 6, "also if not all of them are kept in mind"
