"""Staged rows of a sealed stream, encoded anew for the streams and the schema that follow it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from redis.exceptions import ResponseError

from streamlease.protocol.errors import StoreRefused
from streamlease.protocol.ids import StreamId, random_token
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.entries import Encoded, decode_entries, encode_batch
from streamlease.streams.entries.message_rows import TIMESTAMP
from streamlease.streams.entries.schemas import Versions
from streamlease.streams.entries.splitting import split
from streamlease.streams.log.keys import stream_staged
from streamlease.streams.publish.staged.batch_plan import Key, Parts
from streamlease.streams.publish.staged.staging import Lacking, gone, register_call, stage_call
from streamlease.streams.redis.connection import AsyncRedis, ask, refusal
from streamlease.streams.redis.scripts import run_many
from streamlease.streams.spaces.spaces import Space

_NO_TIME = 2**62
"""An append time that stands for "not appended yet" while staged rows are decoded."""


class Restaging:
    """Moves staged rows of one batch of a sink.

    Args:
        space: as it is defined now.
    """

    def __init__(self, redis: AsyncRedis, sink: str, batch: int, space: Space) -> None:
        self._redis = redis
        self._sink = sink
        self._batch = batch
        self._space = space
        self._versions = Versions(space.schemas) if space.schemas else None

    async def moved(self, stream: StreamId, groups: Sequence[Sequence[Key]]) -> Parts:
        """Stage the rows of some keys of `stream` anew; what follows it gets, part by part.

        Raises:
            StagedLost: some of them are gone.
            StoreUnavailable, StoreRefused, Indefinite: repeat it.
        """
        space, schema = self._space, self._space.newest_schema
        columns = ["topic", "key", "headers", "timestamp", *(schema.arrow.names if schema else ["payload"])]
        moved: Parts = {}
        for keys in groups:
            found: dict[StreamId, list[Encoded]] = {}
            for key in keys:
                for rows in await self._decoded(stream, key):
                    chosen = rows.select(columns)
                    for target, piece in split(chosen, space.stream_for, space.shard_by == "key", 2**20):
                        found.setdefault(target, []).append(encode_batch(piece, "zstd", schema))
            for target, entries in found.items():
                moved.setdefault(target, []).append([await self._staged(target, entries)])
        return moved

    async def _decoded(self, stream: StreamId, key: Key) -> list[pa.RecordBatch]:
        (staged,) = await ask(self._redis, [("XRANGE", stream_staged(stream, key.token), "-", "+")])
        if len(staged) != key.entries:
            raise gone(self._sink, self._batch, Lacking(stream, len(staged), key.entries))
        decoded = []
        for id, fields in staged:
            count = int(id.partition(b"-")[2])
            entry = (b"%d-%d" % (count - 1, count), [b"a", b"%d" % _NO_TIME, *fields])
            for rows in decode_entries(stream, [entry], versions=self._versions):
                decoded.append(_without_append_time(rows))
        return decoded

    async def _staged(self, stream: StreamId, entries: Sequence[Encoded]) -> Key:
        token = random_token()
        calls = [register_call(self._sink, self._batch, stream, token)]
        calls += [stage_call(stream, token, index, entry) for index, entry in enumerate(entries, 1)]
        for reply in await run_many(self._redis, calls):
            if isinstance(reply, ResponseError):
                raise refusal(reply)
            if reply[0] == b"gap":
                raise StoreRefused(f"rows that go from one stream to {stream} were not staged; repeat it")
        return Key(token, len(entries), sum(entry.rows for entry in entries))


def _without_append_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    place = rows.schema.get_field_index("timestamp")
    times = rows.column(place)
    unset = pc.equal(times, pa.scalar(_NO_TIME, pa.int64()).cast(TIMESTAMP))
    given = pc.if_else(unset, pa.scalar(None, TIMESTAMP), times)
    return rows.set_column(place, "timestamp", given)
