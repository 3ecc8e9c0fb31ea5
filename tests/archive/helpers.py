"""What the tests of archives ask: all that readers find, all that is in the table, and trimming."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa

from streamlease.agent.client import Client
from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.archiver import Archived, Archiver
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.retention import Retention, Trim, trim

ENTRY = 50
"""Messages that are published together."""


class Clock:
    """A host's own clock, in milliseconds."""

    def __init__(self) -> None:
        self.now = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self.now


async def space_of(client: Client, uri: str, *, streams: int = 2, **more: object) -> Space:
    return await client.create_space(
        "flights",
        topics=["flights/#"],
        streams=streams,
        archive=ArchiveSettings.of(uri),
        **more,  # type: ignore[arg-type]
    )


async def publish(client: Client, first: int, count: int) -> None:
    """Messages `first`, `first` + 1, ... to seven topics, in entries of `ENTRY`."""
    async with client.publisher() as publisher:
        for number in range(first, first + count):
            headers = {"n": str(number)} if number % 3 == 0 else None
            key = b"k%d" % number if number % 2 else None
            await publisher.submit(f"flights/{number % 7}", b"message %d" % number, key=key, headers=headers)
            if number % ENTRY == ENTRY - 1:
                await publisher.flush()


def archiver(redis: BlockingRedis, space: Space, term: int | None = None) -> Archiver:
    assert space.archive is not None
    return Archiver(redis, space, space.archive, term)


def archive(redis: BlockingRedis, space: Space, term: int | None = None) -> Archived:
    return archiver(redis, space, term).run()


async def trim_all(client: Client, space: Space, keep: int = 1) -> None:
    """Let go of what is archived, but for the newest messages."""
    kept = Retention(messages=keep) if keep else Retention(bytes=1)
    for stream in space.streams():
        await trim(client.redis, Trim(stream, kept, None, archived=True))


async def rows(client: Client, space: Space) -> dict[StreamId, pa.Table]:
    """All that exists of each stream, as it is read."""
    log = AsyncLog(client.redis)
    found = {}
    for stream, state in (await log.states(space.streams())).items():
        batches, position = [], state.floor
        while position < state.next:
            some = await log.read(stream, position)
            assert some
            batches += some
            position += sum(batch.num_rows for batch in some)
        if batches:
            found[stream] = pa.Table.from_batches(batches).combine_chunks()
    return found


def in_table(redis: BlockingRedis, space: Space) -> list[tuple[str, int]]:
    """Stream and offset of all rows of the table, as any engine reads them."""
    assert space.archive is not None
    table = SpaceTable.open(redis, space, space.archive).iceberg
    found = table.scan(selected_fields=("stream", "offset")).to_arrow()
    return sorted(zip(found["stream"].to_pylist(), found["offset"].to_pylist(), strict=True))


def all_of(
    tables: dict[StreamId, pa.Table], upto: dict[StreamId, int] | None = None
) -> list[tuple[str, int]]:
    return sorted(
        (str(stream), offset)
        for stream, table in tables.items()
        for offset in table["offset"].to_pylist()
        if upto is None or offset < upto[stream]
    )


def same(before: dict[StreamId, pa.Table], after: dict[StreamId, pa.Table]) -> bool:
    """Whether two readings found the same rows, in the same types."""
    return before.keys() == after.keys() and all(
        before[stream].schema == after[stream].schema
        and before[stream].to_pylist() == after[stream].to_pylist()
        for stream in before
    )


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, content: bytes | bytearray) -> None:
    path.write_bytes(content)


def drop(path: Path) -> None:
    path.unlink()


def is_there(path: str) -> bool:
    return Path(path).exists()


def move(before: str, after: str) -> None:
    Path(before).rename(after)
