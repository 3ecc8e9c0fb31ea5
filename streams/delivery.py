"""Bringing the staged rows of one batch into their streams, exactly once; see ``staging``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from redis.exceptions import ResponseError

from streamlease.protocol.errors import Fenced, StoreRefused, StreamleaseError, StreamSealed
from streamlease.protocol.ids import StreamId, random_token
from streamlease.streams.connection import AsyncRedis, Command, ask, refusal
from streamlease.streams.durability import not_durable, strongest
from streamlease.streams.durable import run_durably, run_settled
from streamlease.streams.entries import Encoded, decode_entries, encode_batch
from streamlease.streams.keys import (
    sink_staged,
    sink_state,
    stream_log,
    stream_meta,
    stream_news,
    stream_publishers,
    stream_staged,
)
from streamlease.streams.messages import TIMESTAMP
from streamlease.streams.ranges import no_stream
from streamlease.streams.schemas import Versions
from streamlease.streams.scripts import Call, load_script
from streamlease.streams.spaces import Space, SpaceStore
from streamlease.streams.splitting import split
from streamlease.streams.staging import EXPIRY_SECONDS, Lost, Plan, Staged, parse_member

_ROOM = "streamlease.streams"
_NO_TIME = 2**62
"""An append time that stands for "not appended yet" while staged rows are decoded."""

PATIENCE = 30.0
"""How long (s) a space may stay half altered."""


class Delivered(NamedTuple):
    """What became of a batch."""

    rows: int
    """Messages appended by this call."""
    repeated: bool
    """An earlier attempt had decided the batch; its rows count, not those handed over now."""
    past: bool = False
    """A later batch was there, so nothing was done."""


class Delivery:
    """Delivers the batches of one sink.

    Args:
        sink: its name.
        publisher: the id under which the streams remember its batches.
        spaces: looks up definitions.
    """

    def __init__(
        self, redis: AsyncRedis, sink: str, publisher: str, spaces: SpaceStore | None = None
    ) -> None:
        self._redis = redis
        self._sink = sink
        self._publisher = publisher
        self._spaces = spaces or SpaceStore(redis)
        self._known: dict[str, Space] = {}

    async def deliver(self, batch: int, staged: Sequence[Staged], *, skip_past: bool = False) -> Delivered:
        """Append the batch that consists of `staged`, unless an earlier attempt decided otherwise.

        Args:
            skip_past: a batch below the newest one is taken for delivered, and not an error.

        Raises:
            Fenced: a later batch was written: the caller is not the one who drives this sink now.
            Lost: rows that an earlier attempt had staged are gone, some of the batch is there.
            StreamSealed, UnknownSpace: a space takes no more messages, or was deleted.
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: repeat the batch.
        """
        own = Plan.of(staged)
        version, plan = await self._decide(batch, "", own, skip_past)
        if plan is None:
            await self._tidy(batch)
            return Delivered(0, True, past=True)
        repeated = plan.dump() != own.dump()
        rows, deadline = 0, time.monotonic() + PATIENCE
        while True:
            added, trouble = await self._append(batch, plan)
            rows += added
            if not trouble:
                break
            replaced = await self._replaced(plan, trouble, own, batch)
            if replaced.dump() != plan.dump():
                version, now = await self._decide(batch, version, replaced, skip_past=False)
                plan = now or replaced
            elif time.monotonic() > deadline:
                raise StoreRefused(
                    f"the streams {', '.join(map(str, trouble))} take no messages, because their space is "
                    f"being altered: repeat 'streamlease space alter' and start again"
                )
            else:
                await asyncio.sleep(0.1)
        await self._decide(batch, version, Plan({}), skip_past=True)
        await self._tidy(batch)
        return Delivered(rows, repeated)

    async def forget(self) -> None:
        """Forget the sink, which writes no other batch."""
        await ask(self._redis, [("UNLINK", sink_state(self._sink)), ("UNLINK", sink_staged(self._sink))])

    async def _space(self, name: str) -> Space:
        if name not in self._known:
            self._known.update({space.name: space for space in await self._spaces.list()})
            if name not in self._known:
                raise no_stream(StreamId(name, 0, 0))
        return self._known[name]

    # ------------------------------------------------------------------------------------- deciding

    async def _decide(self, batch: int, version: str, plan: Plan, skip_past: bool) -> tuple[str, Plan | None]:
        """What holds for the batch from now on, and the number of that decision; no plan if it is past."""
        names = sorted({stream.space for stream in plan.parts})
        promised = strongest([(await self._space(name)).promised for name in names])
        call = load_script(_ROOM, "decide").call([sink_state(self._sink)], [batch, version, plan.dump()])
        reply, why = await run_durably(self._redis, call, promised)
        if why:
            raise StoreRefused(f"batch {batch} of sink {self._sink} was not decided durably: {why}")
        if reply[0] == b"past":
            if skip_past:
                return "", None
            raise Fenced(
                f"sink {self._sink} wrote batch {int(reply[1])} already, and this one writes batch {batch}: "
                f"another run of the same query is ahead, or the checkpoint is older than the sink; "
                f"end this run, or use a new checkpointLocation"
            )
        return reply[1].decode(), Plan.load(reply[2])

    # ------------------------------------------------------------------------------------ appending

    def _call(self, batch: int, stream: StreamId, part: int, tokens: Sequence[str]) -> Call:
        staged = [stream_staged(stream, token) for token in tokens]
        return load_script(_ROOM, "append_staged").call(
            [stream_meta(stream), stream_publishers(stream), stream_log(stream), *staged],
            [self._publisher, batch, part, stream_news(stream)],
        )

    async def _append(self, batch: int, plan: Plan) -> tuple[int, dict[StreamId, tuple[int, bytes]]]:
        """Append part by part. Messages appended; streams that refused, at which part and why."""
        rows, part = 0, 0
        trouble: dict[StreamId, tuple[int, bytes]] = {}
        while True:
            streams = [s for s, parts in plan.parts.items() if part < len(parts) and s not in trouble]
            if not streams:
                return rows, trouble
            calls = [self._call(batch, stream, part, plan.parts[stream][part]) for stream in streams]
            promised = [(await self._space(stream.space)).promised for stream in streams]
            answers, waits = await run_settled(self._redis, calls, promised)
            for stream, choice, answer in zip(streams, promised, answers, strict=True):
                reply = answer.reply
                if isinstance(reply, ResponseError):
                    raise refusal(reply)
                if isinstance(reply, StreamleaseError):
                    raise reply
                if reply[0] in (b"appended", b"duplicate"):
                    rows += int(reply[2]) if reply[0] == b"appended" else 0
                    why = waits.failure(choice, answer.waited)
                    if why:
                        raise not_durable(f"batch {batch} of sink {self._sink}", choice, why, str(stream), -1)
                else:
                    self._judge(batch, stream, reply)
                    trouble[stream] = (part, reply[0])
            part += 1

    def _judge(self, batch: int, stream: StreamId, reply: Any) -> None:
        """Raise what cannot be mended."""
        match reply[0]:
            case b"fenced":
                raise Fenced(
                    f"stream {stream} has batch {int(reply[1])} of sink {self._sink} already, and this is "
                    f"batch {batch}: another run of the same query is ahead; end this one"
                )
            case b"unknown":
                raise no_stream(stream)
            case b"gap":
                raise Lost(
                    f"stream {stream} lost part {int(reply[1]) + 1} of batch {batch} of sink {self._sink}, "
                    f"as in a failover of Redis: compare the sink with its source, and use a new "
                    f"checkpointLocation"
                )

    # -------------------------------------------------------------------------------------- mending

    async def _replaced(
        self, plan: Plan, trouble: dict[StreamId, tuple[int, bytes]], own: Plan, batch: int
    ) -> Plan:
        """The plan with what its streams refused put elsewhere."""
        parts = {stream: [*groups] for stream, groups in plan.parts.items()}
        self._known.clear()
        self._spaces.forget()
        for stream, (part, why) in trouble.items():
            if why == b"missing":
                mine = own.parts.get(stream)
                if part or mine is None or mine == plan.parts[stream]:
                    raise Lost(
                        f"the rows of batch {batch} of sink {self._sink} that were staged for stream "
                        f"{stream} are gone: they expire after {EXPIRY_SECONDS // 3600} hours; "
                        f"compare the sink with its source, and use a new checkpointLocation"
                    )
                parts[stream] = [*mine]
            elif why in {b"sealed", b"schema"}:
                moved = await self._moved(stream, plan.parts[stream][part:], batch)
                parts[stream] = parts[stream][:part]
                for target, groups in moved.items():
                    parts.setdefault(target, []).extend(groups)
            else:
                await self._settled(stream.space)
        return Plan({stream: groups for stream, groups in parts.items() if groups})

    async def _settled(self, name: str) -> Space:
        space = await self._spaces.settle(name)
        if space.ended:
            raise StreamSealed(f"space {name} is sealed and takes no more messages: write to another space")
        await self._spaces.tell_schemas(space)
        return space

    async def _moved(
        self, stream: StreamId, groups: Sequence[Sequence[str]], batch: int
    ) -> dict[StreamId, list[list[str]]]:
        """Encode staged rows anew for the streams and the schema that their space has now."""
        space = await self._settled(stream.space)
        schema = space.newest_schema
        versions = Versions(space.schemas) if space.schemas else None
        columns = ["topic", "key", "headers", "timestamp", *(schema.arrow.names if schema else ["payload"])]
        moved: dict[StreamId, list[list[str]]] = {}
        for tokens in groups:
            found: dict[StreamId, list[Encoded]] = {}
            for token in tokens:
                for rows in await self._decoded(stream, token, versions):
                    chosen = rows.select(columns)
                    for target, piece in split(chosen, space.stream_for, space.shard_by == "key", 2**20):
                        found.setdefault(target, []).append(encode_batch(piece, "zstd", schema))
            for target, entries in found.items():
                moved.setdefault(target, []).append([await self._stage(target, entries, batch)])
        return moved

    async def _decoded(self, stream: StreamId, token: str, versions: Versions | None) -> list[pa.RecordBatch]:
        (staged,) = await ask(self._redis, [("XRANGE", stream_staged(stream, token), "-", "+")])
        if not staged:
            raise Lost(f"what was staged for stream {stream} is gone, while its space was altered")
        decoded = []
        for id, fields in staged:
            count = int(id.partition(b"-")[2])
            whole = [b"a", b"%d" % _NO_TIME, *fields]
            for rows in decode_entries(stream, [(b"%d-%d" % (count - 1, count), whole)], versions=versions):
                decoded.append(_without_append_time(rows))
        return decoded

    async def _stage(self, stream: StreamId, entries: Sequence[Encoded], batch: int) -> str:
        token = random_token()
        name = stream_staged(stream, token)
        commands: list[Command] = [("SADD", sink_staged(self._sink), f"{batch} {stream} {token}")]
        commands += [("XADD", name, f"{n}-{entry.rows}", *entry.fields) for n, entry in enumerate(entries, 1)]
        commands.append(("EXPIRE", name, EXPIRY_SECONDS))
        await ask(self._redis, commands)
        return token

    async def _tidy(self, batch: int) -> None:
        """Remove what was staged for this batch or former ones and not taken."""
        registry = sink_staged(self._sink)
        (members,) = await ask(self._redis, [("SMEMBERS", registry)])
        commands: list[Command] = []
        for member in members:
            number, stream, token = parse_member(member)
            if number <= batch:
                commands.append(("UNLINK", stream_staged(stream, token)))
                commands.append(("SREM", registry, member))
        if commands:
            await ask(self._redis, commands)


def _without_append_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    place = rows.schema.get_field_index("timestamp")
    times = rows.column(place)
    unset = pc.equal(times, pa.scalar(_NO_TIME, pa.int64()).cast(TIMESTAMP))
    given = pc.if_else(unset, pa.scalar(None, TIMESTAMP), times)
    return rows.set_column(place, "timestamp", given)
