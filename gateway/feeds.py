"""Feeds: the ends of spaces, each read once for all clients of a gateway that wait there.

::

    Redis --news--> Feed of a space --reads once--> recent pieces --wakes by topic--> those who wait
                                                         |
                                                         +--> their answers, the same object for the same
                                                         cursor

A feed begins when somebody waits for messages of its space, and ends when nobody has for a while. It does not
decide what a client gets: the client's cursor does. What the pieces do not cover is read from the log, and
what a feed fails at (retention was faster, Redis is away) only lets those who wait ask the log, which says
what is wrong. Without any push the answers are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from streamlease.agent.plain.plain_ways import follow_space
from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.gateway.core.interests import Interests
from streamlease.gateway.core.recent import Recent
from streamlease.gateway.metrics import COUNTS
from streamlease.gateway.pages.chosen_rows import ChosenRows
from streamlease.gateway.pages.message_page import MessagePage
from streamlease.gateway.pages.page_taking import PageTaking
from streamlease.protocol.errors import StoreUnavailable, StreamleaseError, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.protocol.seldom import Seldom
from streamlease.streams.tasks import Supervisor, stop

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.agent.plain.listening import PlainSubscription
    from streamlease.agent.plain.selecting import PlainBatch
    from streamlease.streams.spaces.spaces import Known

LINGER_SECONDS = 30.0
LOOK_SECONDS = 1.0
"""How often new spaces, and what of streams has ended, are looked for."""

BETWEEN_LOOKS = 0.05
"""For spaces that are not known; so whoever asks for what there is not costs Redis no more than that."""

RETRY_SECONDS = 0.5
READY_SECONDS = 10.0
MOST_PAGES_BYTES = 16 * 1024 * 1024
"""Of pages that are kept for a moment, for others who ask the same."""

PAGE_BYTES = 1024
"""What a page takes beside its messages."""

_logger = logging.getLogger(__name__)


class FeedListener(Protocol):
    """Who takes every message of the spaces that it wants, such as the channels of clients."""

    def wants(self, feed: Feed) -> bool:
        """Whether the feed is to go on, even if nobody else waits."""
        ...

    def took(self, feed: Feed, batch: PlainBatch) -> None:
        """The next messages of a stream; ``feed.recent`` does not have them yet."""

    def broke(self, feed: Feed) -> None:
        """It follows its space no longer, behind ``feed.recent``; perhaps it will again."""

    def spaces_changed(self, known: Known) -> None:
        """There are other spaces than before."""


class WaitingClient:
    """Somebody who waits for messages that a filter matches, or for a reason to look again."""

    __slots__ = ("_woken", "filter")

    def __init__(self, filter: str) -> None:
        self.filter = filter
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """There may be something."""
        if not self._woken.done():
            self._woken.set_result(None)

    def found(self, feed: Feed, number: int) -> None:
        """There is something in a feed, in the piece of that number; told of each piece."""
        self.wake()

    async def woken(self, seconds: float, gone: asyncio.Future[None] | None) -> None:
        """Wait until it is woken, `gone` is done, or `seconds` are over."""
        either = (self._woken,) if gone is None else (self._woken, gone)
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


class Feed:
    """The end of one space."""

    def __init__(self, client: Client, space: str, listeners: Sequence[FeedListener] = ()) -> None:
        self.space = space
        self._listeners = listeners
        self.recent: Recent[ChosenRows] = Recent()
        self.interests: Interests[WaitingClient] = Interests()
        self.ended: frozenset[tuple[StreamId, int]] = frozenset()
        """Streams that are sealed, and where they end."""
        self.idle_since: float | None = None
        """Since when nobody waits."""
        self.version = 0
        """Goes up with everything that may change an answer."""
        self._client = client
        self._reading: PlainSubscription | None = None
        self._ready = asyncio.Event()
        self._seldom = Seldom(_logger)

    @property
    def follows(self) -> bool:
        """Whether it follows its space now."""
        return self._ready.is_set()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits."""
        return bool(len(self.interests)) or any(one.wants(self) for one in self._listeners)

    async def ready(self) -> bool:
        """Wait until it follows its space; whether it does."""
        if not self._ready.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_SECONDS):
                    await self._ready.wait()
        return self._ready.is_set()

    async def run(self) -> None:
        """Follow the space, for ever."""
        while True:
            try:
                async with self._following() as reading:
                    self._begin(reading)
                    async for batch in reading:
                        self._take(batch)
            except UnknownSpace:
                _logger.info("gateway: space %s is gone", self.space)
            except StreamleaseError as error:
                self._seldom.warning("gateway: following space %s: %s", self.space, error)
            finally:
                self._ready.clear()
                self._reading = None
                for listener in self._listeners:
                    listener.broke(self)
            self.wake_all()
            await asyncio.sleep(RETRY_SECONDS)

    def _following(self) -> PlainSubscription:
        client = self._client
        return follow_space(client.redis, client.tails, client.spaces, client.agent, self.space)

    def look(self) -> None:
        """See which streams have ended and which are gone."""
        if self._reading is None:
            return
        positions = {StreamId.parse(name): next for name, next in self._reading.positions.items()}
        ended = frozenset((StreamId.parse(name), end) for name, end in self._reading.ends.items())
        if ended != self.ended:
            self.ended = ended
            self.version += 1
        self.recent.keep_only(positions)

    def is_passed_by(self, cursor: Cursor) -> bool:
        """Whether it has nothing behind `cursor`."""
        return all(cursor.next_of(stream) >= end for stream, end in self.recent.ends.items())

    def places(self, before: int | None) -> dict[StreamId, tuple[int, bool]] | None:
        """See ``Recent.places``; and which streams end there."""
        there = self.recent.places(before)
        if there is None:
            return None
        return {stream: (next, (stream, next) in self.ended) for stream, next in there.items()}

    def wake_all(self) -> None:
        """Let everybody look again."""
        self.version += 1
        for waiting in [*self.interests.everybody()]:
            waiting.wake()

    def _begin(self, reading: PlainSubscription) -> None:
        self._reading = reading
        self.recent.begin({StreamId.parse(name): next for name, next in reading.positions.items()})
        self._ready.set()
        self.wake_all()

    def _take(self, batch: PlainBatch) -> None:
        for listener in self._listeners:
            listener.took(self, batch)
        chosen = ChosenRows(batch.data)
        self.recent.put(batch.stream, batch.start, batch.end, chosen, chosen.size)
        self.version += 1
        if len(self.interests):
            for waiting in self.interests.of(chosen.topics()):
                waiting.found(self, self.recent.number)


class Feeds:
    """All feeds of one gateway; a context manager."""

    def __init__(self, client: Client, cursors: CursorCodec) -> None:
        self._client = client
        self._cursors = cursors
        self._feeds: dict[str, Feed] = {}
        self._tasks = Supervisor("gateway", self._failed)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._spaces: dict[str, int] = {}
        """The spaces that were there at the last look, and when each was born."""
        self._pages: dict[tuple[str, Cursor, int], tuple[tuple[int, ...], MessagePage | None]] = {}
        self._pages_bytes = 0
        self._listeners: list[FeedListener] = []
        self._looking = asyncio.Lock()
        self._seldom = Seldom(_logger)
        self._looked_at = -BETWEEN_LOOKS
        """When spaces were looked at because one was not known."""

    def tell(self, listener: FeedListener) -> None:
        """From now on `listener` is told everything."""
        self._listeners.append(listener)

    def get(self, space: str) -> Feed | None:
        """The feed of a space, if there is one."""
        return self._feeds.get(space)

    async def __aenter__(self) -> Feeds:
        self._tasks.start("looking", self._look(), endless=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()
        COUNTS.feeds -= len(self._feeds)
        self._feeds.clear()

    async def of(self, filter: str) -> list[Feed]:
        """The feeds of the spaces that have topics which `filter` matches; they run.

        Raises:
            UnknownSpace: there is none. StoreUnavailable, StoreRefused, Unsupported.
        """
        try:
            spaces = (await self.known()).for_filter(filter)
        except UnknownSpace:
            spaces = (await self.known_for([filter])).for_filter(filter)
        return await self.follow([space.name for space in spaces])

    async def known(self) -> Known:
        """The spaces that there are.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        known = await self._client.spaces.recent()
        self._see(known)
        return known

    async def known_for(self, filters: Iterable[str]) -> Known:
        """The spaces that there are; looked at anew if none is known for one of the filters.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        known = await self.known()
        if all(known.matching(filter) for filter in {*filters}):
            return known
        called = asyncio.get_running_loop().time()
        async with self._looking:
            if self._looked_at < called:  # else somebody has looked since
                await asyncio.sleep(max(0.0, self._looked_at + BETWEEN_LOOKS - called))
                self._looked_at = asyncio.get_running_loop().time()
                await self._client.spaces.look()
        return await self.known()

    async def follow(self, spaces: Iterable[str]) -> list[Feed]:
        """The feeds of these spaces; they run.

        Raises:
            StoreUnavailable: one cannot be followed now.
        """
        feeds = [self._feed(space) for space in spaces]
        for feed in feeds:
            if not await feed.ready():
                raise StoreUnavailable(f"space {feed.space} cannot be followed now: try again")
        return feeds

    def page(self, feeds: Sequence[Feed], filter: str, after: Cursor, limit: int) -> MessagePage | None:
        """What comes after a cursor, as far as it is there; None if the log has to say that."""
        versions = tuple(feed.version for feed in feeds)
        key = (filter, after, limit)
        known = self._pages.get(key)
        if known is not None and known[0] == versions:
            return known[1]
        page = self._made(feeds, filter, after, limit)
        self._pages_bytes += PAGE_BYTES if page is None else page.bytes + PAGE_BYTES
        if self._pages_bytes > MOST_PAGES_BYTES:
            self._forget_pages()
        self._pages[key] = versions, page
        return page

    def wait(self, feeds: Iterable[Feed], filter: str) -> WaitingClient:
        """Wait for messages that `filter` matches; to be given to `leave` afterwards."""
        waiting = WaitingClient(filter)
        for feed in feeds:
            feed.interests.add(filter, waiting)
        return waiting

    def leave(self, feeds: Iterable[Feed], waiting: WaitingClient) -> None:
        """It waits no longer."""
        for feed in feeds:
            feed.interests.remove(waiting.filter, waiting)

    def _made(self, feeds: Sequence[Feed], filter: str, after: Cursor, limit: int) -> MessagePage | None:
        if not all(feed.recent.covers(after, feed.space) for feed in feeds):
            return None
        taking = PageTaking(after, limit)
        for feed in feeds:
            for piece in feed.recent.after(after):
                rows, messages = piece.data.rows(filter, taking.next_of(piece.stream))
                if not taking.take(piece.stream, piece.end, rows, messages):
                    return taking.page(self._cursors)
        for feed in feeds:
            taking.end(feed.ended)
        return taking.page(self._cursors)

    def _feed(self, space: str) -> Feed:
        feed = self._feeds.get(space)
        if feed is None:
            feed = self._feeds[space] = Feed(self._client, space, self._listeners)
            self._running[space] = self._tasks.start(f"feed of {space}", feed.run(), endless=True)
            COUNTS.feeds += 1
        feed.idle_since = None
        return feed

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._forget_pages()
            now = asyncio.get_running_loop().time()
            stopped: list[asyncio.Task[None]] = []
            for feed in [*self._feeds.values()]:
                feed.look()
                if feed.is_wanted:
                    feed.idle_since = None
                elif feed.idle_since is None:
                    feed.idle_since = now
                elif now - feed.idle_since > LINGER_SECONDS:
                    self._forget(feed)
                    stopped.append(self._running.pop(feed.space))
            await stop(stopped)
            try:
                known = await self._client.spaces.recent()
            except StreamleaseError as error:
                self._seldom.warning("gateway: looking for spaces: %s", error)
                continue
            self._see(known)

    def _see(self, known: Known) -> None:
        spaces = {name: space.born for name, space in known.spaces.items()}
        if spaces != self._spaces:
            self._spaces = spaces
            for feed in self._feeds.values():
                feed.wake_all()
            for listener in self._listeners:
                listener.spaces_changed(known)

    def _forget_pages(self) -> None:
        self._pages.clear()
        self._pages_bytes = 0

    def _forget(self, feed: Feed) -> None:
        del self._feeds[feed.space]
        COUNTS.feeds -= 1

    def _failed(self, task: str, error: StreamleaseError) -> None:
        for feed in [*self._feeds.values()]:
            if self._running[feed.space].done():
                self._forget(feed)
                del self._running[feed.space]
            feed.wake_all()
