"""Keys catch up: from their cursors to the end of what is known, and live from there on.

Keys catch up together: one reading of the log, or of what the feeds still have, from the lowest of their
cursors. So a client that comes with ten thousand keys from another gateway costs ten readings, not ten
thousand. What a key has no room for stays in the log until its client has taken what waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamlease.gateway.channels.catching_up_group import CatchingUpGroup
from streamlease.gateway.channels.channel import Channel
from streamlease.gateway.channels.core.log_keys import ChannelKey
from streamlease.gateway.channels.live_keys import LiveKey, LiveKeys, places_of
from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.gateway.problems import problem
from streamlease.protocol.errors import StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId

if TYPE_CHECKING:
    from streamlease.gateway.feeds import Feed, Feeds
    from streamlease.gateway.since_reading import SinceReading
    from streamlease.streams.spaces.spaces import Known

RETRY_SECONDS = 0.5
REACH_SECONDS = 5.0
"""So long a feed may take to know what a cursor knows; afterwards the log is asked whether that is there."""

LOOK_SECONDS = 0.01
TOGETHER = 1000
"""So many keys catch up at once: the memory of their cursors is bounded."""

_logger = logging.getLogger(__name__)


class CatchingUp:
    """Catches up for channels."""

    def __init__(self, feeds: Feeds, reading: SinceReading, live: LiveKeys, cursors: CursorCodec) -> None:
        self._feeds = feeds
        self._reading = reading
        self._live = live
        self._cursors = cursors

    async def run(self, channel: Channel) -> None:
        """Until all keys of a channel are live, or have no room."""
        while keys := channel.ready_behind()[:TOGETHER]:
            try:
                known = await self._feeds.known_for(key.filter for key in keys)
                for (spaces, _), some in self._groups(channel, keys, known).items():
                    await self._together(channel, spaces, some)
            except (StoreUnavailable, StoreRefused) as error:
                channel.trouble = error
                await asyncio.sleep(RETRY_SECONDS)
            else:
                channel.trouble = None
            channel.wake()

    def _groups(
        self, channel: Channel, keys: Sequence[ChannelKey], known: Known
    ) -> dict[tuple[tuple[str, ...], frozenset[tuple[StreamId, bool]]], dict[ChannelKey, Cursor]]:
        """The keys of the same spaces whose cursors name the same streams, each with its cursor."""
        groups: dict[tuple[tuple[str, ...], frozenset[tuple[StreamId, bool]]], dict[ChannelKey, Cursor]] = {}
        spaces: dict[str, tuple[str, ...]] = {}
        cursors: dict[str, tuple[Cursor, frozenset[tuple[StreamId, bool]]]] = {}
        for key in keys:
            assert key.cursor is not None
            try:
                if key.filter not in spaces:
                    spaces[key.filter] = tuple(sorted(space.name for space in known.for_filter(key.filter)))
                if key.cursor not in cursors:
                    cursor = self._cursors.parse(key.cursor)
                    named = frozenset((stream, ended) for stream, (_, ended) in cursor.places.items())
                    cursors[key.cursor] = cursor, named
                cursor, named = cursors[key.cursor]
                groups.setdefault((spaces[key.filter], named), {})[key] = cursor
            except StreamleaseError as error:
                _fail(channel, key, error)
        return groups

    async def _together(
        self, channel: Channel, spaces: tuple[str, ...], keys: Mapping[ChannelKey, Cursor]
    ) -> None:
        group = CatchingUpGroup(channel, spaces, keys, self._cursors)
        try:
            await self._catch_up(group)
        except (StoreUnavailable, StoreRefused):
            raise
        except StreamleaseError as error:
            group.keep()
            left = {key: keys[key] for key in group.remaining()}
            if len(set(left.values())) > 1:  # it may be the error of some
                halves = [*left.items()]
                middle = len(halves) // 2
                for half in (halves[:middle], halves[middle:]):
                    now = {key: self._cursors.parse(key.cursor or "") for key, _ in half}
                    await self._together(channel, spaces, now)
            else:
                for key in left:
                    _fail(channel, key, error)
        finally:
            group.keep()

    async def _catch_up(self, group: CatchingUpGroup) -> None:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        while group.go_on():
            feeds = await self._feeds.follow(group.spaces)
            low = group.low
            if all(one.follows and one.recent.covers(low, one.space) for one in feeds):
                if all(_reached(one, group.high) for one in feeds):
                    self._join(group, feeds)
                    return
                if loop.time() - asked < REACH_SECONDS:
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
            await self._read(group)
            asked = loop.time()

    def _join(self, group: CatchingUpGroup, feeds: Sequence[Feed]) -> None:
        """Take what the feeds have behind the cursors, and be live: without a pause between both."""
        low = group.low
        for feed in feeds:
            for piece in feed.recent.after(low):
                group.take(piece.stream, piece.end, piece.data.rows_from(low.next_of(piece.stream)))
        group.at(places_of(feeds))
        for key in group.remaining():
            self._live.join(LiveKey(group.channel, key), group.spaces)

    async def _read(self, group: CatchingUpGroup) -> None:
        """Take what the log has behind the cursors."""
        async with self._reading.scan(group.spaces, group.filter, group.low) as reading:
            group.at({StreamId.parse(name): (next, False) for name, next in reading.positions.items()})
            async for batch in reading:
                group.take(batch.stream, batch.end, batch.data)
                group.channel.wake()
                if not group.go_on():
                    return
            ends = reading.ends
            group.at(
                {
                    StreamId.parse(name): (next, ends.get(name) == next)
                    for name, next in reading.positions.items()
                }
            )


def _reached(feed: Feed, cursor: Cursor) -> bool:
    ends = feed.recent.ends
    return all(
        ended or stream.space != feed.space or ends.get(stream, 0) >= next
        for stream, (next, ended) in cursor.places.items()
    )


def _fail(channel: Channel, key: ChannelKey, error: StreamleaseError) -> None:
    channel.behind.pop(key, None)
    channel.mailbox.fail(key, problem(error))
    channel.wake()
