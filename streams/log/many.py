"""Reading from many streams at once: each step of all of them goes out in one write to each server.

What is not in the memory of Redis is read from older segments, in threads, for they are files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import TypeGuard

import pyarrow as pa

from streamlease.protocol.errors import HistoryTruncated, Indefinite, StoreUnavailable, StreamleaseError
from streamlease.streams.log.ranges import MissingOffsets, RangeReader, gather
from streamlease.streams.log.segments import History, Segment
from streamlease.streams.redis.connection import Redis, exchange_behind, good, silent

READ_BYTES = 32 * 1024 * 1024
"""Most bytes, as expanded, that are read of a stream at once, but for one entry that is larger."""

Outcome = list[pa.RecordBatch] | StreamleaseError


async def read_all(
    redis: Redis, readers: Sequence[RangeReader], older: Sequence[Segment] = ()
) -> list[Outcome]:
    """What each of `readers` finds, in order: batches like those of ``AsyncLog.read``, or why there are none.

    One stream's error is not another's, nor is that of a server of a cluster one of other servers' streams.

    Args:
        older: what holds messages that are not in memory any more, newest first.
    """
    history = History(older) if older else None
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
        below: dict[int, int] = {}
        for place, some in zip(going, commands, strict=True):
            mine = [answer.reply for answer in answers[begin : begin + len(some)]]
            begin += len(some)
            try:
                batches[place] += readers[place].feed(good(redis, mine))
            except StreamleaseError as error:
                if history is not None and _is_below_memory(error):
                    below[place] = error.oldest
                else:
                    errors[place] = error
        if history is not None and below:
            reading = [
                asyncio.to_thread(_read_below, history, readers[place], memory)
                for place, memory in below.items()
            ]
            for place, outcome in zip(below, await asyncio.gather(*reading), strict=True):
                if isinstance(outcome, StreamleaseError):
                    errors[place] = outcome
                else:
                    batches[place] += outcome
        going = [place for place in going if place not in errors and not readers[place].done]
    return [errors.get(place) or gather(found, last=True)[0] for place, found in enumerate(batches)]


def _is_below_memory(error: StreamleaseError) -> TypeGuard[HistoryTruncated]:
    return isinstance(error, HistoryTruncated) and not isinstance(error, MissingOffsets)


def _read_below(history: History, reader: RangeReader, memory: int) -> Outcome:
    """What `reader` wants of what is below the offset `memory`; it goes on behind that."""
    found: list[pa.RecordBatch] = []
    try:
        with closing(history.read(reader.wanted_below(memory))) as batches:
            while not reader.done and (batch := next(batches, None)) is not None:
                found.append(batch)
                reader.pass_over(batch)
    except StreamleaseError as error:
        return error
    return found
