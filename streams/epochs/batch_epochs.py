"""Batches of a sink as epochs: batch n is epoch n, complete as soon as it is delivered, and exactly once.

The tasks of a batch stage its rows as those of any sink (``streams.publish.staged``). Whoever drives the sink
hears which tasks count, and delivers::

    enter, under the sink's name --> is n given up already? --yes--> done: an earlier attempt was there
           `--no--> rows --> staged logs, as epoch n --> advance to n + 1, which names them

Entering fences an earlier attempt that may still run, and drops what it has staged and not named. So whatever
dies between two steps, the next attempt finds epoch n either given up as a whole, or has nothing of it.

That says something only if nobody else moves the frontier of the space past n: **the space belongs to one
sink**, and a name of any other publisher is refused, even of one that has left. There is no clean end: nobody
knows the last batch. The sink is silent between two batches, and may be given up meanwhile; then it holds
nothing, and is given what is not completed when it comes back, which is the next batch.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from streamlease.protocol.errors import Fenced, InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Encoded
from streamlease.streams.entries.epoch_fields import with_epoch
from streamlease.streams.epochs.core.lines import StagedPart
from streamlease.streams.epochs.presence import Presence
from streamlease.streams.epochs.staged_log import StagedLog
from streamlease.streams.epochs.stored import read_writers
from streamlease.streams.log.appends import Append
from streamlease.streams.log.keys import stream_staged
from streamlease.streams.publish.staged.batch_plan import Staged
from streamlease.streams.publish.staged.staging import Lacking, gone
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.spaces import Space

log = logging.getLogger(__name__)


class BatchEpochs:
    """Delivers the batches of one sink into its space.

    Args:
        sink: the name under which it publishes.
        timeout: seconds for which a line is tried.
    """

    def __init__(self, redis: AsyncRedis, space: Space, sink: str, timeout: float) -> None:
        self._redis = redis
        self._space = space
        self._sink = sink
        self._timeout = timeout

    async def deliver(self, batch: int, staged: Sequence[Staged]) -> bool:
        """Make `staged` epoch `batch`, unless an earlier attempt has delivered it; whether this one did.

        Raises:
            InvalidOption: the space has no integers for epochs, or another publisher.
            Fenced: a later attempt is there, or a later batch.
            Lost: staged rows are gone; a repetition stages them anew.
            StreamSealed, SchemaMismatch: the space changed meanwhile.
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: repeat it.
        """
        await self._check()
        presence = Presence(self._redis, self._space, self._sink, self._timeout)
        try:
            held = await presence.enter()
            first = held[0][0] if held else 0
            if batch < first - 1:
                raise Fenced(
                    f"sink {self._sink} wrote batch {first - 1} already, and this one writes batch {batch}: "
                    f"its checkpoint is older than the sink, or another run of the query is ahead"
                )
            if batch < first:
                return False
            if batch > first:
                log.warning(
                    "sink %s: epochs %d to %d of space %s are not there: Redis lost them, as in a failover",
                    self._sink, first, batch - 1, self._space.name,
                )  # fmt: skip
            parts = await self._stage(presence, batch, staged)
            await presence.advance(((batch + 1,),), parts)
            return True
        finally:
            await presence.close()

    async def _check(self) -> None:
        if self._space.epochs != 1:
            raise InvalidOption(
                f"space {self._space.name} has no epochs that are integers, and a batch's number is its "
                f"epoch: write to a space made with --epochs 1"
            )
        others = sorted({*await read_writers(self._redis, self._space.name)} - {self._sink})
        if others:
            raise InvalidOption(
                f"space {self._space.name} has epochs of publisher {others[0]}, and where batches are epochs "
                f"it belongs to one sink (this one is {self._sink}): write to a space of its own; a new "
                f"checkpoint is a new sink"
            )

    async def _stage(self, presence: Presence, batch: int, staged: Sequence[Staged]) -> list[StagedPart]:
        by_stream: defaultdict[StreamId, list[Staged]] = defaultdict(list)
        for one in staged:
            by_stream[one.stream].append(one)
        return [
            StagedPart((batch,), stream, await self._stage_stream(presence, batch, stream, keys))
            for stream, keys in sorted(by_stream.items())
        ]

    async def _stage_stream(
        self, presence: Presence, batch: int, stream: StreamId, keys: Sequence[Staged]
    ) -> tuple[tuple[int, int], ...]:
        """Stage the rows of one stream as those of the epoch; their offsets in its staged log."""
        ranges: list[tuple[int, int]] = []
        sequence = 0
        for key in keys:
            for entry in await self._entries(batch, key):
                append = Append(
                    stream,
                    self._sink,
                    presence.first_incarnation,
                    sequence,
                    with_epoch(entry, (batch,), presence.writer),
                    durability=self._space.promised,
                )
                (done,) = await StagedLog(self._redis).append_many([append])
                if isinstance(done, StreamleaseError):
                    raise done
                sequence += 1
                if ranges and ranges[-1][1] == done.first:
                    ranges[-1] = (ranges[-1][0], done.first + done.rows)
                else:
                    ranges.append((done.first, done.first + done.rows))
        return tuple(ranges)

    async def _entries(self, batch: int, key: Staged) -> list[Encoded]:
        (found,) = await ask(self._redis, [("XRANGE", stream_staged(key.stream, key.token), "-", "+")])
        if len(found) != key.entries:
            raise gone(self._sink, batch, Lacking(key.stream, len(found), key.entries))
        return [Encoded(int(id.partition(b"-")[2]), [*fields]) for id, fields in found]
