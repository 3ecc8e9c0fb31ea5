"""Crashes between two steps of joining, retiring and tidying; and what files and table of an archive say."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from streamlease.agent.client import Client
from streamlease.streams.archive import upkeep_steps
from streamlease.streams.archive.archiver import Archiver
from streamlease.streams.archive.checking import verify
from streamlease.streams.archive.files import places
from streamlease.streams.archive.files.file_writing import FileWriter
from streamlease.streams.archive.iceberg_table import FLOORS, TERM, SpaceTable
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.upkeep_steps import merge, retire, sweep, tidy
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.definitions import Space
from tests.archive.helpers import all_of, archive, archiver, in_table, publish, rows, same, space_of, trim_all
from tests.archive.test_archiver import Crash, before, behind, leave_behind


async def three_files(client: Client, blocking: BlockingRedis, uri: str) -> Space:
    """A space whose only stream has three files, and little in memory."""
    space = await space_of(client, uri, streams=1)
    for first in (0, 100, 200):
        await publish(client, first, 100)
        archive(blocking, space)
    await trim_all(client, space)
    return space


def crashes(owner: Any, name: str, when: Any, patched: pytest.MonkeyPatch) -> None:
    patched.setattr(FileWriter, "abandon", leave_behind)
    patched.setattr(owner, name, when(getattr(owner, name)))


@pytest.mark.parametrize(
    ("when", "owner", "name"),
    [
        (behind, FileWriter, "finish"),
        (before, SpaceTable, "commit"),
        (before, SpaceTable, "_keep"),
        (before, upkeep_steps, "record"),
        (behind, upkeep_steps, "record"),
    ],
    ids=["finished", "not-committed", "not-kept", "not-recorded", "recorded"],
)
async def test_a_crash_while_files_are_joined_loses_nothing(
    client: Client,
    blocking: BlockingRedis,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    when: Any,
) -> None:
    space = await three_files(client, blocking, uri)
    whole = await rows(client, space)
    with monkeypatch.context() as patched:
        crashes(owner, name, when, patched)
        with pytest.raises(Crash):
            merge(archiver(blocking, space))
    assert same(whole, await rows(client, space))
    merge(archiver(blocking, space))
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)
    assert space.archive is not None
    assert verify(blocking, space, space.archive).wrong == []
    (files,) = (one.files for one in recorded(blocking, space.streams()).values())
    assert [(one.first, one.next) for one in files] == [(0, 300)]
    tidy(archiver(blocking, space), time.time() + 10, grace=0, keep_seconds=0)
    assert [*places.listed(f"{uri}/data")] == [files[0].path], "what the crash left is swept away"
    assert same(whole, await rows(client, space))


@pytest.mark.parametrize(
    ("when", "owner", "name"),
    [
        (before, upkeep_steps, "record"),
        (behind, upkeep_steps, "record"),
        (before, SpaceTable, "_keep"),
        (behind, SpaceTable, "commit"),
    ],
    ids=["not-recorded", "recorded", "not-kept", "committed"],
)
async def test_a_crash_while_files_are_retired_leaves_no_file_that_is_looked_for_in_vain(
    client: Client,
    blocking: BlockingRedis,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    when: Any,
) -> None:
    space = await three_files(client, blocking, uri)
    (stream,) = space.streams()
    with monkeypatch.context() as patched:
        crashes(owner, name, when, patched)
        with pytest.raises(Crash):
            retire(archiver(blocking, space), {stream: 200})
    left = (await rows(client, space))[stream]["offset"].to_pylist()
    told = recorded(blocking, [stream])[stream]
    assert left == [*range(told.exists, 300)]
    assert [file.first for file in told.files] == [*range(told.exists, 300, 100)]
    retire(archiver(blocking, space), {stream: 200})
    assert archive(blocking, space).messages == 0, "what is retired does not come back"
    assert recorded(blocking, [stream])[stream].exists == 200
    assert (await rows(client, space))[stream]["offset"].to_pylist() == [*range(200, 300)]
    assert in_table(blocking, space) == [(str(stream), offset) for offset in range(200, 300)]


async def test_files_of_a_generation_that_is_gone_leave_the_table(
    client: Client, blocking: BlockingRedis, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retired in Redis, and dropped then, before the table was told."""
    space = await three_files(client, blocking, uri)
    (former,) = space.streams()
    space = await client.alter_space("flights", rotate=True)
    await publish(client, 300, 100)
    archive(blocking, space)
    with monkeypatch.context() as patched:
        crashes(SpaceTable, "commit", before, patched)
        with pytest.raises(Crash):
            retire(archiver(blocking, space), {former: 300})
    space = await client.spaces.generations.drop("flights", space.generations[0].number)
    (stream,) = space.streams()
    assert {one for one, _ in in_table(blocking, space)} == {str(former), str(stream)}
    assert retire(archiver(blocking, space), {}) == {}
    assert in_table(blocking, space) == [(str(stream), offset) for offset in range(100)]


async def test_a_crash_while_the_table_is_tidied_takes_nothing_that_is_named(
    client: Client,
    blocking: BlockingRedis,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = await three_files(client, blocking, uri)
    merge(archiver(blocking, space))
    whole = await rows(client, space)
    later = time.time() + 10
    with monkeypatch.context() as patched:
        crashes(SpaceTable, "expire", behind, patched)
        with pytest.raises(Crash):
            tidy(archiver(blocking, space), later, grace=0, keep_seconds=0)
    removed: list[str] = []

    def once(path: str) -> bool:
        if removed:
            raise Crash
        removed.append(path)
        return places.remove(path)

    with monkeypatch.context() as patched:
        patched.setattr(upkeep_steps, "remove", once)
        with pytest.raises(Crash):
            tidy(archiver(blocking, space), later, grace=0, keep_seconds=0)
    assert same(whole, await rows(client, space))
    tidy(archiver(blocking, space), later, grace=0, keep_seconds=0)
    assert same(whole, await rows(client, space))
    assert in_table(blocking, space) == all_of(whole)
    assert len(places.listed(f"{uri}/data")) == 1


async def test_a_snapshot_stays_for_a_while_from_when_another_followed_it(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    """However old it was then: somebody may have begun to read it a moment before."""
    space = await three_files(client, blocking, uri)
    assert space.archive is not None
    first, second, third = (
        one.timestamp_ms / 1000
        for one in SpaceTable.open(blocking, space, space.archive).iceberg.metadata.snapshots
    )
    assert first < second < third
    worker = archiver(blocking, space)
    assert tidy(worker, (first + second) / 2, keep_seconds=0)[0] == 0
    assert tidy(worker, (second + third) / 2, keep_seconds=0)[0] == 1
    left = SpaceTable.open(blocking, space, space.archive).iceberg
    assert [one.timestamp_ms / 1000 for one in left.metadata.snapshots] == [second, third]
    former = left.scan(snapshot_id=left.metadata.snapshots[0].snapshot_id).to_arrow()
    assert former.num_rows == 200
    with closing(left.catalog):
        left.manage_snapshots().create_tag(left.metadata.snapshots[0].snapshot_id, "year-end").commit()
    assert tidy(worker, third + 1, keep_seconds=0)[0] == 0, "somebody has named it"
    left = SpaceTable.open(blocking, space, space.archive).iceberg
    with closing(left.catalog):
        left.manage_snapshots().remove_tag("year-end").commit()
    assert tidy(worker, third + 1, keep_seconds=0)[0] == 1
    assert len(in_table(blocking, space)) == 300


async def test_files_that_may_be_committed_yet_are_not_swept_away(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    space = await three_files(client, blocking, uri)
    spare = f"{uri}/data/{space.streams()[0]}/00000000000000000300-spare.parquet"
    places.write_small(spare, b"somebody is at it")
    worker = archiver(blocking, space)
    assert tidy(worker, time.time())[1] == 0
    table, standing = worker.look(upkeep_steps.Archived("flights"))
    assert sweep(worker, standing, table, time.time() + upkeep_steps.GRACE_SECONDS + 60, 86_400) == 1
    assert places.size_of(spare) is None
    assert len(places.listed(f"{uri}/data")) == 3


async def test_what_stands_in_the_files_and_in_the_table(
    client: Client, blocking: BlockingRedis, uri: str
) -> None:
    """What docs/archive.md says of both, as other programs see it."""
    columns = pa.schema([("price", pa.decimal128(10, 2)), ("count", pa.int16()), ("day", pa.date32())])
    space = await space_of(client, uri, streams=1, schema=columns)
    (stream,) = space.streams()
    assert space.archive is not None
    for _ in range(2):
        values = pa.RecordBatch.from_pylist([{"price": None, "count": 7, "day": None}] * 40_000, columns)
        async with client.publisher() as publisher:
            await publisher.send_batch("flights/a", values)
        Archiver(blocking, space, space.archive, 7).run()
    file, _ = recorded(blocking, [stream])[stream].files
    footer = pq.read_metadata(file.path)
    assert footer.num_rows == 40_000
    assert footer.num_row_groups > 1
    next = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        assert {group.column(place).compression for place in range(group.num_columns)} == {"ZSTD"}
        parts = [group.column(place) for place in range(group.num_columns)]
        by_name = {one.path_in_schema: one for one in parts}
        offsets = by_name["offset"].statistics
        assert (offsets.min, offsets.max) == (next, next + group.num_rows - 1)
        next += group.num_rows
        for name in ("append_timestamp", "count", "stream"):
            assert by_name[name].statistics.has_min_max, name
        assert not by_name["payload"].is_stats_set
    table: Table = SpaceTable.open(blocking, space, space.archive).iceberg
    types = {field.name: str(field.field_type) for field in table.schema().fields}
    assert types == {
        "topic": "string",
        "key": "binary",
        "payload": "binary",
        "headers": "list<struct<14: key: optional string, 15: value: optional binary>>",
        "stream": "string",
        "offset": "long",
        "timestamp": "timestamptz",
        "append_timestamp": "timestamptz",
        "epoch": "list<long>",
        "price": "decimal(10, 2)",
        "count": "int",
        "day": "date",
    }
    snapshots = [one.summary for one in table.metadata.snapshots]
    assert [one[TERM] for one in snapshots if one is not None] == ["7", "7"]
    floors = [json.loads(one[FLOORS]) for one in snapshots if one is not None]
    assert floors == [{str(stream): [0, 40_000]}, {str(stream): [0, 80_000]}]
