"""Staged entries by hand, and a space's keeper, for tests that look at single acts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row, encode_message, to_messages
from streamlease.streams.entries.epoch_fields import epoch_text
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.lines import StagedPart
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.epochs.stored import read_bounds
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.durability import MEMORY

SPACE = "space"
STREAMS = [StreamId(SPACE, 0, shard) for shard in range(3)]


def make_keeper(
    redis: AsyncRedis,
    term: int = 1,
    *,
    dimensions: int = 1,
    timeout: int | None = None,
    clock: Callable[[], int] = lambda: 0,
) -> Keeper:
    """A keeper that has not begun."""
    return Keeper(redis, SPACE, dimensions, STREAMS, term, clock, durability=MEMORY, timeout=timeout)


async def keeper_of(redis: AsyncRedis, term: int = 1, dimensions: int = 1) -> Keeper:
    """A keeper that has begun."""
    made = make_keeper(redis, term, dimensions=dimensions)
    await made.begin()
    return made


async def stage(
    redis: AsyncRedis, shard: int, epoch: Epoch, payloads: Iterable[str], name: str = "a", inc: int = 1
) -> StagedPart:
    """Stage messages of one epoch, one entry each."""
    stream = STREAMS[shard]
    (known,) = await ask(redis, [("HGET", keys.staged_meta(stream), "next")])
    first = end = int(known or 0)
    for payload in payloads:
        fields = encode_message(Row("t", payload.encode())).fields
        text, who = epoch_text(epoch), keys.writer_text(name, inc)
        await ask(
            redis,
            [
                ("XADD", keys.staged_log(stream), f"{end}-1", "a", "1", *fields, "x", text, "w", who),
                ("HINCRBY", keys.staged_epochs(stream), keys.staged_field(epoch, name, inc), 1),
            ],
        )
        end += 1
    await ask(redis, [("HSET", keys.staged_meta(stream), "next", end)])
    return StagedPart(epoch, stream, ((first, end),))


async def contents(redis: AsyncRedis, shard: int) -> list[str]:
    """The payloads of a stream, in order."""
    batches = await AsyncLog(redis).read(STREAMS[shard], 0)
    return [
        message.payload.decode()
        for message in itertools.chain.from_iterable(to_messages(batch) for batch in batches)
    ]


async def staged_fields(redis: AsyncRedis, shard: int) -> dict[bytes, int]:
    """What is staged for a stream, by epoch and publisher."""
    (found,) = await ask(redis, [("HGETALL", keys.staged_epochs(STREAMS[shard]))])
    return {field: int(count) for field, count in zip(found[::2], found[1::2], strict=True)}


async def boundaries(redis: AsyncRedis) -> list[Boundary]:
    """All boundaries of the space."""
    return await read_bounds(redis, SPACE, 0)
