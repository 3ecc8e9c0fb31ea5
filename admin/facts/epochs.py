"""The epochs of a space: its frontiers, its newest boundary, and who holds which epochs."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from streamlease.admin.facts.rows import Count, FactRow, Moment, Seconds, moment
from streamlease.protocol.epochs.antichains import Antichain, maximal
from streamlease.protocol.epochs.order import Epoch
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.stored import read_fold, read_frontier_since, read_newest, read_writers
from streamlease.streams.log.times import server_time
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.spaces import Space

PAGE = 500

EpochRow = list[Annotated[int, Field(ge=0)]]
"""One epoch."""

FrontierRow = list[EpochRow]
"""An antichain of epochs."""


class EpochPublisherRow(FactRow):
    """A publisher that is there."""

    name: str
    host: str
    frontier: FrontierRow
    """What it holds: it may send at or above an element."""
    last_seen: Moment | None
    silent_seconds: Seconds | None
    """Since its last sign of life; it gives three in the time after which it would be lost."""
    staged: Count
    """Messages of it that are in no stream yet."""
    holds_back: FrontierRow
    """Those elements of the lower frontier that it holds."""


class SpaceEpochs(FactRow):
    """What ``epochs show`` tells."""

    space: str
    dimensions: Count
    lower: FrontierRow
    """What is not at or above an element of it is completed, or completes as soon as a keeper is there."""
    frontier_seconds: Seconds | None
    """For how long the lower frontier of the newest boundary has been where it is.

    Without a boundary, since the first publisher came; null: none ever did.
    """
    upper: FrontierRow
    """The maximal epochs that had messages."""
    boundary: Count
    """The number of the newest boundary; 0: there is none."""
    behind: bool
    """Whether the lower frontier is beyond the newest boundary: a keeper is at it, or there is none."""
    lost: Count
    """Messages of the newest boundary's epochs that Redis lost."""
    publishers: list[EpochPublisherRow]

    @classmethod
    async def read(cls, redis: AsyncRedis, space: Space) -> Self:
        """As they are now.

        Raises:
            Unsupported: something cannot be read.
            StoreUnavailable, StoreRefused.
        """
        newest = await read_newest(redis, space.name)
        fold = await read_fold(redis, space.name, space.epochs)
        writers = await read_writers(redis, space.name)
        staged = await _staged(redis, space)
        rows: dict[str, int] = {}
        for (_, name), count in staged.items():
            rows[name] = rows.get(name, 0) + count
        holding = fold.holding_back()
        now = await server_time(redis) // 1000
        return cls(
            space=space.name,
            dimensions=space.epochs,
            lower=_row(fold.lower),
            frontier_seconds=_seconds(now, await read_frontier_since(redis, space.name)),
            upper=_row(maximal([*fold.upper, *(epoch for epoch, _ in staged)])),
            boundary=newest.number if newest is not None else 0,
            behind=fold.lower != (newest.lower if newest is not None else fold.bottom),
            lost=newest.lost if newest is not None else 0,
            publishers=[
                EpochPublisherRow(
                    name=name,
                    host=one.host,
                    frontier=_row(fold.frontier_of(name)),
                    last_seen=moment(writers[name].seen) if name in writers else None,
                    silent_seconds=_seconds(now, writers[name].seen) if name in writers else None,
                    staged=rows.get(name, 0),
                    holds_back=_row(holding.get(name, ())),
                )
                for name, one in sorted(fold.present.items())
            ],
        )


def _seconds(now: int, since: int | None) -> float | None:
    return None if since is None else max(0.0, (now - since) / 1000)


def _row(frontier: Antichain) -> FrontierRow:
    return [list(epoch) for epoch in frontier]


async def _staged(redis: AsyncRedis, space: Space) -> dict[tuple[Epoch, str], int]:
    """How many messages are staged, by epoch and publisher."""
    found: dict[tuple[Epoch, str], int] = {}
    streams = space.streams()
    for begin in range(0, len(streams), PAGE):
        asked = [("HGETALL", keys.staged_epochs(stream)) for stream in streams[begin : begin + PAGE]]
        for fields in await ask(redis, asked):
            for field, count in zip(fields[::2], fields[1::2], strict=True):
                epoch, name, _ = keys.parse_staged_field(field)
                found[epoch, name] = found.get((epoch, name), 0) + int(count)
    return found
