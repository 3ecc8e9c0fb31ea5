"""Bringing the staged rows of one batch into their streams, exactly once; see ``staging``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Fenced, StoreRefused, StreamleaseError, StreamSealed, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.appends import foreign_entry, refused_append
from streamlease.streams.log.keys import (
    sink_staged,
    sink_state,
    stream_log,
    stream_meta,
    stream_news,
    stream_publishers,
    stream_staged,
)
from streamlease.streams.log.state import no_stream
from streamlease.streams.publish.staged.batch_plan import BatchPlan, Key, Parts, Staged
from streamlease.streams.publish.staged.restaging import Restaging
from streamlease.streams.publish.staged.staging import EXPIRY_SECONDS, Lacking, StagedLost, gone, parse_member
from streamlease.streams.redis.connection import AsyncRedis, Command, ask
from streamlease.streams.redis.damaged import number, parsing
from streamlease.streams.redis.durability import not_durable, strongest
from streamlease.streams.redis.durable import run_durably, run_settled
from streamlease.streams.redis.scripts import Call, load_script
from streamlease.streams.spaces.spaces import Space, SpaceStore

_ROOM = "streamlease.streams.publish.staged"
PATIENCE = 30.0
"""How long (s) a space may stay half altered."""


_NEW = "compare the sink with its source, and use a new checkpointLocation"

Trouble = dict[StreamId, tuple[int, Any]]
"""Streams that refused: at which part, and what the script replied."""


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
            StagedLost: staged rows are gone; the message says whether a repetition heals it.
            StreamSealed, UnknownSpace: a space takes no more messages, or was deleted.
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: repeat the batch.
        """
        own = BatchPlan.of(staged)
        await self._check(batch, own)
        version, plan = await self._decide(batch, "", own, skip_past)
        if plan is None:
            (members,) = await ask(self._redis, [("SMEMBERS", sink_staged(self._sink))])
            await self._tidy(batch, members)
            return Delivered(0, True, past=True)
        repeated = plan.dump() != own.dump()
        if repeated and await self._lacking(plan) and not await self._begun(batch, plan):
            version, now = await self._decide(batch, version, own, skip_past=False)
            plan = now or own
        rows, deadline = 0, time.monotonic() + PATIENCE
        while True:
            added, trouble = await self._append(batch, plan)
            rows += added
            if not trouble:
                members, whole = await self._there(batch, plan)
                if whole:
                    break
                continue
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
        await self._decide(batch, version, plan.with_parts({}), skip_past=True)
        await self._tidy(batch, members)
        return Delivered(rows, repeated)

    async def forget(self) -> None:
        """Forget the sink, which writes no other batch."""
        await ask(self._redis, [("UNLINK", sink_state(self._sink)), ("UNLINK", sink_staged(self._sink))])

    async def _space(self, name: str) -> Space:
        if name not in self._known:
            self._known.update((await self._spaces.look()).spaces)
            if name not in self._known:
                await self._spaces.get(name)  # says what is wrong with it
                raise no_stream(StreamId(name, 0, 0))
        return self._known[name]

    # ------------------------------------------------------------------------------------- deciding

    async def _decide(
        self, batch: int, version: str, plan: BatchPlan, skip_past: bool
    ) -> tuple[str, BatchPlan | None]:
        """What holds for the batch from now on, and the number of that decision; no plan if it is past."""
        names = sorted({stream.space for stream in plan.parts})
        promised = strongest([(await self._space(name)).promised for name in names])
        call = load_script(_ROOM, "decide").call([sink_state(self._sink)], [batch, version, plan.dump()])
        reply, why = await run_durably(self._redis, call, promised)
        if why:
            raise StoreRefused(f"batch {batch} of sink {self._sink} was not decided durably: {why}")
        if reply[0] == b"damaged":
            raise Unsupported(
                f"what sink {self._sink} decided is damaged: "
                f"restore key {sink_state(self._sink)} from a backup"
            )
        if reply[0] == b"past":
            if skip_past:
                return "", None
            raise Fenced(
                f"sink {self._sink} wrote batch {int(reply[1])} already, and this one writes batch {batch}: "
                f"another run of the same query is ahead, or the checkpoint is older than the sink; "
                f"end this run, or use a new checkpointLocation"
            )
        return reply[1].decode(), BatchPlan.load(self._sink, reply[2])

    # ------------------------------------------------------------------------------- what is there

    async def _check(self, batch: int, own: BatchPlan) -> None:
        """Refuse to decide anew for rows of which Redis lost some, or which are there by a lost decision."""
        lacking = await self._lacking(own)
        former = await self._former(batch, own)
        if lacking is None and former is None:
            return
        (newest,) = await ask(self._redis, [("HGET", sink_state(self._sink), "batch")])
        if number(sink_state(self._sink), newest, -1) >= batch:
            return
        if former is not None:
            raise StagedLost(
                f"stream {former} has rows of batch {batch} of sink {self._sink}, Redis lost what was "
                f"decided about them, as in a failover, and the space was altered since: {_NEW}"
            )
        if lacking is not None:
            raise gone(self._sink, batch, lacking)

    async def _former(self, batch: int, own: BatchPlan) -> StreamId | None:
        """A stream of a former generation, for which `own` has nothing, that has rows of the batch."""
        spaces = [await self._space(name) for name in sorted({stream.space for stream in own.parts})]
        former = [
            stream
            for space in spaces
            for stream in space.streams()
            if stream.generation != space.newest.number and stream not in own.parts
        ]
        asked: list[Command] = [("HGET", stream_publishers(stream), self._publisher) for stream in former]
        records = await ask(self._redis, asked) if asked else []
        for stream, record in zip(former, records, strict=True):
            if _taken(stream, record)[0] == batch:
                return stream
        return None

    async def _lacking(self, plan: BatchPlan) -> Lacking | None:
        """A staged key of `plan` that is not there, or not with as many entries as the plan names."""
        keys = [(stream, key) for stream, parts in plan.parts.items() for group in parts for key in group]
        asked: list[Command] = [("XLEN", stream_staged(stream, key.token)) for stream, key in keys]
        lengths = await ask(self._redis, asked) if asked else []
        for (stream, key), length in zip(keys, lengths, strict=True):
            if int(length) != key.entries:
                return Lacking(stream, int(length), key.entries)
        return None

    async def _begun(self, batch: int, plan: BatchPlan) -> bool:
        """Whether any stream of `plan` has something of the batch, or is gone, so that nobody knows."""
        asked: list[Command] = []
        for stream in plan.parts:
            asked.append(("HGET", stream_publishers(stream), self._publisher))
            asked.append(("EXISTS", stream_meta(stream)))
        replies = await ask(self._redis, asked)
        records, there = replies[::2], replies[1::2]
        begun = (_taken(stream, one)[0] >= batch for stream, one in zip(plan.parts, records, strict=True))
        return any(begun) or not all(there)

    # ------------------------------------------------------------------------------------ appending

    def _call(self, batch: int, plan: BatchPlan, stream: StreamId, part: int) -> Call:
        groups = plan.parts[stream]
        keys = [*groups[part], *(key for group in groups[1:] for key in group if not part)]
        return load_script(_ROOM, "append_staged").call(
            [
                stream_meta(stream),
                stream_publishers(stream),
                stream_log(stream),
                *(stream_staged(stream, key.token) for key in keys),
            ],
            [
                self._publisher,
                batch,
                part,
                stream_news(stream),
                plan.tag_of(stream),
                len(groups[part]),
                *(number for key in keys for number in (key.entries, key.rows)),
            ],
        )

    async def _append(self, batch: int, plan: BatchPlan) -> tuple[int, Trouble]:
        """Append part by part. Messages appended; streams that refused."""
        rows = 0
        part = dict.fromkeys(plan.parts, 0)
        trouble: Trouble = {}
        while True:
            streams = [s for s, parts in plan.parts.items() if part[s] < len(parts) and s not in trouble]
            if not streams:
                return rows, trouble
            calls = [self._call(batch, plan, stream, part[stream]) for stream in streams]
            promised = [(await self._space(stream.space)).promised for stream in streams]
            answers, waits = await run_settled(self._redis, calls, promised)
            for stream, choice, answer in zip(streams, promised, answers, strict=True):
                reply = answer.reply
                if isinstance(reply, ResponseError):
                    raise refused_append(stream, reply)
                if isinstance(reply, StreamleaseError):
                    raise reply
                if reply[0] in (b"appended", b"duplicate"):
                    part[stream] += 1
                    rows += int(reply[2]) if reply[0] == b"appended" else 0
                    why = waits.failure(choice, answer.waited)
                    if why:
                        raise not_durable(f"batch {batch} of sink {self._sink}", choice, why, str(stream), -1)
                elif reply[0] == b"gap":
                    # Redis lost parts which it had appended; with them it lost that their keys were removed.
                    part[stream] = int(reply[1]) + 1
                else:
                    self._judge(batch, stream, reply)
                    trouble[stream] = (part[stream], reply)

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
            case b"foreign":
                raise foreign_entry(stream, reply[1].decode())

    # -------------------------------------------------------------------------------------- mending

    async def _replaced(self, plan: BatchPlan, trouble: Trouble, own: BatchPlan, batch: int) -> BatchPlan:
        """The plan with what its streams refused put elsewhere, or taken from the present attempt."""
        parts: Parts = {stream: [*groups] for stream, groups in plan.parts.items()}
        tags: dict[StreamId, str] = {}
        self._known.clear()
        self._spaces.forget()
        sealed: dict[StreamId, int] = {}
        for stream, (part, reply) in trouble.items():
            left = plan.parts[stream][part:]
            match reply[0]:
                case b"missing":
                    keys = [key for group in left for key in group]
                    lacking = Lacking(stream, int(reply[2]), keys[int(reply[1]) - 1].entries)
                    parts[stream] = self._restaged(batch, plan, own, part, lacking)
                    tags[stream] = own.tag
                case b"sealed" | b"schema":
                    gone = await self._lacking(plan.with_parts({stream: left}))
                    if gone is None:
                        sealed[stream] = part
                    else:
                        parts[stream] = self._restaged(batch, plan, own, part, gone)
                        tags[stream] = own.tag
                case b"other":
                    self._check_same(batch, plan, stream, int(reply[1]))
                    parts[stream] = []
                case _:
                    await self._settled(stream.space, again=True)
        for stream, part in sealed.items():
            space = await self._settled(stream.space)
            restaging = Restaging(self._redis, self._sink, batch, space)
            moved = await restaging.moved(stream, plan.parts[stream][part:])
            parts[stream] = parts[stream][:part]
            for target, groups in moved.items():
                parts.setdefault(target, []).extend(groups)
        return plan.with_parts(parts, tags)

    def _restaged(
        self, batch: int, plan: BatchPlan, own: BatchPlan, part: int, lacking: Lacking
    ) -> list[list[Key]]:
        """What the present attempt staged for a stream, in place of keys that are gone."""
        stream = lacking.stream
        mine = own.parts.get(stream)
        if part or (mine is None and own.tag != plan.tag):
            raise StagedLost(
                f"the rows of batch {batch} of sink {self._sink} that were staged for stream {stream} are "
                f"gone: they expire after {EXPIRY_SECONDS // 3600} hours; some of the batch is there, and "
                f"its repetition cannot tell which rows are not: {_NEW}"
            )
        if mine is None or mine == plan.parts[stream]:
            raise gone(self._sink, batch, lacking)
        return [*mine]

    def _check_same(self, batch: int, plan: BatchPlan, stream: StreamId, there: int) -> None:
        """Whether what a lost decision brought into `stream` is all that it gets of the batch."""
        if plan.rows(stream) != there:
            raise StagedLost(
                f"stream {stream} has {there} of {plan.rows(stream)} rows of batch {batch} of sink "
                f"{self._sink}, and Redis lost what was decided about them, as in a failover: {_NEW}"
            )

    async def _settled(self, name: str, *, again: bool = False) -> Space:
        space = await self._spaces.generations.settle(name, again=again)
        if space.ended:
            raise StreamSealed(f"space {name} is sealed and takes no more messages: write to another space")
        await self._spaces.generations.tell_schemas(space)
        return space

    async def _there(self, batch: int, plan: BatchPlan) -> tuple[Sequence[bytes], bool]:
        """What is staged for the sink, and whether all streams have what they acknowledged.

        Asked before the decision is emptied: what a failover took until now can still be appended again.
        """
        asked: list[Command] = [("HGET", stream_publishers(stream), self._publisher) for stream in plan.parts]
        staged, *records = await ask(self._redis, [("SMEMBERS", sink_staged(self._sink)), *asked])
        for (stream, parts), record in zip(plan.parts.items(), records, strict=True):
            was, part = _taken(stream, record)
            if was < batch or (was == batch and part < len(parts) - 1):
                return staged, False
        return staged, True

    async def _tidy(self, batch: int, members: Sequence[bytes]) -> None:
        """Remove what was staged for this batch or former ones and not taken."""
        commands: list[Command] = []
        for member in members:
            taken, stream, token = parse_member(self._sink, member)
            if taken <= batch:
                commands.append(("UNLINK", stream_staged(stream, token)))
                commands.append(("SREM", sink_staged(self._sink), member))
        if commands:
            await ask(self._redis, commands)


def _taken(stream: StreamId, record: bytes | None) -> tuple[int, int]:
    """Which batch of the sink a stream has last taken, and up to which part.

    Raises:
        Unsupported: what it remembers cannot be read.
    """
    if record is None:
        return -1, -1
    with parsing(f"what stream {stream} knows of a sink", stream_publishers(stream)):
        batch, part, *_ = record.split()
        return int(batch), int(part)
