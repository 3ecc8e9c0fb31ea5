"""The keys that are live: what comes at the ends of their spaces goes into their mailboxes as it is read.

A message is decoded, and made JSON, once for all clients of the gateway. A key that has no room for it, and
may not lose it, falls back to the cursor before it; so do all keys of a space that is not followed any more.
They catch up from the log then (``catching_up``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from streamlease.gateway.channels.channel import Channel
from streamlease.gateway.channels.core.log_keys import ChannelKey, KeyEvent, KeyState
from streamlease.gateway.channels.metrics import CHANNEL_COUNTS, FELL_BACK
from streamlease.gateway.channels.routed_messages import CursorLine, routed
from streamlease.gateway.core.cursors import Cursor, CursorCodec, Places
from streamlease.gateway.core.interests import Interests

if TYPE_CHECKING:
    from streamlease.agent.plain.selecting import PlainBatch
    from streamlease.gateway.feeds import Feed, Feeds
    from streamlease.streams.spaces.spaces import Known

_logger = logging.getLogger(__name__)


class LiveKey(NamedTuple):
    """A key, and whose it is."""

    channel: Channel
    key: ChannelKey


class LiveKeys:
    """All live keys of a gateway; listens to its feeds."""

    def __init__(self, feeds: Feeds, cursors: CursorCodec) -> None:
        self._feeds = feeds
        self._cursors = cursors
        self._interests: dict[str, Interests[LiveKey]] = {}
        """By space."""
        self._counts: Counter[str] = Counter()
        """Live keys by space."""
        self._points: dict[tuple[str, ...], tuple[tuple[int, ...], str]] = {}
        """By spaces, the newest cursor that was asked for."""

    @property
    def count(self) -> int:
        """How many keys are live; one over several spaces counts in each."""
        return self._counts.total()

    def join(self, live: LiveKey, spaces: tuple[str, ...]) -> None:
        """The key has everything that is known of these spaces."""
        live.key.step(KeyEvent.CAUGHT_UP)
        live.key.spaces = spaces
        live.channel.behind.pop(live.key, None)
        live.channel.spaces.update(spaces)
        for space in spaces:
            self._interests.setdefault(space, Interests()).add(live.key.filter, live)
            self._counts[space] += 1

    def leave(self, live: LiveKey) -> None:
        """The key is not live any more; nothing if it was not."""
        for space in live.key.spaces:
            self._interests[space].remove(live.key.filter, live)
            self._counts[space] -= 1
            if not self._counts[space]:
                del self._interests[space], self._counts[space]
            live.channel.spaces[space] -= 1
            if not live.channel.spaces[space]:
                del live.channel.spaces[space]
        live.key.spaces = ()

    def point(self, spaces: Iterable[str]) -> str:
        """The cursor at the end of what is known of these spaces."""
        found = tuple(feed for space in sorted(spaces) if (feed := self._feeds.get(space)) is not None)
        names = tuple(feed.space for feed in found)
        versions = tuple(feed.version for feed in found)
        known = self._points.get(names)
        if known is None or known[0] != versions:
            known = self._points[names] = versions, self._cursors.text(Cursor(places_of(found)))
        return known[1]

    # ------------------------------------------------------------ as a FeedListener

    def wants(self, feed: Feed) -> bool:
        """See ``FeedListener``."""
        return feed.space in self._counts

    def took(self, feed: Feed, batch: PlainBatch) -> None:
        """See ``FeedListener``."""
        interests = self._interests.get(feed.space)
        if interests is None:
            return
        if feed.recent.ends.get(batch.stream, 0) != batch.start:  # retention was faster: the log tells that
            self.broke(feed)
            return
        lines: dict[tuple[str, ...], CursorLine] = {}
        woken: dict[Channel, None] = {}
        for message, whom in routed(batch.data, interests):
            for live in whom:
                channel, key = live
                if key.state is not KeyState.LIVE:
                    continue
                line = lines.get(key.spaces)
                if line is None:
                    places = places_of([one for s in key.spaces if (one := self._feeds.get(s)) is not None])
                    line = lines[key.spaces] = CursorLine(self._cursors, places, batch.stream)
                if channel.mailbox.offer(key, message.body, line.text(message.offset + 1)):
                    woken[channel] = None
                else:
                    self._fall_back(live, line.text(message.offset))
        for channel in woken:
            channel.wake()

    def broke(self, feed: Feed) -> None:
        """See ``FeedListener``."""
        interests = self._interests.get(feed.space)
        if interests is not None:
            for live in [*interests.everybody()]:
                self._fall_back(live, self.point(live.key.spaces))

    def spaces_changed(self, known: Known) -> None:
        """See ``FeedListener``."""
        found: dict[str, tuple[str, ...]] = {}
        for live in {live for interests in self._interests.values() for live in interests.everybody()}:
            key = live.key
            if key.filter not in found:
                found[key.filter] = tuple(space.name for space in known.matching(key.filter))
            if found[key.filter] != key.spaces:
                self._fall_back(live, self.point(key.spaces))

    def _fall_back(self, live: LiveKey, cursor: str) -> None:
        self.leave(live)
        live.key.step(KeyEvent.FELL_BACK, cursor)
        CHANNEL_COUNTS.totals[FELL_BACK] += 1
        live.channel.fell_back(live.key)


def places_of(feeds: Sequence[Feed]) -> Places:
    """The ends of what feeds know."""
    places = {stream: (next, False) for feed in feeds for stream, next in feed.recent.ends.items()}
    for feed in feeds:
        for stream, end in feed.ended:
            if places.get(stream) == (end, False):
                places[stream] = (end, True)
    return places
