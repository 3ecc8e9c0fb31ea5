"""Messages on their way into the archive: every crash between two steps, two archivers, stores that fail."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import Client
from streamlease.protocol.errors import ArchiveUnavailable, Fenced, Lost
from streamlease.streams.archive import archiver as archiver_module
from streamlease.streams.archive.files import file_reading, file_writing, places
from streamlease.streams.archive.files.file_writing import FileWriter
from streamlease.streams.archive.files.index import ArchivedFile
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.archive.many_writers import run_in_pieces
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.stream_pieces import Halt, StreamPiece, files_of
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.retention import Retention, Trim, trim
from tests.archive.helpers import (
    all_of,
    archive,
    archiver,
    content_of,
    drop,
    in_table,
    publish,
    put,
    rows,
    same,
    space_of,
    trim_all,
)


async def test_what_left_the_memory_is_read_at_the_same_offsets(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 400)
    before = await rows(client, space)
    done = await asyncio.to_thread(archive, blocking, space)
    assert (done.messages, len(done.files)) == (400, 2)
    await trim_all(client, space)
    states = await AsyncLog(client.redis).states(space.streams())
    assert all(state.memory.first > 0 and state.floor == 0 for state in states.values())
    assert same(before, await rows(client, space))
    assert in_table(blocking, space) == all_of(before)
    await publish(client, 400, 300)
    before = await rows(client, space)
    assert (await asyncio.to_thread(archive, blocking, space)).messages == 300
    await trim_all(client, space)
    assert same(before, await rows(client, space))
    assert in_table(blocking, space) == all_of(before)
    assert (await asyncio.to_thread(archive, blocking, space)).messages == 0


async def test_nothing_leaves_the_memory_that_is_in_no_file(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri, streams=1)
    (stream,) = space.streams()
    await publish(client, 0, 200)
    everything = Trim(stream, Retention(messages=1, force=True), None, "the archive", archived=True)
    held = await trim(client.redis, everything)
    assert (held.floor, held.held) == (0, True)
    await asyncio.to_thread(archive, blocking, space)
    await publish(client, 200, 100)
    # Also somebody who does not know that the space has an archive now.
    assert (await trim(client.redis, Trim(stream, everything.retention, None))).floor == 200


def leave_behind(writer: FileWriter) -> None:
    """What the end of a process leaves of a file."""
    if writer._parquet is not None:
        writer._parquet.close()
    writer._file.close_as_it_is()


class Crash(BaseException):
    """The process ends here."""


def before(what: Callable[..., Any]) -> Callable[..., Any]:
    def crash(*about: Any, **more: Any) -> Any:
        raise Crash

    return crash


def behind(what: Callable[..., Any]) -> Callable[..., Any]:
    def crash(*about: Any, **more: Any) -> Any:
        what(*about, **more)
        raise Crash

    return crash


POINTS = [
    (FileWriter, "_write_group"),
    (FileWriter, "finish"),
    (file_writing, "prove"),
    (SpaceTable, "commit"),
    (SpaceTable, "_keep"),
    (archiver_module, "record"),
]


@pytest.mark.parametrize("when", [before, behind])
@pytest.mark.parametrize(("owner", "name"), POINTS, ids=[name for _, name in POINTS])
async def test_a_crash_leaves_no_gap_and_no_double(
    client: Client,
    blocking: BlockingRedis,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    when: Any,
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    await asyncio.to_thread(archive, blocking, space)
    await publish(client, 100, 100)
    whole = await rows(client, space)
    # A process that ends tidies nothing up.
    monkeypatch.setattr(FileWriter, "abandon", leave_behind)
    monkeypatch.setattr(archiver_module, "_discard", lambda written: None)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, when(getattr(owner, name)))
        with pytest.raises(Crash):
            archive(blocking, space)
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    archive(blocking, space)
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)
    states = recorded(blocking, space.streams())
    assert all(one.archived == one.state.next for one in states.values())


async def test_two_archivers_at_once_commit_each_message_once(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 200)
    whole = await rows(client, space)
    commit, raced = SpaceTable.commit, []

    def race(table: SpaceTable, *about: Any) -> None:
        """The other one is faster, between this one's look and its commit."""
        if not raced:
            raced.append(0)
            raced.append(archive(blocking, space, 2).messages)
        commit(table, *about)

    monkeypatch.setattr(SpaceTable, "commit", race)
    assert archive(blocking, space).messages == 0
    assert raced == [0, 200]
    assert in_table(blocking, space) == all_of(whole)
    named = {file.path for one in recorded(blocking, space.streams()).values() for file in one.files}
    assert set(places.listed(f"{uri}/data")) == named, "the slower one left no files"
    await publish(client, 200, 10)
    with pytest.raises(Fenced):
        archive(blocking, space, 1)
    assert archive(blocking, space, 3).messages == 0, "what the one that was fenced committed is recorded"
    assert recorded(blocking, space.streams()).keys() == set(space.streams())
    assert in_table(blocking, space) == all_of(await rows(client, space))


async def test_a_full_disk_leaves_nothing_behind(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    with monkeypatch.context() as patched:

        def full(file: Any, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patched.setattr(places.NewFile, "write", full)
        with pytest.raises(ArchiveUnavailable, match="No space left on device"):
            archive(blocking, space)
    assert places.listed(f"{uri}/data") == {}
    assert archive(blocking, space).messages == 100


async def test_a_store_that_lies_is_not_believed(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    finish = places.NewFile.finish

    def lies(what: Callable[[Path], None]) -> Callable[[places.NewFile], places.FileSum]:
        def finished(file: places.NewFile) -> places.FileSum:
            written = finish(file)
            what(Path(file.address))
            return written

        return finished

    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-10])

    def turn(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)

    for what in (cut, turn, Path.unlink):
        with monkeypatch.context() as patched:
            patched.setattr(places.NewFile, "finish", lies(what))
            with pytest.raises(ArchiveUnavailable, match="written anew"):
                archive(blocking, space)
        assert places.listed(f"{uri}/data") == {}
    await trim_all(client, space)
    assert archive(blocking, space).messages == 100


async def test_a_missing_or_altered_file_is_lost_by_its_name(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri, streams=1)
    (stream,) = space.streams()
    await publish(client, 0, 200)
    (file,) = archive(blocking, space).files
    await trim_all(client, space)
    path, log = Path(file.path), AsyncLog(client.redis)
    content = content_of(path)
    put(path, content[:-1])
    with pytest.raises(Lost, match="bytes") as caught:
        await log.read(stream, 0)
    assert (caught.value.file, caught.value.first, caught.value.next) == (file.path, 0, 200)
    put(path, content)
    assert len(await log.read(stream, 0)) > 0
    drop(path)
    # It is still open here; who opens it anew, does not find it.
    file_reading._OPENED.forget(file)
    with pytest.raises(Lost, match="is missing"):
        await log.read(stream, 100)
    altered = bytearray(content)
    altered[60] ^= 255
    put(path, altered)
    with pytest.raises(Lost, match="was altered"):
        await log.read(stream, 0)
    put(path, content)
    assert sum(batch.num_rows for batch in await log.read(stream, 0)) == 200


async def test_a_table_that_was_restored_gets_its_files_back(
    client: Client, blocking: BlockingRedis, uri: str, tmp_path: Path
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    archive(blocking, space)
    catalog = content_of(Path(uri, "catalog.db"))
    await publish(client, 100, 100)
    archive(blocking, space)
    await trim_all(client, space)
    whole = await rows(client, space)
    put(Path(uri, "catalog.db"), catalog)
    assert len(in_table(blocking, space)) == 100
    assert archiver(blocking, space).run().healed == 2
    assert in_table(blocking, space) == all_of(whole)
    assert same(whole, await rows(client, space))


async def test_pieces_that_others_write_are_committed_as_one(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 300)
    whole = await rows(client, space)
    seen: list[StreamPiece] = []

    def write(pieces: Sequence[StreamPiece], schema: pa.Schema) -> list[list[ArchivedFile | Halt]]:
        seen.extend(pieces)
        return [[*files_of(blocking, uri, piece, schema, collection=False)] for piece in pieces]

    done = run_in_pieces(archiver(blocking, space), write, most_bytes=1500)
    assert (done.messages, len(done.files)) == (300, len(seen))
    assert len(seen) > 4
    await trim_all(client, space)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)
    assert run_in_pieces(archiver(blocking, space), write).messages == 0
