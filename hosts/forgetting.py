"""Dropping generations that nobody needs any more, and finishing half-done changes of spaces.

A generation is *spent* when it was sealed and followed by another one, nothing is left in its streams (they
are empty, or retention removed all), every group that holds data has consumed them to their ends, and no
publisher with a name of its own appended to them within `PUBLISHER_MEMORY_MS`: what a stream remembers of
such a publisher is what keeps a resumed import or a repeated Spark batch from being written twice. Spent
generations are dropped from the oldest on, once two rounds in a row have seen them so: by then leaders have
marked their streams as finished and taken them back.

No fence is needed. Each condition stays true once it is, but the last, which time alone makes true: a sealed
stream takes nothing, a floor never goes back, a group's progress does by an operator's reset only, and not
below the floor, and a group that is declared meanwhile begins behind what is gone. Numbers of generations
and offsets are never used twice, so what is forgotten cannot come back under its name
(`docs/decisions/0053-forgotten-generations.md`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from streamlease.protocol.errors import StreamleaseError, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.registry.group_needs import GroupProgress, needs
from streamlease.registry.groups import Groups
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import LogState
from streamlease.streams.log.times import server_time
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import Generation, Space, SpaceStore, streams_of

log = logging.getLogger(__name__)

PUBLISHER_MEMORY_MS = 7 * 86_400_000
"""How long after its last append a named publisher may still repeat it."""

Spent = tuple[str, int]
"""A space and the number of one of its generations."""


def unfinished(space: Space) -> bool:
    """Whether there is anything to do for it. Pure."""
    return not space.settled or len(space.generations) > 1


def spent(
    space: Space, states: Mapping[StreamId, LogState], groups: Sequence[GroupProgress]
) -> list[Generation]:
    """The generations, oldest first, in which nothing is left and that no group has yet to finish. Pure.

    A group of which no leader has taken note of a stream begins at its floor, and so behind what is gone.
    """
    found: list[Generation] = []
    if space.collection:
        return found  # what its changes come to is in the snapshots of its streams
    for generation in space.generations[:-1]:
        for stream in streams_of(space.name, [generation]):
            state = states.get(stream)
            if state is None:
                continue  # Redis has lost it
            if not state.sealed or state.floor < state.next or _wanted(stream, state.next, groups):
                return found
        found.append(generation)
    return found


def _wanted(stream: StreamId, end: int, groups: Iterable[GroupProgress]) -> bool:
    return any(
        group.expired_at is None and stream in group.begun and group.needs[stream] < end for group in groups
    )


class Forgetter:
    """Settles spaces and drops spent generations, for one leader host."""

    def __init__(self, redis: AsyncRedis, spaces: SpaceStore, groups: Groups) -> None:
        self._redis = redis
        self._spaces = spaces
        self._groups = groups
        self._log = AsyncLog(redis)
        self._seen: set[Spent] = set()

    async def round(self, spaces: Iterable[Space]) -> list[Spent]:
        """Do what is due in `spaces`; the generations that were dropped.

        What goes wrong with one of them is told in the log, and is tried again in the next round.
        """
        before, self._seen = self._seen, set()
        dropped: list[Spent] = []
        for space in spaces:
            try:
                dropped += await self._of(space, before)
            except UnknownSpace:
                log.info("space %s was deleted meanwhile", space.name)
            except StreamleaseError as error:
                log.warning("space %s: %s", space.name, error)
                # What was seen of it stands.
                self._seen |= {one for one in before if one[0] == space.name}
        return dropped

    async def _of(self, space: Space, before: set[Spent]) -> list[Spent]:
        if not space.settled:
            log.info("a change of space %s was left half done and is finished now", space.name)
            space = await self._spaces.generations.settle(space.name)
        former = streams_of(space.name, space.generations[:-1])
        if not former:
            return []
        states = await self._log.states(former)
        groups = await needs(self._redis, self._groups, [space])
        dropped: list[Spent] = []
        for generation in spent(space, states, groups):
            one = (space.name, generation.number)
            self._seen.add(one)
            if one not in before or await self._remembered(streams_of(space.name, [generation])):
                break
            await self._spaces.generations.drop(*one)
            log.info("generation %d of space %s is consumed and empty, and was dropped", one[1], one[0])
            dropped.append(one)
        return dropped

    async def _remembered(self, streams: Sequence[StreamId]) -> bool:
        newest = await self._log.named_appends(streams)
        return newest > 0 and await server_time(self._redis) - newest < PUBLISHER_MEMORY_MS * 1000
