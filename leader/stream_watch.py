"""Watches which streams a group has, and tells its leader when that may have changed."""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.leader.core.events import StreamsListed
from streamlease.leader.journal import Journal
from streamlease.registry.commits import committed
from streamlease.registry.groups import Declaration, Groups
from streamlease.registry.stream_listing import Shape, StreamListing, shape_of
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import Known

NOTHING = StreamListing({}, {}, {}, {}, complete=True)


@dataclass(slots=True)
class StreamWatch:
    """What one leader last saw of its streams."""

    redis: AsyncRedis
    groups: Groups
    declaration: Declaration
    journal: Journal
    """Must be as durable as the spaces of the streams ask for."""
    known: Known | None = None
    shape: Shape | None = None
    passed: int = 0
    complete: bool = True
    unread: frozenset[str] = frozenset()

    async def look(self, known: Known, passed: int) -> StreamsListed | None:
        """The streams that there are; None if nothing changed.

        Args:
            known: all spaces as they are now.
            passed: how often retention passed what the group had not consumed.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: look again.
        """
        if known is self.known and passed == self.passed and self.complete:
            return None
        shared = self.declaration.shared
        shape = shape_of(known.matching(shared.filter))
        unread = frozenset(known.damaged)
        changed = (shape != self.shape and (shape or self.shape)) or unread != self.unread
        if not changed and passed == self.passed and self.complete:
            self.known = known
            return None
        self.journal.durability = await self.groups.durability(shared, known)
        found, so_far = NOTHING, dict[str, int]()
        if shape or unread:
            found = await self.groups.listing(self.declaration, known)
            removed = [stream for stream, floor in found.floors.items() if floor]
            so_far = await committed(self.redis, shared.id, removed)
        self.known, self.shape, self.passed = known, shape, passed
        self.complete, self.unread = found.complete, found.unread
        return StreamsListed(found.starts, found.floors, found.ends, found.predecessors, found.unread, so_far)
