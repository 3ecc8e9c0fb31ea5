"""Reading from many streams at once: each step of all of them goes out in one write to each server."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.streams.log.ranges import RangeReader, gather
from streamlease.streams.redis.connection import Redis, exchange_behind, good, silent

READ_BYTES = 32 * 1024 * 1024
"""Most bytes, as expanded, that are read of a stream at once, but for one entry that is larger."""

Outcome = list[pa.RecordBatch] | StreamleaseError


async def read_all(redis: Redis, readers: Sequence[RangeReader]) -> list[Outcome]:
    """What each of `readers` finds, in order: batches like those of ``AsyncLog.read``, or why there are none.

    One stream's error is not another's, nor is that of a server of a cluster one of other servers' streams.
    """
    batches: list[list[pa.RecordBatch]] = [[] for _ in readers]
    errors: dict[int, StreamleaseError] = {}
    going = [place for place, reader in enumerate(readers) if not reader.done]
    while going:
        commands = [readers[place].commands for place in going]
        try:
            answers = await exchange_behind(redis, (), [command for some in commands for command in some], ())
        except (StoreUnavailable, Indefinite) as error:
            errors |= dict.fromkeys(going, silent(redis, error))
            break
        begin = 0
        for place, some in zip(going, commands, strict=True):
            mine = [answer.reply for answer in answers[begin : begin + len(some)]]
            begin += len(some)
            try:
                batches[place] += readers[place].feed(good(redis, mine))
            except StreamleaseError as error:
                errors[place] = error
        going = [place for place in going if place not in errors and not readers[place].done]
    return [errors.get(place) or gather(found, last=True)[0] for place, found in enumerate(batches)]
