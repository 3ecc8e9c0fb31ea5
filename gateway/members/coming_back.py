"""What a gateway before this one has handed out to a member: it is had again, so that it can be committed.

The session goes on, so the leader grants the same streams again, to be read behind what is committed. What
the client works on is read once more, as far as the record of the member says that it was handed out: then a
commit of it finds it, and a stream that is asked back waits for that commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from streamlease.agent.batch import Batch
from streamlease.gateway.members.core.member_refusals import ComingBack
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry.members.member_records import HandedPlace

if TYPE_CHECKING:
    from streamlease.agent.subscription import SharedReader
    from streamlease.gateway.members.core.handed_out import HandedOut

BACK_SECONDS = 10.0
"""How long it may take until the streams of a member that moved are back."""


class FormerPlaces:
    """Up to where streams were handed out elsewhere.

    Args:
        handed: takes what is read again.
    """

    def __init__(
        self, places: Mapping[str, HandedPlace], reader: SharedReader, handed: HandedOut[Batch]
    ) -> None:
        self.places = dict(places)
        """Those that are not had again yet."""
        self._reader = reader
        self._handed = handed

    async def have(self, stream: StreamId, offset: int) -> None:
        """Wait until the member can speak of `offset`, if it was handed out.

        Raises:
            ComingBack: it is not here yet.
        """
        if self._is_had(stream, offset):
            return
        try:
            async with asyncio.timeout(BACK_SECONDS):
                await self._read(lambda: self._is_had(stream, offset))
        except (TimeoutError, StopAsyncIteration):
            raise ComingBack(
                f"the member has just moved to this gateway, and stream {stream} is not back yet: try again"
            ) from None

    async def come_back(self) -> None:
        """Have all of it, within some seconds; what is not back then has gone to others."""
        try:
            async with asyncio.timeout(BACK_SECONDS):
                await self._read(self._all_had)
        except (TimeoutError, StopAsyncIteration, StreamleaseError):
            pass  # if the subscription is over, the next request is told
        self.places.clear()

    def _all_had(self) -> bool:
        had = [self._is_had(StreamId.parse(stream), place.end) for stream, place in [*self.places.items()]]
        return all(had)

    def _is_had(self, stream: StreamId, offset: int) -> bool:
        """Whether that offset is here, or will not come."""
        name = str(stream)
        place = self.places.get(name)
        if place is None or self._reader.error is not None:
            return True
        held = self._reader.book.streams.get(name)
        if held is None or held.limbo:
            return offset > place.end
        end = max(held.committed, self._handed.end_of(stream) or 0)
        if held.since > place.lease_epoch or end >= place.end:
            del self.places[name]  # somebody else had it meanwhile, or it is all here
            return True
        return offset < end or offset > place.end

    async def _read(self, done: Callable[[], bool]) -> None:
        while not done():
            found = await self._reader.next_item(lambda: True if done() else None)
            if isinstance(found, Batch):
                self._handed.put(found)
