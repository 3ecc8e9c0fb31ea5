"""Since when messages wait, of all groups: asked for once for each message that a group has come to.

A message's append time never changes, so a group that stands costs nothing at the next look, and what is
remembered is what waits, no more. A stream that ends below where it once ended was lost, and others follow
under the same offsets: what was known of it is asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.times import waiting
from streamlease.streams.redis.connection import AsyncRedis

MOST_ASKED = 5000
"""So many messages are asked about at one look. The streams with the largest lag of all groups come first, so
with more than that an age is that of some of a group's streams, until the next looks."""


class StreamBehind(NamedTuple):
    """A stream in which messages wait for a group."""

    stream: StreamId
    begin: int
    """The offset of the first of them."""
    next: int


class Ages:
    """What is known from one look to the next."""

    def __init__(self) -> None:
        self._known: dict[tuple[StreamId, int], tuple[int, int]] = {}
        """When a message was there at the latest, in microseconds, and where its stream ended then."""

    async def look(
        self, redis: AsyncRedis, groups: Sequence[Sequence[StreamBehind]], most: int = MOST_ASKED
    ) -> list[int | None]:
        """Of each group: when the oldest message that waits was there at the latest; None if not known.

        Args:
            groups: where messages wait for each group, the largest lag first.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        known = {
            (one.stream, one.begin): seen
            for group in groups
            for one in group
            if (seen := self._known.get((one.stream, one.begin))) is not None and seen[1] <= one.next
        }
        unknown = [place for place in _in_turn(groups) if place not in known][:most]
        for place, there in (await waiting(redis, unknown)).items() if unknown else ():
            if there.by is not None:
                known[place] = there.by, there.next
        self._known = known
        return [
            min((seen[0] for one in group if (seen := known.get((one.stream, one.begin)))), default=None)
            for group in groups
        ]


def _in_turn(groups: Sequence[Sequence[StreamBehind]]) -> Iterable[tuple[StreamId, int]]:
    """The first of each group, then the second, and so on; each once."""
    ranked = sorted(
        ((rank, one) for group in groups for rank, one in enumerate(group)), key=lambda found: found[0]
    )
    return dict.fromkeys((one.stream, one.begin) for _, one in ranked)
