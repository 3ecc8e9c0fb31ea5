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
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamlease.protocol.errors import Fenced, Indefinite, InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Encoded
from streamlease.streams.entries.epoch_fields import epoch_text, with_epoch
from streamlease.streams.epochs.core.lines import StagedPart
from streamlease.streams.epochs.keys import stage_keys, staged_news
from streamlease.streams.epochs.presence import Presence
from streamlease.streams.epochs.staged_log import StagedLog
from streamlease.streams.epochs.stored import read_writers
from streamlease.streams.log.appends import Append, Appended, OutOfSequence, outcome_of
from streamlease.streams.log.keys import stream_staged
from streamlease.streams.publish.staged.batch_plan import BatchPlan, Key, Staged
from streamlease.streams.publish.staged.staging import Lacking, gone
from streamlease.streams.redis.cluster_slots import Answer
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.durable import Waits, run_settled
from streamlease.streams.redis.scripts import Call, load_script
from streamlease.streams.spaces.spaces import Space

_ROOM = "streamlease.streams.epochs"

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
        """Stage the rows of all streams as those of the epoch: their servers copy what the tasks wrote."""
        parts = BatchPlan.of(staged).parts
        copies = {stream: _Copy(stream) for stream in sorted(parts)}
        while waiting := [one for one in copies.values() if one.parts < len(parts[one.stream])]:
            calls = [self._call(presence, batch, one, parts[one.stream][one.parts]) for one in waiting]
            answers, waits = await run_settled(self._redis, calls, [self._space.promised])
            for one, answer in zip(waiting, answers, strict=True):
                await self._take(presence, batch, one, parts[one.stream][one.parts], waits, answer)
        return [StagedPart((batch,), stream, tuple(one.ranges)) for stream, one in copies.items()]

    def _call(self, presence: Presence, batch: int, copy: _Copy, keys: Sequence[Key]) -> Call:
        return load_script(_ROOM, "stage_batch").call(
            [*stage_keys(copy.stream), *(stream_staged(copy.stream, key.token) for key in keys)],
            [
                self._sink,
                presence.first_incarnation,
                copy.sequence,
                staged_news(copy.stream),
                epoch_text((batch,)),
                presence.writer,
                *(number for key in keys for number in (key.entries, key.rows)),
            ],
        )

    async def _take(
        self,
        presence: Presence,
        batch: int,
        copy: _Copy,
        keys: Sequence[Key],
        waits: Waits,
        answer: Answer,
    ) -> None:
        """Take note of what became of a part."""
        stream, reply = copy.stream, answer.reply
        if isinstance(reply, list) and reply[0] == b"missing":
            raise gone(self._sink, batch, Lacking(stream, int(reply[2]), keys[int(reply[1]) - 1].entries))
        if isinstance(reply, list) and reply[0] == b"schema":
            await self._encode_anew(presence, batch, copy, keys)
        else:
            rows = Encoded(sum(key.rows for key in keys), [])
            copy.take(outcome_of(self._append(presence, copy, rows), waits, answer))
        copy.parts += 1

    async def _encode_anew(self, presence: Presence, batch: int, copy: _Copy, keys: Sequence[Key]) -> None:
        """Stage entries one by one, under the version of the schema that their stream takes now."""
        for key in keys:
            for entry in await self._entries(batch, copy.stream, key):
                append = self._append(presence, copy, with_epoch(entry, (batch,), presence.writer))
                (done,) = await StagedLog(self._redis).append_many([append])
                copy.take(done)

    def _append(self, presence: Presence, copy: _Copy, entry: Encoded) -> Append:
        return Append(
            copy.stream,
            self._sink,
            presence.first_incarnation,
            copy.sequence,
            entry,
            durability=self._space.promised,
        )

    async def _entries(self, batch: int, stream: StreamId, key: Key) -> list[Encoded]:
        (found,) = await ask(self._redis, [("XRANGE", stream_staged(stream, key.token), "-", "+")])
        if len(found) != key.entries:
            raise gone(self._sink, batch, Lacking(stream, len(found), key.entries))
        return [Encoded(int(id.partition(b"-")[2]), [*fields]) for id, fields in found]


@dataclass(slots=True)
class _Copy:
    """How far the rows of one stream are staged."""

    stream: StreamId
    parts: int = 0
    """How many parts of the plan are."""
    sequence: int = 0
    """The number of the next append."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Where they stand in the staged log."""

    def take(self, done: Appended | StreamleaseError) -> None:
        """One append is done.

        Raises:
            Indefinite: Redis lost one before it; entering again begins anew.
            StreamleaseError: it is refused.
        """
        if isinstance(done, OutOfSequence):
            raise Indefinite(f"Redis lost some of what was just staged for stream {self.stream}: {done}")
        if isinstance(done, StreamleaseError):
            raise done
        self.sequence += 1
        end = done.first + done.rows
        if self.ranges and self.ranges[-1][1] == done.first:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((done.first, end))
