"""The messages of the benchmarks: the same for every contender, with payloads that do not compress."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count as counted

import pyarrow as pa
import redis

from streamlease.streams.spaces.definitions import Generation, Space

PAYLOAD_BYTES = 100
TOPICS = 100
KEYS = 1000
STREAMS = 4
PIPELINE = 1000
SPACE = "bench"
MANY_STREAMS = 10_000
MANY_SPACES = [f"{SPACE}-{number}" for number in range(4)]
"""The spaces that have the many streams: one space may have 4,096."""

FIRST_TIME = 1_700_000_000_000_000
"""Event time of the first message, in microseconds; each is a millisecond later than the one before."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Topics, keys, payloads and event times, one of each per message."""

    topics: list[str]
    keys: list[bytes]
    payloads: list[bytes]
    times: list[int]
    streams: int = STREAMS
    """Over how many streams they go."""

    @classmethod
    def over_many_streams(cls, count: int) -> Messages:
        """`count` messages; their topics are one for each of ``MANY_STREAMS`` streams, in turn."""
        each = MANY_STREAMS // len(MANY_SPACES)
        topics = [topic for space in MANY_SPACES for topic in _one_for_each(space, each)]
        made = cls.make(count)
        names = [topics[number % MANY_STREAMS] for number in range(count)]
        return cls(names, made.keys, made.payloads, made.times, MANY_STREAMS)

    @classmethod
    def make(cls, count: int) -> Messages:
        """`count` messages with random payloads."""
        noise = os.urandom(count * PAYLOAD_BYTES)
        return cls(
            [f"{SPACE}/{number % TOPICS}" for number in range(count)],
            [b"key-%d" % (number % KEYS) for number in range(count)],
            [noise[at : at + PAYLOAD_BYTES] for at in range(0, len(noise), PAYLOAD_BYTES)],
            [FIRST_TIME + 1000 * number for number in range(count)],
        )

    def __len__(self) -> int:
        return len(self.payloads)

    def record_batch(self, first: int, rows: int) -> pa.RecordBatch:
        """`rows` of them from `first` on, as Arrow columns."""
        part = slice(first, first + rows)
        return pa.RecordBatch.from_pydict(
            {
                "topic": pa.array(self.topics[part]),
                "key": pa.array(self.keys[part], pa.binary()),
                "payload": pa.array(self.payloads[part], pa.binary()),
                "timestamp": pa.array(self.times[part], pa.int64()),
            }
        )

    def xadd_pipelined(self, client: redis.Redis) -> None:
        """Add them to plain streams with redis-py: single XADDs, 1,000 in a pipeline."""
        for first in range(0, len(self), PIPELINE):
            pipe = client.pipeline(transaction=False)
            for number in range(first, min(first + PIPELINE, len(self))):
                pipe.xadd(stream_of(number, self.streams), self.fields(number))
            pipe.execute()

    def fields(self, number: int) -> dict[str | bytes | int | float, str | bytes | int | float]:
        """One message as the fields of a plain entry."""
        return {
            "t": self.topics[number],
            "k": self.keys[number],
            "ts": self.times[number],
            "p": self.payloads[number],
        }


def stream_of(number: int, streams: int = STREAMS) -> str:
    """The plain stream of a message."""
    return f"bench:{number % streams}"


def _one_for_each(space: str, streams: int) -> list[str]:
    """A topic for each stream of a space."""
    home = Space(name=space, topics=(f"{space}/#",), generations=(Generation(number=0, streams=streams),))
    found: dict[int, str] = {}
    numbers = counted()
    while len(found) < streams:
        topic = f"{space}/{next(numbers)}"
        found.setdefault(home.stream_for(topic).shard, topic)
    return [*found.values()]
