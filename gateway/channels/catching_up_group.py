"""Keys that catch up together, each from its own cursor, by one reading from the lowest of them.

::

    stream    |----------low====own of a key=====own of another======now----->
                          ^ the reading: a key takes what is behind its own cursor

The cursor of a key is the higher of its own and that of the reading, stream by stream. So it never goes back,
and nothing that a client has comes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamlease.gateway.channels.channel import Channel
from streamlease.gateway.channels.core.log_keys import ChannelKey, KeyState
from streamlease.gateway.channels.routed_messages import CursorLine, routed
from streamlease.gateway.core.cursors import Cursor, CursorCodec, Places
from streamlease.gateway.core.interests import Interests
from streamlease.protocol.ids import StreamId

if TYPE_CHECKING:
    import pyarrow as pa


class CatchingUpGroup:
    """Some keys of a channel, on their way.

    Args:
        keys: never none, with their cursors, which name the same streams.
    """

    def __init__(
        self,
        channel: Channel,
        spaces: tuple[str, ...],
        keys: Mapping[ChannelKey, Cursor],
        cursors: CursorCodec,
    ) -> None:
        self.channel = channel
        self.spaces = spaces
        self.filter = next(iter(keys)).filter
        """One that matches something in all the spaces."""
        self._cursors = cursors
        self._own = dict(keys)
        """Those that are left, and where each began."""
        distinct = [*{id(cursor): cursor for cursor in keys.values()}.values()]
        self._places = dict(distinct[0].places)
        high = dict(distinct[0].places)
        for cursor in distinct[1:]:
            for stream, place in cursor.places.items():
                self._places[stream] = min(self._places[stream], place)
                high[stream] = max(high[stream], place)
        self.high = Cursor(high)
        """Behind all cursors."""
        self._is_ahead = len(distinct) > 1
        """Whether a key may have more than the reading."""
        self._interests: Interests[ChannelKey] = Interests()
        for key in keys:
            self._interests.add(key.filter, key)

    @property
    def low(self) -> Cursor:
        """Where the reading is: all keys have everything up to here."""
        return Cursor(self._places)

    def remaining(self) -> list[ChannelKey]:
        """Those that are on their way still."""
        return [key for key in self._own if key.state is KeyState.CATCHING_UP]

    def go_on(self) -> bool:
        """Whether any are; those who left are forgotten."""
        for key in [key for key in self._own if key.state is not KeyState.CATCHING_UP]:
            self._forget(key)
        return bool(self._own) and not self.channel.is_closed

    def at(self, places: Places) -> None:
        """All keys have everything up to here, too."""
        self._places.update(places)
        if self._is_ahead:
            self._is_ahead = any(
                self._places.get(stream, (0, False)) < place for stream, place in self.high.places.items()
            )

    def take(self, stream: StreamId, end: int, data: pa.RecordBatch) -> None:
        """The next messages of a stream; a key that has no room for one leaves, and stays where it is."""
        shared = CursorLine(self._cursors, self._places, stream)
        mailbox = self.channel.mailbox
        full: dict[ChannelKey, None] = {}
        for message, whom in routed(data, self._interests):
            for key in whom:
                if key in full or key.state is not KeyState.CATCHING_UP:
                    continue
                line = shared
                if self._is_ahead:
                    if message.offset < self._own[key].next_of(stream):
                        continue
                    line = CursorLine(self._cursors, self._merged(key), stream)
                if mailbox.has_room(key):
                    mailbox.put(key, message.body, line.text(message.offset + 1))
                else:
                    full[key] = None
                    key.cursor = line.text(message.offset)
        for key in full:
            self._forget(key)
        self.at({stream: (end, False)})

    def keep(self) -> None:
        """Each key keeps how far it came."""
        text = None
        for key in self.remaining():
            if self._is_ahead:
                key.cursor = self._cursors.text(Cursor(self._merged(key)))
            else:
                text = text or self._cursors.text(self.low)
                key.cursor = text

    def _merged(self, key: ChannelKey) -> Places:
        own = self._own[key].places
        return {stream: max(place, own.get(stream, place)) for stream, place in self._places.items()}

    def _forget(self, key: ChannelKey) -> None:
        del self._own[key]
        self._interests.remove(key.filter, key)
