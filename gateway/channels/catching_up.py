"""Keys catch up: from their cursors to the end of what is known, and live from there on.

Keys with the same cursor catch up together: one reading of the log, or of what the feeds still have, for all
of them. So a client that comes with ten thousand keys from another gateway costs one reading, not ten
thousand. What a key has no room for stays in the log until its client has taken what waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from streamlease.gateway.channels.channel import Channel
from streamlease.gateway.channels.core.client_mailbox import ChannelKey, KeyState
from streamlease.gateway.channels.live_keys import LiveKey, LiveKeys, places_of
from streamlease.gateway.channels.routed_messages import CursorLine, routed
from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.gateway.core.interests import Interests
from streamlease.gateway.problems import problem
from streamlease.protocol.errors import StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId

if TYPE_CHECKING:
    import pyarrow as pa

    from streamlease.gateway.feeds import Feed, Feeds
    from streamlease.gateway.since_reading import SinceReading
    from streamlease.streams.spaces.spaces import Known

RETRY_SECONDS = 0.5
REACH_SECONDS = 5.0
"""So long a feed may take to know what a cursor knows; afterwards the log is asked whether that is there."""

LOOK_SECONDS = 0.01

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
        while keys := channel.ready_behind():
            try:
                known = await self._feeds.known()
                for (cursor, spaces), some in self._groups(channel, keys, known).items():
                    await self._together(channel, _Group(channel, spaces, self._cursors.parse(cursor), some))
            except (StoreUnavailable, StoreRefused) as error:
                channel.trouble = error
                await asyncio.sleep(RETRY_SECONDS)
            else:
                channel.trouble = None

    def _groups(
        self, channel: Channel, keys: Sequence[ChannelKey], known: Known
    ) -> dict[tuple[str, tuple[str, ...]], list[ChannelKey]]:
        groups: dict[tuple[str, tuple[str, ...]], list[ChannelKey]] = {}
        spaces: dict[str, tuple[str, ...]] = {}
        for key in keys:
            assert key.state is KeyState.CATCHING_UP
            assert key.cursor is not None
            try:
                if key.filter not in spaces:
                    spaces[key.filter] = tuple(sorted(space.name for space in known.for_filter(key.filter)))
                groups.setdefault((key.cursor, spaces[key.filter]), []).append(key)
            except StreamleaseError as error:
                _fail(channel, key, error)
        return groups

    async def _together(self, channel: Channel, group: _Group) -> None:
        loop = asyncio.get_running_loop()
        try:
            asked = loop.time()
            while group.go_on():
                feeds = await self._feeds.follow(group.spaces)
                cursor = group.cursor
                if all(one.follows and one.recent.covers(cursor, one.space) for one in feeds):
                    if all(_reached(one, cursor) for one in feeds):
                        self._join(group, feeds)
                        break
                    if loop.time() - asked < REACH_SECONDS:
                        await asyncio.sleep(LOOK_SECONDS)
                        continue
                await self._read(group)
                asked = loop.time()
        except (StoreUnavailable, StoreRefused):
            raise
        except StreamleaseError as error:
            for key in group.keys:
                _fail(channel, key, error)
        finally:
            group.keep(self._cursors)
        channel.wake()

    def _join(self, group: _Group, feeds: Sequence[Feed]) -> None:
        """Take what the feeds have behind the cursor, and be live: without a pause between both."""
        before = group.cursor
        for feed in feeds:
            for piece in feed.recent.after(before):
                start = before.next_of(piece.stream)
                group.take(piece.stream, piece.end, piece.data.rows_from(start), self._cursors)
        group.at(places_of(feeds))
        for key in group.remaining():
            self._live.join(LiveKey(group.channel, key), group.spaces)

    async def _read(self, group: _Group) -> None:
        """Take what the log has behind the cursor."""
        async with self._reading.scan(group.spaces, group.keys[0].filter, group.cursor) as reading:
            group.at({StreamId.parse(name): (next, False) for name, next in reading.positions.items()})
            async for batch in reading:
                group.take(batch.stream, batch.end, batch.data, self._cursors)
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


class _Group:
    """Keys that have the same cursor, on their way."""

    def __init__(
        self, channel: Channel, spaces: tuple[str, ...], cursor: Cursor, keys: Sequence[ChannelKey]
    ) -> None:
        self.channel = channel
        self.spaces = spaces
        self.keys = [*keys]
        self._places = dict(cursor.places)
        self._interests: Interests[ChannelKey] = Interests()
        for key in keys:
            self._interests.add(key.filter, key)

    @property
    def cursor(self) -> Cursor:
        """They have everything up to here."""
        return Cursor(self._places)

    def remaining(self) -> Iterator[ChannelKey]:
        """Those that are on their way still."""
        for key in [*self.keys]:
            if key.state is KeyState.CATCHING_UP:
                yield key

    def go_on(self) -> bool:
        """Whether anybody is; those who left are forgotten."""
        if any(key.state is not KeyState.CATCHING_UP for key in self.keys):
            for key in self.keys:
                if key.state is not KeyState.CATCHING_UP:
                    self._interests.remove(key.filter, key)
            self.keys = [*self.remaining()]
        return bool(self.keys) and not self.channel.is_closed

    def at(self, places: Mapping[StreamId, tuple[int, bool]]) -> None:
        """They have everything up to here, too."""
        self._places.update(places)

    def take(self, stream: StreamId, end: int, data: pa.RecordBatch, cursors: CursorCodec) -> None:
        """The next messages of a stream; whoever has no room for one stays where he is."""
        line = CursorLine(cursors, self._places, stream)
        full: dict[ChannelKey, None] = {}
        mailbox = self.channel.mailbox
        for message, whom in routed(data, self._interests):
            for key in whom:
                if key in full or key.state is not KeyState.CATCHING_UP:
                    continue
                if mailbox.has_room(key):
                    mailbox.put(key, message.body, line.text(message.offset + 1))
                else:
                    full[key] = None
                    key.cursor = line.text(message.offset)
        for key in full:
            self._interests.remove(key.filter, key)
        if full:
            self.keys = [key for key in self.keys if key not in full]
        self.at({stream: (end, False)})

    def keep(self, cursors: CursorCodec) -> None:
        """Each key keeps how far it came."""
        text = None
        for key in self.remaining():
            text = text or cursors.text(self.cursor)
            key.cursor = text


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
