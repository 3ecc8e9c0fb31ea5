"""Appending to streams and reading from them.

An append is one atomic script (``lua/append.lua``). It names its publisher, the publisher's incarnation and
a sequence; a publisher has *one append in flight per stream*. So the server keeps only the last
sequence of each publisher: the same again is a retry and adds nothing, the next one is new, and
anything else shows that somebody else used the name: ``Fenced``.

A publisher that numbers its appends by something outside, such as the batches of a Spark query, sets
`gaps`: then a sequence may leap forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
from redis.exceptions import ResponseError

from streamlease.protocol.errors import NotDurable, StoreRefused, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.log.append_rounds import write_appends
from streamlease.streams.log.appends import (
    ANYTHING,
    Append,
    Appended,
    OutOfSequence,
    Position,
    ProgressMoved,
    StreamPending,
    call_of,
)
from streamlease.streams.log.keys import staged_part, stream_meta, stream_news, stream_publishers
from streamlease.streams.log.many import READ_BYTES, read_all
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.log.segments import Segment
from streamlease.streams.log.state import (
    MOST_ENDS,
    Legacy,
    LogState,
    meta_command,
    no_stream,
    parse_ends,
    parse_metas,
)
from streamlease.streams.log.times import after_offset, microseconds, offsets_after
from streamlease.streams.redis.connection import (
    Argument,
    Command,
    Redis,
    ask,
    refusal,
)
from streamlease.streams.redis.durability import MEMORY, WAIT_SECONDS, Durability
from streamlease.streams.redis.durable import run_settled
from streamlease.streams.redis.scripts import (
    Call,
    load_script,
    run_many,
)

_ROOM = "streamlease.streams.log"

__all__ = [
    "ANYTHING",
    "Append",
    "Appended",
    "AsyncLog",
    "OutOfSequence",
    "Position",
    "ProgressMoved",
    "StreamPending",
]


def _sealed(stream: StreamId, reply: Any) -> int:
    if reply[0] == b"unknown":
        raise no_stream(stream)
    return int(reply[1])


def _after(stream: StreamId, offset: int, state: LogState | None) -> int:
    if state is None:
        raise no_stream(stream)
    return after_offset(stream, offset, state)


class AsyncLog:
    """The streams behind one client of Redis. The coroutines of a blocking one are for ``run_blocking``.

    Args:
        older: what holds messages that are not in memory any more, newest first; read in threads.
    """

    def __init__(self, redis: Redis, older: Sequence[Segment] = ()) -> None:
        self._redis = redis
        self._older = older

    async def open(
        self,
        streams: Iterable[StreamId],
        wanted: Literal["open", "epochs", "pending", "begin", "begin_epochs"] = "open",
        durability: Durability = MEMORY,
    ) -> None:
        """Bring streams into being; those that exist are left alone, but pending ones can be opened.

        Args:
            wanted: ``pending`` makes streams that take nothing yet; ``begin`` opens those that exist; into
                ``epochs`` only a keeper writes, also if they were open before, and ``begin_epochs`` makes
                such ones of those that exist.
            durability: what must hold before it counts as done.

        Raises:
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        script = load_script(_ROOM, "open")
        calls = [script.call([stream_meta(stream)], [wanted]) for stream in streams]
        await self._change_all(calls, "the opening of a stream", durability)

    async def seal_all(
        self, streams: Iterable[StreamId], durability: Durability = MEMORY, *, unless_staged: bool = False
    ) -> None:
        """End streams for good; those that do not exist can take nothing either, and are passed over.

        Args:
            durability: what must hold before it counts as done.
            unless_staged: not those for which messages of open epochs are staged.

        Raises:
            StoreRefused: messages are staged for one of them.
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        script = load_script(_ROOM, "seal")
        calls = [
            script.call(
                [stream_meta(stream), *([staged_part(stream, "epochs")] if unless_staged else [])],
                [stream_news(stream)],
            )
            for stream in streams
        ]
        if b"staged" in await self._change_all(calls, "the seal of a stream", durability):
            raise StoreRefused(
                "messages of open epochs are staged for a stream that is to be sealed; try again"
            )

    async def _change_all(self, calls: Sequence[Call], what: str, choice: Durability) -> set[Any]:
        """Run scripts that each change one stream; the first words of their replies."""
        if not calls:
            return set()
        answers, waits = await run_settled(self._redis, calls, [choice])
        for answer in answers:
            if isinstance(answer.reply, ResponseError):
                raise refusal(answer.reply)
            if isinstance(answer.reply, StreamleaseError):
                raise answer.reply
            why = waits.failure(choice, answer.waited)
            if why:
                raise NotDurable(
                    f"{what} is written, but not as durably as {choice} demands: {why}; "
                    f"it may still exist: look at the server, then repeat"
                )
        return {answer.reply[0] for answer in answers if isinstance(answer.reply, list)}

    async def set_schemas(self, streams: Iterable[StreamId], versions: Versions) -> None:
        """Tell `streams` the versions of the schema that the definition of their space has.

        From then on they take entries of the newest version only. Definitions come first and are the truth,
        so whoever finds that a stream knows fewer versions may tell it; one that knows more is left alone.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        script = load_script(_ROOM, "schema")
        args: list[Argument] = [len(versions), versions.newest.fingerprint, versions.dump()]
        calls = [script.call([stream_meta(stream)], args) for stream in streams]
        for reply in await run_many(self._redis, calls) if calls else []:
            if isinstance(reply, ResponseError):
                raise refusal(reply) from None

    async def inherit(self, legacies: Mapping[StreamId, Legacy]) -> None:
        """Tell streams what is gone of those that they follow.

        ``since`` of a moment before their newest message is ``HistoryTruncated`` from then on.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        script = load_script(_ROOM, "inherit")
        calls = [
            script.call([stream_meta(stream)], [legacy.newest, legacy.written, MOST_ENDS])
            for stream, legacy in legacies.items()
        ]
        for reply in await run_many(self._redis, calls) if calls else []:
            if isinstance(reply, ResponseError):
                raise refusal(reply) from None

    async def former_ends(self, streams: Iterable[StreamId]) -> dict[StreamId, int]:
        """Where the dropped streams that `streams` follow had ended, as far as that is remembered.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        wanted, found = [*streams], dict[StreamId, int]()
        asked: list[Command] = [("HGET", stream_meta(stream), "ends") for stream in wanted]
        for stream, text in zip(wanted, await ask(self._redis, asked) if asked else [], strict=True):
            found |= parse_ends(stream, text)
        return found

    async def named_appends(self, streams: Iterable[StreamId]) -> int:
        """When a publisher with a name of its own (not ``~...``) last appended to any of `streams`; us, or 0.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        wanted, newest = [*streams], 0
        for begin in range(0, len(wanted), 64):
            asked: list[Command] = [
                ("HGETALL", stream_publishers(stream)) for stream in wanted[begin : begin + 64]
            ]
            for records in await ask(self._redis, asked):
                for publisher, record in zip(records[::2], records[1::2], strict=True):
                    if not publisher.startswith(b"~"):
                        newest = max(newest, int(record.split()[4]))
        return newest

    async def seal(self, stream: StreamId) -> int:
        """End `stream` for good; its ``next`` offset, which is its end.

        Raises:
            UnknownSpace: there is no such stream.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        script = load_script(_ROOM, "seal")
        return _sealed(stream, await script.run(self._redis, [stream_meta(stream)], [stream_news(stream)]))

    async def append(self, append: Append) -> Appended:
        """Append one entry.

        Raises:
            Fenced: a higher incarnation, or (``OutOfSequence``) another user of the publisher id.
            StreamSealed, UnknownSpace: the stream takes nothing.
            NotDurable: it was written, but less durably; the same sequence again only waits again.
            SchemaMismatch: the entry is not of the schema that the stream takes.
            StoreUnavailable, StoreRefused: nothing was written; safe to repeat.
            Indefinite: it may have been written; safe to repeat with the same sequence.
        """
        (outcome,) = await self.append_many([append])
        if isinstance(outcome, StreamleaseError):
            raise outcome
        return outcome

    async def append_many(
        self, appends: Sequence[Append], *, wait_seconds: float = WAIT_SECONDS, evolve: bool = True
    ) -> list[Appended | StreamleaseError]:
        """Append entries to different streams in one write; outcomes in order, each on its own.

        Args:
            evolve: an entry of an older version of its stream's schema is written under the newest one.
            wait_seconds: how long the server may take to make them as durable as they demand.

        Raises:
            InvalidInput: a stream occurs twice.
            StoreUnavailable: nothing was written.
            Indefinite: each may have been written, or not.
        """
        return await write_appends(self._redis, appends, call_of, wait_seconds=wait_seconds, evolve=evolve)

    async def never_again(self, stream: StreamId, position: int) -> int | None:
        """See to it that no offset below `position`, which a reader has seen, is given out again.

        Returns:
            where the stream ended if Redis had lost messages below `position`; None if it had not.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        script = load_script(_ROOM, "raise")
        reply = await script.run(self._redis, [stream_meta(stream)], [position, stream_news(stream)])
        return int(reply[1]) if reply[0] == b"raised" else None

    async def forget(self, publisher: str, streams: Iterable[StreamId]) -> None:
        """Drop what `streams` remember of a publisher that will never come back."""
        commands: list[Command] = [("HDEL", stream_publishers(stream), publisher) for stream in streams]
        if commands:
            await ask(self._redis, commands)

    async def positions(self, publisher: str, streams: Iterable[StreamId]) -> dict[StreamId, Position]:
        """Incarnation and sequence of the last append of `publisher`, in those streams where it had any.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        wanted = [*streams]
        commands: list[Command] = [("HGET", stream_publishers(stream), publisher) for stream in wanted]
        found = await ask(self._redis, commands) if commands else []
        records = zip(wanted, found, strict=True)
        return {
            stream: (int(parts[0]), int(parts[1]))
            for stream, record in records
            if record is not None and (parts := record.split())
        }

    async def taken_of(self, publisher: str, streams: Iterable[StreamId]) -> dict[StreamId, tuple[int, int]]:
        """First offset and number of messages of the last append of `publisher`, where it had any.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        wanted = [*streams]
        commands: list[Command] = [("HGET", stream_publishers(stream), publisher) for stream in wanted]
        found = await ask(self._redis, commands) if commands else []
        records = zip(wanted, found, strict=True)
        return {
            stream: (int(parts[2]), int(parts[3]))
            for stream, record in records
            if record is not None and (parts := record.split())
        }

    async def states(
        self, streams: Iterable[StreamId], damaged: dict[StreamId, StreamleaseError] | None = None
    ) -> dict[StreamId, LogState]:
        """What is known about `streams`, in one round trip; those that do not exist are left out.

        Args:
            damaged: gets the errors of streams that cannot be read; None: one of them is raised.
        """
        wanted = [*streams]
        replies = await ask(self._redis, [meta_command(one) for one in wanted]) if wanted else []
        return parse_metas(wanted, replies, damaged)

    async def next_offsets(
        self, streams: Iterable[StreamId], damaged: dict[StreamId, StreamleaseError] | None = None
    ) -> dict[StreamId, int]:
        """The offset that the next message of each stream will get; unknown streams are left out.

        Args:
            damaged: gets the errors of streams of which this cannot be read; None: one of them is raised.
        """
        return {stream: state.next for stream, state in (await self.states(streams, damaged)).items()}

    async def floors(self, streams: Iterable[StreamId]) -> dict[StreamId, int]:
        """The lowest offset of each stream that exists; unknown streams are left out."""
        return {stream: state.floor for stream, state in (await self.states(streams)).items()}

    async def since(self, stream: StreamId, point: int | datetime) -> int:
        """The offset of what came right after `point`: start reading there.

        Args:
            point: an offset, -1 for the beginning; or a moment: then the first message appended after it.

        Raises:
            HistoryTruncated: retention removed messages from after the point; `oldest` are left.
            InvalidInput: the stream never had that offset, or the moment has no time zone.
            UnknownSpace, StoreUnavailable, StoreRefused.
        """
        if isinstance(point, datetime):
            return (await offsets_after(self._redis, {stream: microseconds(point)}))[stream]
        return _after(stream, point, (await self.states([stream])).get(stream))

    async def read(
        self,
        stream: StreamId,
        start: int,
        end: int | None = None,
        *,
        enough: int | None = None,
        max_bytes: int | None = READ_BYTES,
        schema: Schema | None = None,
    ) -> list[pa.RecordBatch]:
        """The messages from `start` on, below `end`, as far as there are any: without a hole, perhaps none.

        Args:
            end: None for the end of the stream.
            enough: stop with the entry that brings so many messages.
            max_bytes: stop early, but not before one entry; counts bytes as expanded.
            schema: the typed columns wanted, in a space with a schema; None for all.

        Returns:
            batches of ``MESSAGE_SCHEMA``, with the typed columns behind, each of at most 65,536 rows and
            32 MiB, but for a row that is larger.

        Raises:
            HistoryTruncated: `start` is no longer there, or (``MissingOffsets``) data was lost.
            DamagedEntry: the messages from `start` on cannot be read; those before a damaged entry are given.
            UnknownSpace, SchemaMismatch, StoreUnavailable, StoreRefused.
        """
        reader = RangeReader(stream, start, end, enough=enough, max_bytes=max_bytes, schema=schema)
        (outcome,) = await read_all(self._redis, [reader], self._older)
        if isinstance(outcome, StreamleaseError):
            raise outcome
        return outcome
