"""What Redis knows of the files of streams, written in one act for each stream (``lua/record.lua``).

Files are recorded when they are proven and part of the table. The act says in the same breath what is
archived now, and that is how far ``streams/spaces/lua/trim.lua`` goes. So no crash leaves a message in
neither of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from redis.exceptions import ResponseError

from streamlease.protocol.errors import ArchiveUnavailable, Fenced, StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.archive.files.index import ArchivedFile, in_order, parse_file
from streamlease.streams.log.archived import files_commands, parse_files
from streamlease.streams.log.keys import stream_files, stream_log, stream_meta
from streamlease.streams.log.state import LogState, meta_command, no_stream, parse_meta
from streamlease.streams.redis.connection import BlockingRedis, Command, Redis, ask, refusal, run_blocking
from streamlease.streams.redis.damaged import number
from streamlease.streams.redis.scripts import load_script, run_many

PAGE = 64
"""Streams that are asked about in one exchange."""

_RECORD = load_script("streamlease.streams.archive", "record")


class ArchiveMoved(ArchiveUnavailable):
    """Somebody else changed the table, or what is recorded, since it was read: read it again."""


class CommitRefused(ArchiveMoved):
    """The same, and the table has refused what was to be committed."""


class Recorded(NamedTuple):
    """What Redis knows of a stream that is archived."""

    state: LogState
    archived: int
    """What is below it is in files, or was retired; 0 if nothing is."""
    retired_at: int
    term: int
    """The highest of an archiver."""
    files: list[ArchivedFile]
    """In the order of their offsets."""

    @property
    def exists(self) -> int:
        """The lowest offset that is in a file, if there is any."""
        return self.state.exists or 0


class FileChange(NamedTuple):
    """What becomes of the files of one stream."""

    stream: StreamId
    before: int
    """What was archived."""
    upto: int
    exists: int
    new: Sequence[ArchivedFile] = ()
    gone: Sequence[ArchivedFile] = ()
    retired: int = 0


def recorded(
    redis: BlockingRedis, streams: Iterable[StreamId], *, with_files: bool = True
) -> dict[StreamId, Recorded]:
    """`read_recorded`, blocking."""
    return run_blocking(read_recorded(redis, streams, with_files=with_files))


async def read_recorded(
    redis: Redis, streams: Iterable[StreamId], *, with_files: bool = True
) -> dict[StreamId, Recorded]:
    """What is recorded of `streams`; those that do not exist are left out.

    Args:
        with_files: else no files are listed, of which a stream may have thousands.

    Raises:
        StoreUnavailable, StoreRefused, StreamleaseError: what stands there is damaged.
    """
    wanted, found = [*streams], {}
    for begin in range(0, len(wanted), PAGE):
        page = wanted[begin : begin + PAGE]
        commands: list[Command] = []
        for stream in page:
            commands += [meta_command(stream), files_commands(stream, 0)[0]]
            commands.append(("HGET", stream_meta(stream), "archive_term"))
            most = (-1 if with_files else 0,)
            commands.append(("ZRANGEBYSCORE", stream_files(stream), "-inf", "+inf", "LIMIT", 0, *most))
        replies = await ask(redis, commands)
        for place, stream in enumerate(page):
            meta, more, term, lines = replies[4 * place : 4 * place + 4]
            state = parse_meta(stream, meta)
            if state is not None:
                known = parse_files(stream, [more, []])
                files = in_order(map(parse_file, lines))
                at_term = number(stream_meta(stream), term)
                found[stream] = Recorded(state, known.archived, known.retired_at, at_term, files)
    return found


def record(redis: BlockingRedis, term: int, changes: Sequence[FileChange]) -> None:
    """Record `changes`, each as one act; each may be repeated.

    Raises:
        Fenced: an archiver with a higher term records now.
        ArchiveMoved: another one recorded meanwhile, or Redis has lost what is in the files: look again.
        UnknownSpace: a stream is gone.
        StoreUnavailable, StoreRefused, Indefinite: some are recorded, others not.
    """
    calls = [
        _RECORD.call(
            [stream_meta(one.stream), stream_files(one.stream), stream_log(one.stream)],
            [
                term,
                one.before,
                one.upto,
                one.exists,
                one.retired,
                len(one.gone),
                *(file.line() for file in one.gone),
                *(value for file in one.new for value in (file.next, file.until, file.line())),
            ],
        )
        for one in changes
    ]
    for begin in range(0, len(calls), PAGE):
        page = run_blocking(run_many(redis, calls[begin : begin + PAGE]))
        for change, reply in zip(changes[begin : begin + PAGE], page, strict=True):
            if isinstance(reply, ResponseError):
                raise refusal(reply)
            match reply[0]:
                case b"recorded":
                    continue
                case b"unknown":
                    raise no_stream(change.stream)
                case b"fenced":
                    raise Fenced(f"stream {change.stream} is archived by another process: term {reply[1]}")
                case b"moved":
                    raise ArchiveMoved(f"stream {change.stream} was archived meanwhile by another process")
                case b"lost":
                    raise ArchiveMoved(
                        f"Redis has lost messages of stream {change.stream} below {int(reply[1])} that "
                        f"were archived, as in a failover: what it has now is archived again"
                    )
                case _:
                    raise StoreRefused(f"the script answered {reply!r}: client and script do not fit")
