"""The end of a space with epochs: what was given up completes, and the frontier is empty from then on.

A line says so, and its script lets nobody enter any more; the keeper completes what waits, and records a
boundary with an empty lower frontier. Only then the streams themselves may be sealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from streamlease.protocol.errors import NotDurable, SpaceConflict, StoreRefused
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.lines import SealLine, dump_line
from streamlease.streams.epochs.stored import read_newest
from streamlease.streams.redis.connection import Argument, AsyncRedis
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import Space, SpaceStore

LOOK_SECONDS = 0.05
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
