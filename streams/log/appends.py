"""Appends and their outcomes: what the append script is asked, and what its replies mean.

The script refuses an entry of an older version of the schema than its stream takes now, and writes nothing.
``newer`` turns it into the same append under the newest version, so a program that was started before the
schema gained a column goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from streamlease.protocol.errors import (
    Fenced,
    InvalidInput,
    SchemaMismatch,
    StoreRefused,
    StreamleaseError,
    StreamSealed,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Encoded, raised
from streamlease.streams.entries.schemas import load_versions
from streamlease.streams.log.keys import append_keys, stream_log, stream_meta, stream_news
from streamlease.streams.log.state import no_stream
from streamlease.streams.redis.cluster_slots import Answer
from streamlease.streams.redis.connection import Argument, Command, refusal
from streamlease.streams.redis.durability import MEMORY, Durability, not_durable
from streamlease.streams.redis.durable import Waits
from streamlease.streams.redis.scripts import Call, load_script

_ROOM = "streamlease.streams.log"

Position = tuple[int, int]
"""How far a publisher is: incarnation and sequence."""

ANYTHING: Position = (-1, -1)

_DAMAGED = ("WRONGTYPE", "Invalid stream ID", "attempt to ")
"""What Redis says where a script meets something that no script wrote."""

TOGETHER = 64
"""So many appends to streams of one server are done by one call at most. More would save nothing, and others
of the server would wait longer."""

TOGETHER_BYTES = 64 * 1024
"""Bytes of all entries of one such call, unless it has a single one."""


class OutOfSequence(Fenced):
    """Another append of the same publisher and incarnation was there first. `last` is its sequence."""

    def __init__(self, message: str, last: int = -1) -> None:
        super().__init__(message)
        self.last = last


class ProgressMoved(Fenced):
    """The publisher is not where the append says: another one of its id appended. Look where it is."""


class StreamPending(StoreRefused):
    """The stream takes nothing before the streams that it follows are sealed. Nothing was written."""


class Append(NamedTuple):
    """One entry for one stream, on behalf of one publisher.

    Args:
        publisher: id of the publisher; one that begins with ``~`` is forgotten after a day of silence.
        incarnation: a higher one fences the lower ones.
        sequence: 0, 1, 2, ... for this publisher, incarnation and stream.
        gaps: the sequence may leap forward.
        durability: what must hold before the append counts as done.
        after: the incarnation and sequence that the stream must have seen last of this publisher, None if
            nothing yet; then both may leap forward. Left out (``ANYTHING``): `gaps` says what may be.
        known: up to where the publisher knows the stream to be written. If Redis lost some of that, the
            append leaves a hole there, which readers are told of as ``MissingOffsets``.
    """

    stream: StreamId
    publisher: str
    incarnation: int
    sequence: int
    entry: Encoded
    gaps: bool = False
    durability: Durability = MEMORY
    after: Position | None = ANYTHING
    known: int = 0

    @property
    def expected(self) -> str:
        """The argument of the script that says what the sequence must follow."""
        if self.after is ANYTHING:
            return str(int(self.gaps))
        return "-" if self.after is None else f"{self.after[0]} {self.after[1]}"

    @property
    def call(self) -> Call:
        """The script call that does it."""
        return load_script(_ROOM, "append").call(
            append_keys(self.stream),
            [self.publisher, *self.numbers(stream_news(self.stream)), *self.entry.fields],
        )

    def numbers(self, news: str) -> tuple[Argument, ...]:
        """What the script takes from the incarnation on to the fields.

        Args:
            news: the channel that hears of it.
        """
        return (
            self.incarnation,
            self.sequence,
            self.entry.rows,
            self.expected,
            news,
            self.known,
        )


class Appended(NamedTuple):
    """Where an append stands: its first offset, number of messages, append time in microseconds."""

    stream: StreamId
    first: int
    rows: int
    append_time: int
    duplicate: bool


def foreign_entry(stream: StreamId, entry: str = "") -> StreamleaseError:
    """The error for a stream into whose log somebody put an entry behind its end.

    Such a log takes no entry before that one any more, also if that is removed: so the stream has ended.
    """
    log, space = stream_log(stream), stream.space
    if entry:
        what, remedy = (
            f"entry {entry}, which Streamlease did not write",
            f"remove it with XDEL {log} {entry}, and ",
        )
    else:
        what, remedy = "an entry, removed since, which Streamlease did not write", ""
    return StreamleaseError(
        f"stream {stream} takes no messages any more: {log} was given {what}; {remedy}give the space "
        f"new streams: streamlease space alter {space} --rotate"
    )


def refused_append(stream: StreamId, reply: ResponseError) -> StreamleaseError:
    """The error that a refused append to `stream` raises."""
    text = " ".join(str(reply).split())
    if "equal or smaller than the target" in text:
        return foreign_entry(stream)
    if any(words in text for words in _DAMAGED):
        said, keys = text.partition(" script: ")[0][:120], ", ".join(append_keys(stream))
        return StoreRefused(
            f"stream {stream} takes no messages, for one of its keys ({keys}) is damaged ({said}): "
            f"restore it from a backup, or give the space new streams: "
            f"streamlease space alter {stream.space} --rotate"
        )
    return refusal(reply)


def outcome_of_reply(append: Append, reply: Any) -> Appended | StreamleaseError:
    """What became of an append behind which nothing is waited for."""
    if isinstance(reply, list) and reply[0] == b"appended":  # as nearly always
        return Appended(append.stream, int(reply[1]), append.entry.rows, int(reply[2]), duplicate=False)
    if isinstance(reply, ResponseError):
        return refused_append(append.stream, reply)
    if isinstance(reply, StreamleaseError):
        return reply
    stream, who = append.stream, f"publisher {append.publisher}"
    match reply[0]:
        case b"moved" | b"fenced" | b"old" | b"mismatch" if append.after is not ANYTHING:
            return ProgressMoved(
                f"{who} is not at {append.expected} in stream {stream} ({reply[1]}): "
                f"it runs twice; end the other run"
            )
        case b"duplicate":
            return Appended(stream, int(reply[1]), append.entry.rows, int(reply[2]), duplicate=True)
        case b"fenced":
            return Fenced(
                f"{who} of incarnation {append.incarnation} was replaced by incarnation {reply[1]} "
                f"in stream {stream}: stop this one"
            )
        case b"sealed":
            return StreamSealed(
                f"stream {stream} is sealed and takes no more messages: publish to the newest generation"
            )
        case b"pending":
            return StreamPending(
                f"stream {stream} takes no messages yet, because its space is being altered: try again; "
                f"if it stays so, repeat 'streamlease space alter {stream.space}'"
            )
        case b"epochs":
            return InvalidInput(
                f"stream {stream} takes no messages as they come, for its space has epochs: use "
                f"client.epoch_publisher({stream.space!r}, NAME), or streamlease publish --publisher NAME"
            )
        case b"unknown":
            return no_stream(stream)
        case b"foreign":
            return foreign_entry(stream, reply[1].decode())
        case b"schema":
            return _wrong_schema(append, reply[1].decode())
        case b"old" | b"gap" | b"mismatch":
            return OutOfSequence(
                f"{who} sent sequence {append.sequence} to stream {stream}, which does not follow "
                f"what is there ({reply[0].decode()}, {reply[1]}): "
                f"two publishers use this id, or Redis lost writes",
                int(reply[1]) if reply[0] != b"mismatch" else append.sequence,
            )
        case _:
            return StoreRefused(f"the append script answered {reply!r}: client and script do not fit")


def outcome_of(append: Append, waits: Waits, answer: Answer) -> Appended | StreamleaseError:
    """What became of an append, given the reply and those to the waits behind it."""
    outcome = outcome_of_reply(append, answer.reply)
    if not isinstance(outcome, Appended):
        return outcome
    why = waits.failure(append.durability, answer.waited)
    if not why:
        return outcome
    what = f"a message of publisher {append.publisher}"
    return not_durable(what, append.durability, why, str(append.stream), outcome.first)


def _wrong_schema(append: Append, wanted: str) -> SchemaMismatch:
    fields = append.entry.fields
    given = fields[1].decode() if fields[0] == b"s" else ""
    takes = f"rows of schema {wanted}" if wanted else "payloads without a schema"
    return SchemaMismatch(
        f"stream {append.stream} takes {takes}, "
        f"and this is {f'a row of schema {given}' if given else 'a payload without a schema'}: "
        f"publish with the present schema of space {append.stream.space}"
    )


def grouped(appends: Sequence[Append], most: int) -> Iterator[Sequence[Append]]:
    """`appends` to different streams in neighbours that one call does: `most` at most, of one publisher.

    Raises:
        InvalidInput: a stream occurs twice.
    """
    if len({append.stream for append in appends}) != len(appends):
        raise InvalidInput("one call appends to a stream once: its appends must follow each other")
    first, size = 0, 0
    for place, append in enumerate(appends):
        size += append.entry.size
        if place > first and (
            place - first == most or size > TOGETHER_BYTES or append.publisher != appends[first].publisher
        ):
            yield appends[first:place]
            first, size = place, append.entry.size
    if appends:
        yield appends[first:]


def call_of(group: Sequence[Append]) -> Call:
    """The script call that does the appends of a group."""
    if len(group) == 1:
        return group[0].call
    keys: list[str] = []
    args: list[Argument] = [group[0].publisher]
    for append in group:
        fields = append.entry.fields
        keys += append_keys(append.stream)
        args += (len(fields), *append.numbers(stream_news(append.stream)), *fields)
    return load_script(_ROOM, "append_many").call(keys, args)


def answers_of(group: Sequence[Append], answer: Answer) -> Sequence[Answer] | None:
    """The answer to each append of a group; None if they are to be asked for one by one.

    Each append of a call has its own outcome, errors included. An error of the whole call, such as for keys
    of which this user may not write all, came before any of them was done.
    """
    if len(group) == 1 or isinstance(answer.reply, StreamleaseError):
        return [answer] * len(group)
    if isinstance(answer.reply, ResponseError):
        return None
    replies = (ResponseError(reply[1].decode()) if reply[0] == b"error" else reply for reply in answer.reply)
    return [Answer(reply, answer.waited) for reply in replies]


def behind(append: Append, outcome: Appended | StreamleaseError) -> bool:
    """Whether an append was refused for its schema, and may do under a newer version of that."""
    return isinstance(outcome, SchemaMismatch) and append.entry.fields[0] == b"s"


def versions_command(append: Append) -> Command:
    """Asks for what :func:`newer` needs."""
    return ("HGET", stream_meta(append.stream), "schemas")


def newer(late: Mapping[int, Append], replies: Sequence[Any]) -> dict[int, Append]:
    """Those of these appends, by place, that their streams take under a newer version of their schema.

    Args:
        replies: to the :func:`versions_command` of each.
    """
    found = {place: _newer(one, reply) for (place, one), reply in zip(late.items(), replies, strict=True)}
    return {place: append for place, append in found.items() if append is not None}


def _newer(append: Append, reply: Any) -> Append | None:
    """The same append under the newest version of its stream's schema; None if that is no newer one.

    Args:
        reply: to :func:`versions_command`.
    """
    versions = load_versions(reply) if reply else None
    given = append.entry.fields[1]
    if versions is None or versions.find(given) in (None, versions.newest):
        return None
    return append._replace(entry=raised(append.entry, versions))
