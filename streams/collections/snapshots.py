"""Snapshots: what all changes of a stream below an offset come to, kept beside the stream.

::

    snapshot |== entries, added up ==|  upto
    stream   ....... (may be trimmed) |-------------------->
    reader    reads the entries        then what is behind

The entries of a snapshot have the form of those of a stream, so whatever reads a stream reads a snapshot, new
columns of a schema included. They are written part by part under a name of their own, which expires; when all
are there, one script puts them in the place of the snapshot that they were made of, if that is still the
newest one and the stream is as it was (``lua/take_snapshot.lua``). So two makers cannot mix, and one that was
killed anywhere leaves what was there, and something that goes by itself.

Retention never passes `upto`. What Redis lost of the changes is written into the snapshot, and its readers
are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import NotDurable, StoreRefused, StreamleaseError, Unsupported
from streamlease.protocol.ids import StreamId, random_token
from streamlease.protocol.offsets import entry_id
from streamlease.streams.collections.change_reading import COLUMNS, ChangeReader, table_of
from streamlease.streams.collections.core.tables import added_up, taken_in
from streamlease.streams.entries.decoding import decode_entries
from streamlease.streams.entries.encoding import encode_batch
from streamlease.streams.entries.layout import Encoded
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.splitting import pieces_of
from streamlease.streams.log.keys import snapshot_entries, snapshot_state, stream_log, stream_meta
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import Argument, AsyncRedis, Command, Redis, ask
from streamlease.streams.redis.damaged import ask_of_any_type, parsing
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import Space

ENTRY_BYTES = 1024 * 1024
"""About so large is an entry, before it is compressed."""

PAGE_BYTES = 16 * 1024 * 1024
"""So much of the former snapshot is in memory at a time, about."""

CHANGES_BYTES = 64 * 1024 * 1024
"""So much may the changes come to that one snapshot takes in, about."""

AT_ONCE = 8
"""Entries that are written, or read, in one exchange."""

UNFINISHED_SECONDS = 600
"""After so long without another entry, one that was not finished goes."""

FORMER_SECONDS = 600
"""So long may somebody go on reading one that was followed by another."""

_TAKE = load_script("streamlease.streams.collections", "take_snapshot")


class SnapshotGone(StreamleaseError):
    """A snapshot went away while it was read: another one has followed it. Begin anew."""

    retriable = True


class StoredSnapshot(NamedTuple):
    """The newest snapshot of a stream."""

    number: int = 0
    """0: there is none, which is one of nothing."""
    upto: int = 0
    token: str = ""
    messages: int = 0
    entries: int = 0
    lost: tuple[tuple[int, int], ...] = ()
    """Offsets below `upto` that Redis lost: from, and before which."""


async def newest_snapshots(redis: Redis, streams: Sequence[StreamId]) -> dict[StreamId, StoredSnapshot]:
    """The newest snapshot of each of `streams`.

    Raises:
        Unsupported: what stands of one cannot be read.
        StoreUnavailable, StoreRefused.
    """
    found, damaged = await look_at_snapshots(redis, streams)
    for why in damaged.values():
        raise why
    return found


async def look_at_snapshots(
    redis: Redis, streams: Sequence[StreamId]
) -> tuple[dict[StreamId, StoredSnapshot], dict[StreamId, Unsupported]]:
    """The newest snapshot of each of `streams`, and why some cannot be read.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    names = ("number", "upto", "token", "messages", "entries", "lost")
    asked = [("HMGET", snapshot_state(stream), *names) for stream in streams]
    replies = await ask_of_any_type(redis, asked) if asked else []
    found: dict[StreamId, StoredSnapshot] = {}
    damaged: dict[StreamId, Unsupported] = {}
    for stream, reply in zip(streams, replies, strict=True):
        try:
            if isinstance(reply, Unsupported):
                raise reply
            found[stream] = _stored(stream, reply)
        except Unsupported as why:
            damaged[stream] = why
    return found, damaged


def _stored(stream: StreamId, reply: Sequence[bytes | None]) -> StoredSnapshot:
    number, upto, token, messages, entries, lost = reply
    if number is None:
        return StoredSnapshot()
    with parsing(f"the snapshot of stream {stream}", snapshot_state(stream)):
        holes = tuple((int(asked), int(oldest)) for asked, oldest in json.loads(lost or b"[]"))
        counted = int(messages or 0), int(entries or 0)
        return StoredSnapshot(int(number), int(upto or 0), (token or b"").decode(), *counted, holes)


async def snapshot_tables(
    redis: Redis,
    stream: StreamId,
    stored: StoredSnapshot,
    versions: Versions | None,
    schema: Schema | None,
    filter: str | None = None,
) -> AsyncGenerator[pa.Table]:
    """What a snapshot holds of the topics of `filter`; None: all.

    Raises:
        SnapshotGone: another one followed it meanwhile.
        SchemaMismatch: it is damaged.
        StoreUnavailable, StoreRefused.
    """
    begin, entries = "-", 0
    while entries < stored.entries:
        asked = ("XRANGE", snapshot_entries(stream, stored.token), begin, "+", "COUNT", AT_ONCE)
        (page,) = await ask(redis, [asked])
        if not page:
            raise SnapshotGone(f"the snapshot of stream {stream} up to {stored.upto} is not there any more")
        entries += len(page)
        begin = "(" + page[-1][0].decode("ascii")
        for batch in decode_entries(stream, page, versions=versions, wanted=schema, columns=COLUMNS):
            yield table_of(batch if filter is None else filter_batch(batch, filter), schema)


async def make_snapshot(
    redis: AsyncRedis, space: Space, stream: StreamId, upto: int, former: StoredSnapshot
) -> StoredSnapshot | None:
    """Make a snapshot of the one before and the changes below `upto`; None: somebody else was faster.

    It ends before `upto` where there are more changes than it takes in at once: the next one goes on there.
    Of the items no more than `PAGE_BYTES` are in memory at a time.

    Raises:
        SnapshotGone, HistoryTruncated: somebody else was faster.
        NotDurable: it is there, but less durably than the space demands.
        SchemaMismatch: an entry is damaged: the stream keeps all that it has.
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    schema, versions = space.newest_schema, Versions(space.schemas) if space.schemas else None
    # First of all: if it is the same at the end, then all that was read meanwhile is of one history.
    mark = await _mark(redis, stream, upto)
    changes, reached, lost = await _changes(redis, stream, schema, former.upto, upto)
    token = random_token()
    parts = _Parts(redis, snapshot_entries(stream, token), schema)
    async for page in _pages(snapshot_tables(redis, stream, former, versions, schema)):
        done, changes = await asyncio.to_thread(taken_in, page, changes) if changes else (page, None)
        await parts.add(done)
    if changes:
        await parts.add(changes)
    keys = [stream_meta(stream), snapshot_state(stream), snapshot_entries(stream, token)]
    keys += [snapshot_entries(stream, former.token), stream_log(stream)]
    holes = (*former.lost, *lost)
    args: list[Argument] = [former.number, reached, token, parts.rows, parts.entries, json.dumps(holes)]
    args += [FORMER_SECONDS, upto, mark]
    reply, why = await run_durably(redis, _TAKE.call(keys, args), [space.promised])
    if why:
        raise NotDurable(
            f"the snapshot of stream {stream} up to {reached} is there, and not durable yet: {why}"
        )
    match reply[0]:
        case b"taken":
            return StoredSnapshot(int(reply[1]), reached, token, parts.rows, parts.entries, holes)
        case b"other" | b"gone" | b"unknown":
            await ask(redis, [("UNLINK", snapshot_entries(stream, token))])
            return None
        case _:
            raise StoreRefused(f"the script of snapshots answered {reply!r}: client and script do not fit")


async def _mark(redis: AsyncRedis, stream: StreamId, upto: int) -> str:
    """Tells the entry with the last change below `upto` from one that has its offset after a failover."""
    (found,) = await ask(redis, [("XRANGE", stream_log(stream), f"{max(0, upto - 1)}-0", "+", "COUNT", 1)])
    return f"{found[0][0].decode()} {found[0][1][1].decode()}" if found else ""


async def _changes(
    redis: AsyncRedis, stream: StreamId, schema: Schema | None, begin: int, upto: int
) -> tuple[pa.Table | None, int, list[tuple[int, int]]]:
    """What the changes come to from `begin` on, up to where they are many; up to where; and what is lost."""
    tables: list[pa.Table] = []
    lost: list[tuple[int, int]] = []
    size = 0
    reader = ChangeReader(redis, None, {stream.space: schema}, {stream: begin})
    async with contextlib.aclosing(reader.upto({stream: upto})) as found:
        async for read in found:
            if isinstance(read, MissingOffsets):
                lost.append((int(read.asked) if isinstance(read.asked, int) else upto, read.oldest))
                continue
            tables.append(read.table)
            size += read.table.nbytes
            if size >= CHANGES_BYTES:
                tables = [await asyncio.to_thread(_joined, tables)]
                size = tables[0].nbytes
                if 2 * size >= CHANGES_BYTES:
                    break
    return (await asyncio.to_thread(_joined, tables) if tables else None), reader.positions[stream], lost


async def _pages(tables: AsyncGenerator[pa.Table]) -> AsyncGenerator[pa.Table]:
    """Several tables as one, of about `PAGE_BYTES`."""
    waiting: list[pa.Table] = []
    async for table in tables:
        waiting.append(table)
        if sum(one.nbytes for one in waiting) >= PAGE_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return added_up(pa.concat_tables(tables))


class _Parts:
    """Writes a snapshot part by part. Nobody reads it before it is whole; one that is left lying goes."""

    def __init__(self, redis: AsyncRedis, key: str, schema: Schema | None) -> None:
        self.rows = 0
        self.entries = 0
        self._redis = redis
        self._key = key
        self._schema = schema

    async def add(self, table: pa.Table) -> None:
        """Write some items.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        encoded = await asyncio.to_thread(_encoded, table, self._schema)
        for begin in range(0, len(encoded), AT_ONCE):
            commands: list[Command] = []
            for entry in encoded[begin : begin + AT_ONCE]:
                id = entry_id(self.rows, entry.rows)
                commands.append(("XADD", self._key, id, *entry.fields, b"a", b"0"))
                self.rows += entry.rows
                self.entries += 1
            await ask(self._redis, [*commands, ("EXPIRE", self._key, UNFINISHED_SECONDS)])


def _encoded(table: pa.Table, schema: Schema | None) -> list[Encoded]:
    batches = table.combine_chunks().to_batches()
    pieces = [piece for batch in batches for piece in pieces_of(batch, ENTRY_BYTES)]
    return [encode_batch(piece, "zstd", schema) for piece in pieces if piece.num_rows]
