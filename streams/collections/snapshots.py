"""Snapshots: what all changes of a stream below an offset come to, kept beside the stream.

::

    snapshot |== entries, added up ==|  upto
    stream   ....... (may be trimmed) |-------------------->
    reader    reads the entries        then what is behind

The entries of a snapshot have the form of those of a stream, so whatever reads a stream reads a snapshot, new
columns of a schema included. They are written under a name of their own, which expires; one script then puts
them in the place of the snapshot that they were made of, if that is still the newest one
(``lua/take_snapshot.lua``). So two makers cannot mix, and one that was killed anywhere leaves what was there,
and something that goes by itself.

Retention never passes `upto`. What Redis lost of the changes is written into the snapshot, and its readers
are told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import StoreRefused, StreamleaseError
from streamlease.protocol.ids import StreamId, random_token
from streamlease.protocol.offsets import entry_id
from streamlease.streams.collections.change_reading import COLUMNS, ChangeReader, table_of
from streamlease.streams.collections.core.tables import added_up
from streamlease.streams.entries.decoding import decode_entries
from streamlease.streams.entries.encoding import encode_batch
from streamlease.streams.entries.layout import Encoded
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.splitting import pieces_of
from streamlease.streams.log.keys import snapshot_entries, snapshot_state, stream_meta
from streamlease.streams.log.ranges import MissingOffsets
from streamlease.streams.redis.connection import Argument, AsyncRedis, Command, ask
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import Space

ENTRY_BYTES = 1024 * 1024
"""About so large is an entry, before it is compressed."""

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


async def newest_snapshots(redis: AsyncRedis, streams: Sequence[StreamId]) -> dict[StreamId, StoredSnapshot]:
    """The newest snapshot of each of `streams`.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    names = ("number", "upto", "token", "messages", "entries", "lost")
    asked = [("HMGET", snapshot_state(stream), *names) for stream in streams]
    replies = await ask(redis, asked) if asked else []
    return {stream: _stored(reply) for stream, reply in zip(streams, replies, strict=True)}


def _stored(reply: Sequence[bytes | None]) -> StoredSnapshot:
    number, upto, token, messages, entries, lost = reply
    if number is None:
        return StoredSnapshot()
    holes = tuple((int(asked), int(oldest)) for asked, oldest in json.loads(lost or b"[]"))
    return StoredSnapshot(
        int(number), int(upto or 0), (token or b"").decode(), int(messages or 0), int(entries or 0), holes
    )


async def snapshot_tables(
    redis: AsyncRedis,
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
    """Make the snapshot of all changes below `upto`, of the one before; None: somebody else was faster.

    Raises:
        SnapshotGone, HistoryTruncated: somebody else was faster.
        SchemaMismatch: an entry is damaged: the stream keeps all that it has.
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    schema, versions = space.newest_schema, Versions(space.schemas) if space.schemas else None
    tables = [table async for table in snapshot_tables(redis, stream, former, versions, schema)]
    lost = [*former.lost]
    reader = ChangeReader(redis, None, {space.name: schema}, {stream: former.upto})
    async for read in reader.upto({stream: upto}):
        if isinstance(read, MissingOffsets):
            lost.append((int(read.asked) if isinstance(read.asked, int) else upto, read.oldest))
        else:
            tables.append(read.table)
    entries = await asyncio.to_thread(_encoded, tables, schema)
    token, messages = random_token(), sum(one.rows for one in entries)
    await _write(redis, snapshot_entries(stream, token), entries)
    keys = [stream_meta(stream), snapshot_state(stream), snapshot_entries(stream, token)]
    keys.append(snapshot_entries(stream, former.token))
    holes = json.dumps(lost)
    args: list[Argument] = [former.number, upto, token, messages, len(entries), holes, FORMER_SECONDS]
    reply: Any = await _TAKE.run(redis, keys, args)
    match reply[0]:
        case b"taken":
            return StoredSnapshot(int(reply[1]), upto, token, messages, len(entries), tuple(lost))
        case b"other" | b"gone" | b"unknown":
            await ask(redis, [("UNLINK", snapshot_entries(stream, token))])
            return None
        case _:
            raise StoreRefused(f"the script of snapshots answered {reply!r}: client and script do not fit")


def _encoded(tables: list[pa.Table], schema: Schema | None) -> list[Encoded]:
    if not tables:
        return []
    whole = added_up(pa.concat_tables(tables)).combine_chunks()
    pieces = [piece for batch in whole.to_batches() for piece in pieces_of(batch, ENTRY_BYTES)]
    return [encode_batch(piece, "zstd", schema) for piece in pieces if piece.num_rows]


async def _write(redis: AsyncRedis, key: str, entries: Sequence[Encoded]) -> None:
    first = 0
    for begin in range(0, len(entries), AT_ONCE):
        commands: list[Command] = []
        for entry in entries[begin : begin + AT_ONCE]:
            commands.append(("XADD", key, entry_id(first, entry.rows), *entry.fields, b"a", b"0"))
            first += entry.rows
        await ask(redis, [*commands, ("EXPIRE", key, UNFINISHED_SECONDS)])
