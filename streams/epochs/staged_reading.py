"""Following the staged logs of streams: what is there, with holes where something was moved or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import parse_entry_id, range_start
from streamlease.streams.entries.decoding import decode_entries
from streamlease.streams.entries.entries import Entry
from streamlease.streams.entries.epoch_fields import EPOCH_FIELD, WRITER_FIELD, epoch_of
from streamlease.streams.entries.schemas import Schema, load_versions
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.boundary_reading import EpochsLost, FollowedSpace
from streamlease.streams.epochs.core.early import StagedEntry
from streamlease.streams.epochs.stored import newest_command
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.redis.connection import AsyncRedis, Command, ask

COUNT = 64
"""Entries of one stream that one reply has; each may have a MiB and more."""

AT_ONCE = 16
"""Streams that one exchange reads."""

STREAMS_AT_ONCE = 250
"""Streams that one exchange asks for their ends."""


class EarlyBatch(NamedTuple):
    """Messages of one epoch and one publisher that were staged one after the other."""

    epoch: Epoch
    name: str
    inc: int
    batches: list[pa.RecordBatch]


class StagedLogs:
    """Reads the staged logs of streams on from where they ended when it was opened, or from their beginning.

    Args:
        came: asked of each entry whether it is wanted.
    """

    def __init__(self, redis: AsyncRedis, came: Callable[[StagedEntry], bool], schema: Schema | None) -> None:
        self._redis = redis
        self._came = came
        self._schema = schema
        self._at: dict[StreamId, int] = {}
        self._entered: dict[tuple[str, str], int] = {}
        """Space and publisher -> the highest incarnation that is known to have entered."""

    def has_failed_over(self, space: str) -> None:
        """Redis may have lost who entered."""
        self._entered = {of: inc for of, inc in self._entered.items() if of[0] != space}

    async def open(self, streams: Sequence[StreamId], *, at_ends: bool) -> None:
        """Follow `streams`.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        self._at = dict.fromkeys(streams, 0)
        if at_ends:
            self._at = await self._ends()

    async def behind(self) -> set[StreamId]:
        """The streams of which more is staged than was read.

        Raises:
            EpochsLost: Redis lost what was read before.
            StoreUnavailable, StoreRefused.
        """
        ends = await self._ends()
        for stream, end in ends.items():
            self._check(stream, end)
        return {stream for stream, end in ends.items() if end > self._at[stream]}

    async def _ends(self) -> dict[StreamId, int]:
        found: dict[StreamId, int] = {}
        streams = [*self._at]
        for begin in range(0, len(streams), STREAMS_AT_ONCE):
            page = streams[begin : begin + STREAMS_AT_ONCE]
            ends = await ask(self._redis, [("HGET", keys.staged_meta(stream), "next") for stream in page])
            found |= {stream: int(end or 0) for stream, end in zip(page, ends, strict=True)}
        return found

    def _check(self, stream: StreamId, end: int) -> None:
        if end < self._at[stream]:
            raise EpochsLost(
                f"what was staged for stream {stream} ends at {end}, and was read up to {self._at[stream]}: "
                f"Redis lost writes, as in a failover, or the space was deleted; begin again"
            )

    async def read(
        self, streams: Sequence[StreamId], spaces: Mapping[str, FollowedSpace]
    ) -> tuple[list[EarlyBatch], set[StreamId]]:
        """What is new in some of the streams, at most `AT_ONCE`; and those that may have more.

        Nothing is taken, and all of them may have more, if Redis goes on with other data than those of which
        the boundaries are: an abort that was among these may not be there any more.

        Args:
            spaces: up to where the boundaries of each were read.

        Raises:
            EpochsLost: Redis lost what was read before.
            SchemaMismatch: an entry is damaged, or not what the reader wants.
            StoreUnavailable, StoreRefused: nothing was taken.
        """
        asked: list[Command] = []
        for stream in streams:
            asked += [
                ("XRANGE", keys.staged_log(stream), range_start(self._at[stream]), "+", "COUNT", COUNT),
                ("HGET", keys.staged_meta(stream), "next"),
                ("HGET", stream_meta(stream), "schemas"),
            ]
        of = list(dict.fromkeys(stream.space for stream in streams))
        replies = await ask(self._redis, [*asked, *map(newest_command, of)])
        newest, replies = replies[len(asked) :], replies[: len(asked)]
        if not all(spaces[space].is_current(reply) for space, reply in zip(of, newest, strict=True)):
            return [], {*streams}
        read = {
            stream: [(parse_staged(stream, (one[0], one[1])), (one[0], one[1])) for one in entries]
            for stream, entries in zip(streams, replies[::3], strict=True)
        }
        await self._look_who_entered([staged for entries in read.values() for staged, _ in entries])
        found: list[EarlyBatch] = []
        more: set[StreamId] = set()
        for (stream, entries), next, schemas in zip(read.items(), replies[1::3], replies[2::3], strict=True):
            self._check(stream, int(next or 0))
            found += self._taken(stream, entries, schemas)
            if len(entries) == COUNT:
                more.add(stream)
        return found, more

    async def _look_who_entered(self, entries: Iterable[StagedEntry]) -> None:
        """Whoever stages has entered before: if that is not there, Redis lost it, and none of it counts.

        Of an incarnation below the newest nobody knows whether it had entered. What it gave up comes with its
        boundary, as what was not seen.
        """
        wanted: dict[str, dict[str, None]] = {}
        for one in entries:
            if one.inc > self._entered.get((one.stream.space, one.name), -1):
                wanted.setdefault(one.stream.space, {})[one.name] = None
        for space, names in wanted.items():
            (records,) = await ask(self._redis, [("HMGET", keys.writers(space), *names)])
            for name, record in zip(names, records, strict=True):
                if record is not None:
                    self._entered[space, name] = int(record.partition(b" ")[0])

    def _taken(
        self, stream: StreamId, entries: Iterable[tuple[StagedEntry, Entry]], schemas: bytes | None
    ) -> list[EarlyBatch]:
        versions = load_versions(schemas) if schemas else None
        wanted: list[tuple[StagedEntry, Entry]] = []
        for staged, entry in entries:
            self._at[stream] = staged.to
            entered = self._entered.get((stream.space, staged.name))
            if staged.inc == entered and self._came(staged):
                wanted.append((staged, entry))
        return [
            EarlyBatch(
                *of,
                decode_entries(stream, [entry for _, entry in group], versions=versions, wanted=self._schema),
            )
            for of, group in groupby(wanted, lambda one: (one[0].epoch, one[0].name, one[0].inc))
        ]


def parse_staged(stream: StreamId, entry: Entry) -> StagedEntry:
    """What an entry of a staged log is of.

    Raises:
        SchemaMismatch: it is damaged.
    """
    id, fields = entry
    try:
        first, to = parse_entry_id(id)
        named = dict(zip(fields[-4::2], fields[-3::2], strict=True))
        name, inc = named[WRITER_FIELD].decode().split(" ")
        epoch = epoch_of({EPOCH_FIELD: named[EPOCH_FIELD]})
        assert epoch is not None
        return StagedEntry(stream, first, to, epoch, name, int(inc))
    except (KeyError, ValueError) as error:
        raise SchemaMismatch(
            f"the entry {ascii(id)[:40]} that is staged for stream {stream} is damaged "
            f"({type(error).__name__}): abort its publisher"
        ) from None
