"""The end of a space with epochs, or of a generation of its streams: what was given up completes before.

*The end of the space*: a line says so, and its script lets nobody enter any more; the keeper completes what
waits, and records a boundary with an empty lower frontier. Only then the streams themselves are sealed.

*Other streams*: the space is brought to rest. While no publisher is there, nobody enters for a while, and
all that was given up completes; then nothing is staged, and the generations follow each other as in any
space. So each epoch lies wholly in one generation. A stream for which something is staged all the same,
because somebody took too long, is not sealed (`seal.lua`): once that is completed or dropped, the change is
gone on with.

*Streams of a space that older versions made* are open to whoever appends; here they are closed to all but the
keeper.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Literal

from streamlease.protocol.errors import (
    Indefinite,
    NotDurable,
    SpaceConflict,
    StoreRefused,
    StoreUnavailable,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.schemas import Schema, SchemaLike
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.lines import SealLine, dump_line
from streamlease.streams.epochs.stored import read_fold, read_newest
from streamlease.streams.epochs.tidying import STREAMS_AT_ONCE
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.altering import with_streams
from streamlease.streams.spaces.archive_place import try_place
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.retention import Retention
from streamlease.streams.spaces.space_options import NewStreams, redefined
from streamlease.streams.spaces.spaces import Space, SpaceStore

LOOK_SECONDS = 0.05
REST_MS = 60_000
"""So long nobody enters a space that gets other streams, should whoever changes it die."""

SEAL_SECONDS = 15.0
"""How long a keeper may take to complete what waits: one that died is followed within four seconds."""


async def seal_space(
    redis: AsyncRedis, spaces: SpaceStore, name: str, keep: Callable[[], Awaitable[None]]
) -> Space:
    """End a space, with epochs or without: it takes no more messages. Safe to repeat.

    Args:
        keep: sees that the space has a keeper.

    Raises:
        UnknownSpace: there is no such space.
        SpaceConflict: publishers of epochs are there.
        NotDurable, StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    space = await spaces.get(name)
    if space.epochs:
        await keep()
        await seal_epochs(redis, space)
    return await spaces.generations.seal(name)


async def seal_epochs(redis: AsyncRedis, space: Space, seconds: float = SEAL_SECONDS) -> None:
    """End the epochs of a space; when it returns, all that was given up is in the streams. Safe to repeat.

    Raises:
        SpaceConflict: publishers are there; nothing was changed.
        StoreRefused: no keeper completed what waits in time; it will, and nobody can enter any more.
        NotDurable, StoreUnavailable, Indefinite: safe to repeat.
    """
    args: list[Argument] = [keys.news(space.name), dump_line(SealLine())]
    call = load_script("streamlease.streams.epochs", "seal_epochs").call(
        [keys.writers(space.name), keys.lines(space.name)], args
    )
    reply, why = await run_durably(redis, call, [space.promised])
    if reply[0] == b"here":
        names = ", ".join(one.decode() for one in reply[1:6])
        raise SpaceConflict(
            f"space {space.name} has publishers that hold epochs open ({names}): end them, or give them up "
            f"with 'streamlease epochs abort {space.name} PUBLISHER', and seal it then"
        )
    if why:
        raise NotDurable(f"the end of the epochs of space {space.name} is written, but not durably: {why}")
    try:
        async with asyncio.timeout(seconds):
            while (newest := await read_newest(redis, space.name)) is None or newest.lower:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise StoreRefused(
            f"the epochs of space {space.name} end, but no keeper has completed them within {seconds:g} s: "
            f"start a leader host with 'streamlease serve', and seal the space again"
        ) from None


async def alter_space(
    redis: AsyncRedis,
    spaces: SpaceStore,
    name: str,
    keep: Callable[[], Awaitable[None]],
    *,
    streams: int | None = None,
    rotate: bool = False,
    expected: int | None = None,
    retention: Retention | str | None = None,
    schema: SchemaLike | None = None,
    compact_after_ms: int | Literal["off"] | None = None,
    archive: ArchiveSettings | str | None = None,
) -> Space:
    """Give a space other settings, a new generation of streams, or both; see `SpaceAlteration`.

    Raises:
        As `change_space`.
    """
    wanted = None if schema is None else Schema.of(schema)

    def change(space: Space) -> Space:
        return redefined(
            space, retention=retention, schema=wanted, compact_after_ms=compact_after_ms, archive=archive
        )

    same = all(one is None for one in (retention, schema, compact_after_ms, archive))
    asked: NewStreams = {"streams": streams, "rotate": rotate, "expected": expected}
    return await change_space(redis, spaces, name, keep, None if same else change, **asked)


async def change_space(
    redis: AsyncRedis,
    spaces: SpaceStore,
    name: str,
    keep: Callable[[], Awaitable[None]],
    change: Callable[[Space], Space] | None,
    *,
    streams: int | None = None,
    rotate: bool = False,
    expected: int | None = None,
) -> Space:
    """Change the definition of a space, with epochs or without, give it a new generation of streams, or both.

    What can be refused is looked at before anything is changed. Where there are epochs, new streams come
    first: publishers that are there refuse them.

    Args:
        keep: sees that the space has a keeper.
        change: makes the new definition of the present one; None: it stays.
        streams, rotate, expected: as of ``Generations.alter``; without any of them, and with `change`, the
            streams stay as they are.

    Raises:
        InvalidOption, SchemaMismatch: a value is not acceptable, or not for this space.
        UnknownSpace: there is no such space.
        StreamSealed: the space was sealed for good, and is to get other streams.
        SpaceConflict: publishers of epochs are there, or the place for an archive is somebody else's; or
            the space was altered meanwhile.
        ArchiveUnavailable: files cannot be written, read and removed at a place for an archive.
        NotDurable, StoreUnavailable, StoreRefused, Indefinite: safe to repeat, a rotation with `expected`.
    """
    if change is not None and streams is None and rotate is False and expected is None:
        return await spaces.redefine(name, change)
    space, after = await spaces.redefined(name, change or (lambda space: space))
    with_streams(space, streams, rotate, expected)
    follows = space.newest.number if expected is None and rotate else expected
    asked: NewStreams = {"streams": streams, "rotate": rotate, "expected": follows}
    if change is None:
        return await _new_streams(redis, spaces, space, keep, asked)
    if space.epochs:
        await try_place(redis, space, after, await spaces.look())
        await _new_streams(redis, spaces, space, keep, asked)
        return await spaces.redefine(name, change)
    await spaces.redefine(name, change)
    return await _new_streams(redis, spaces, space, keep, asked)


async def _new_streams(
    redis: AsyncRedis,
    spaces: SpaceStore,
    space: Space,
    keep: Callable[[], Awaitable[None]],
    asked: NewStreams,
) -> Space:
    if not space.epochs or space.ended:
        return await spaces.generations.alter(space.name, **asked)
    await keep()
    await _rest(redis, space, REST_MS)
    try:
        await _until_nothing_waits(redis, space)
        return await spaces.generations.alter(space.name, at_rest=True, **asked)
    finally:
        with contextlib.suppress(StoreUnavailable, StoreRefused, Indefinite):
            # Unanswered, it ends by itself.
            await _rest(redis, space, 0)


async def _rest(redis: AsyncRedis, space: Space, milliseconds: int) -> None:
    reply = await load_script("streamlease.streams.epochs", "rest").run(
        redis, [keys.writers(space.name)], [milliseconds]
    )
    if reply[0] == b"here":
        names = ", ".join(one.decode() for one in reply[1:6])
        raise SpaceConflict(
            f"space {space.name} has publishers that hold epochs open ({names}), so it keeps its streams: "
            f"end them, or give them up with 'streamlease epochs abort {space.name} PUBLISHER', and try again"
        )


async def _until_nothing_waits(redis: AsyncRedis, space: Space, seconds: float = SEAL_SECONDS) -> None:
    """Wait until all that was given up is in the streams.

    Raises:
        StoreRefused: it is not in time.
    """
    try:
        async with asyncio.timeout(seconds):
            while not await _is_at_rest(redis, space):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise StoreRefused(
            f"messages of space {space.name} still wait for their streams after {seconds:g} s, "
            f"so it keeps these streams: start a leader host with 'streamlease serve', and try again"
        ) from None


async def _is_at_rest(redis: AsyncRedis, space: Space) -> bool:
    fold, newest = await read_fold(redis, space.name, space.epochs), await read_newest(redis, space.name)
    if fold.lower != (fold.bottom if newest is None else newest.lower):
        return False
    asked = [("HLEN", keys.staged_epochs(stream)) for stream in space.streams()]
    return not any(await ask(redis, [*asked]))


async def open_streams(redis: AsyncRedis, space: Space) -> list[StreamId]:
    """The streams that take messages from anybody, as those that older versions made do.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    found: list[StreamId] = []
    streams = space.streams()
    for at in range(0, len(streams), STREAMS_AT_ONCE):
        page = streams[at : at + STREAMS_AT_ONCE]
        states = await ask(redis, [("HGET", stream_meta(stream), "state") for stream in page])
        found += [stream for stream, state in zip(page, states, strict=True) if state == b"open"]
    return found


async def close_streams(redis: AsyncRedis, space: Space) -> list[StreamId]:
    """From now on only the keeper writes into the streams of a space; which of them were open.

    Raises:
        NotDurable, StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    found = await open_streams(redis, space)
    await AsyncLog(redis).open(found, "epochs", space.promised)
    return found
