"""Since-queries: all after a point, never silently less, and a wait if there is nothing yet.

The point is a cursor, and the log is the truth. Who is at the end of the spaces of his filter is answered
from their feeds (``feeds``); everybody else from the log. Nothing falls between both: a feed begins before
the log is read, and serves a cursor only if it has everything behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from streamlease.agent.plain.plain_ways import read_spaces
from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.gateway.core.questions import AskedMessages, Point
from streamlease.gateway.core.refusals import FileLostSince, LostSince, TruncatedSince
from streamlease.gateway.feeds import Feed, Feeds
from streamlease.gateway.http_calls import ClientGone
from streamlease.gateway.pages.message_page import MessagePage
from streamlease.gateway.pages.page_taking import PageTaking
from streamlease.protocol.errors import HistoryTruncated, Lost
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.log.times import BeyondTheEnd
from streamlease.streams.spaces.spaces import streams_of

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.agent.plain.listening import PlainSubscription
    from streamlease.streams.spaces.spaces import Space

READERS = 16
"""So many clients read the log at once; others wait for their turn."""

PAUSE_SECONDS = 0.02


class ToldToAnother(LostSince):
    """What was beyond the end is not any more: somebody else was told, and a hole is behind the cursor."""


class SinceReading:
    """Answers questions about messages."""

    def __init__(self, client: Client, feeds: Feeds, cursors: CursorCodec) -> None:
        self._client = client
        self._feeds = feeds
        self._cursors = cursors
        self._turns = asyncio.Semaphore(READERS)

    async def page(self, asked: AskedMessages, gone: asyncio.Future[None] | None = None) -> MessagePage:
        """What comes after the point that was asked about; if nothing, once there is some or the wait ends.

        Args:
            gone: done when nobody waits for the page any more.

        Raises:
            Gone: so it is.
            TruncatedSince: something behind the point is not there any more.
            LostSince: Redis lost messages that were passed, or come next.
            FileLostSince: a file of an archive is lost, and what comes next with it.
            UnknownSpace, InvalidTopic, InvalidInput, StoreUnavailable, StoreRefused, SchemaMismatch.
        """
        deadline = asyncio.get_running_loop().time() + asked.wait
        feeds = await self.feeds_of(asked.filter) if asked.wait else []
        page = await self.next_page(feeds, asked.filter, asked.since, asked.limit)
        while not page.count and (left := deadline - asyncio.get_running_loop().time()) > 0:
            page = await self.waited(feeds, asked.filter, page.next, asked.limit, left, gone)
        return page

    async def feeds_of(self, filter: str) -> list[Feed]:
        """The feeds of what `filter` matches, for `next_page` and `waited`; see ``Feeds.of``."""
        return await self._feeds.of(filter)

    async def next_page(self, feeds: list[Feed], filter: str, since: Point, limit: int) -> MessagePage:
        """What is there now, perhaps nothing; see `page`."""
        if feeds and isinstance(since, Cursor):
            page = self._feeds.page(feeds, filter, since, limit)
            if page is not None:
                return page
        async with self._turns:
            return await self._from_log(filter, since, limit)

    async def point(self, filter: str, since: Point) -> Cursor:
        """The cursor of a point, which is checked: all behind it is still there.

        Raises:
            As :meth:`page`.
        """
        if since != "earliest" and not isinstance(since, datetime):
            page = await self.next_page([], filter, since, 1)
            return since if isinstance(since, Cursor) else page.next
        async with self._turns, self._open(filter, since) as reading:
            return Cursor({stream: (next, False) for stream, next in _streams(reading.positions).items()})

    async def waited(
        self,
        feeds: list[Feed],
        filter: str,
        after: Cursor,
        limit: int,
        seconds: float,
        gone: asyncio.Future[None] | None,
    ) -> MessagePage:
        """What is there once something may be, or after `seconds`; perhaps nothing. See `page`."""
        waiting = self._feeds.wait(feeds, filter)
        try:
            page = self._feeds.page(feeds, filter, after, limit)
            if page is None:
                await asyncio.sleep(PAUSE_SECONDS)
            elif page.count:
                return page
            else:
                await waiting.woken(seconds, gone)
        finally:
            self._feeds.leave(feeds, waiting)
        if gone is not None and gone.done():
            raise ClientGone
        feeds[:] = await self._feeds.of(filter)  # spaces may have come
        return await self.next_page(feeds, filter, after if page is None else page.next, limit)

    async def place(self, filter: str, since: Point) -> Cursor:
        """The cursor at a point, for what `filter` matches.

        Raises:
            UnknownSpace, StoreUnavailable, StoreRefused.
        """
        if isinstance(since, Cursor):
            return since
        async with self._turns, self._open(filter, since) as reading:
            return Cursor({stream: (next, False) for stream, next in _streams(reading.positions).items()})

    @asynccontextmanager
    async def scan(
        self, spaces: Sequence[str], filter: str, after: Cursor
    ) -> AsyncIterator[PlainSubscription]:
        """All messages of some spaces after a cursor that are there now, whatever their topics.

        Args:
            filter: which matches topics of all of them.

        Raises:
            TruncatedSince: as `page`; also out of what is done with the messages.
        """
        client = self._client
        async with self._turns, self._explained(filter, after):
            reading = read_spaces(client.redis, client.tails, client.spaces, spaces, _known(after))
            async with reading:
                await self._check_gone(after, _streams(reading.positions))
                yield reading

    # ------------------------------------------------------------ the log

    async def _from_log(self, filter: str, since: Point, limit: int) -> MessagePage:
        try:
            return await self._as_it_is(filter, since, limit)
        except ToldToAnother:  # the cursor to go on from is behind the hole, which is there to be seen now
            return await self._as_it_is(filter, since, limit)

    async def _as_it_is(self, filter: str, since: Point, limit: int) -> MessagePage:
        async with self._explained(filter, since), self._open(filter, since) as reading:
            return await self._read(reading, since, limit)

    @asynccontextmanager
    async def _explained(self, filter: str, since: Point) -> AsyncIterator[None]:
        """What the log does not have any more is said with the cursor to go on from."""
        try:
            yield
        except BeyondTheEnd as error:
            if not isinstance(since, Cursor):
                raise
            raise await self._lost(since) from error
        except HistoryTruncated as error:
            kind = LostSince if isinstance(error, MissingOffsets) else TruncatedSince
            why = str(error.with_remedy("go on from the cursor 'oldest'"))
            raise kind(why, self._cursors.text(await self._oldest(filter, since, error))) from error
        except Lost as error:
            oldest = self._cursors.text(await self._oldest(filter, since, error))
            why = f"{error.what}: restore it from a backup and ask again, or go on from the cursor 'oldest'"
            raise FileLostSince(why, oldest, error.file) from error

    async def _lost(self, after: Cursor) -> LostSince:
        """Redis lost messages that a client has.

        No others get their offsets, and one offset more is left out: so all who had read them find a hole
        behind their cursors, and are told, too.
        """
        log, places, why = AsyncLog(self._client.redis), dict(after.places), ""
        for stream, state in (await log.states(places)).items():
            next, _ = places[stream]
            if next <= state.next:
                continue
            await log.never_again(stream, next + 1)
            places[stream] = (state.next, True) if state.sealed else (next + 1, False)
            why = why or (
                f"Redis lost acknowledged messages, as in a failover: stream {stream} ended at offset "
                f"{state.next}, and this cursor has passed {next - 1}: go on from the cursor 'oldest'; "
                f"for what was published between the failover and now, ask with a time before the failover"
            )
        oldest = self._cursors.text(Cursor(places))
        return LostSince(why, oldest) if why else ToldToAnother("Redis lost messages: ask again", oldest)

    @asynccontextmanager
    async def _open(self, filter: str, since: Point) -> AsyncIterator[PlainSubscription]:
        if since == "latest":
            opening = self._client.listen(filter, start="latest")
        elif isinstance(since, Cursor):
            opening = self._client.history(filter, since=_known(since))
        else:
            opening = self._client.history(filter, since=since if isinstance(since, datetime) else None)
        async with opening as reading:
            yield reading

    async def _read(self, reading: PlainSubscription, since: Point, limit: int) -> MessagePage:
        there = _streams(reading.positions)
        after = since if isinstance(since, Cursor) else Cursor({})
        await self._check_gone(after, there)
        taking = PageTaking(after, limit)
        spaces = {stream.space for stream in there}
        taking.places = {
            **{stream: place for stream, place in after.places.items() if stream.space not in spaces},
            **{stream: (next, False) for stream, next in there.items()},
        }
        more = False
        if since != "latest":
            try:
                async for batch in reading:
                    if not taking.take(batch.stream, batch.end, batch.data):
                        more = True
                        break
            except (HistoryTruncated, Lost):
                if not taking.count:
                    raise
                more = True  # what was read before a hole is handed out first
        if not more:  # also behind what the filter does not match
            taking.places |= {stream: (next, False) for stream, next in _streams(reading.positions).items()}
        taking.end(_streams(reading.ends).items())
        return taking.page(self._cursors)

    async def _check_gone(self, after: Cursor, there: Mapping[StreamId, int]) -> None:
        """Whether a stream that was not read to its end is gone with what it had.

        Raises:
            HistoryTruncated: one is.
        """
        missing = [s for s, (_, ended) in after.places.items() if not ended and s not in there]
        if missing:
            known = await self._client.spaces.recent()
            for stream in missing:
                space = known.spaces.get(stream.space)
                if stream.space not in known.damaged and (space is None or stream not in space.streams()):
                    next = after.next_of(stream)
                    if space is not None and await self._ended_at(stream, space) == next:
                        continue
                    raise HistoryTruncated(str(stream), next, next, "go on from the cursor 'oldest'")

    async def _ended_at(self, gone: StreamId, space: Space) -> int | None:
        """Where a dropped stream ended, if all that came after it is there; None: nobody knows."""
        following = [one for one in space.generations if one.number == gone.generation + 1]
        ends = await AsyncLog(self._client.redis).former_ends(streams_of(space.name, following))
        return ends.get(gone)

    async def _oldest(self, filter: str, since: Point, error: HistoryTruncated | Lost) -> Cursor:
        """The cursor that has all that is left after `since`."""
        if not isinstance(since, Cursor):
            async with self._client.history(filter) as reading:
                left = {stream: (next, False) for stream, next in _streams(reading.positions).items()}
            if isinstance(error, Lost):
                left[StreamId.parse(error.stream)] = (error.next, False)
            return Cursor(left)
        left = dict(since.places)
        while True:
            stream = StreamId.parse(error.stream)
            oldest = error.next if isinstance(error, Lost) else error.oldest
            if left.get(stream, (0, False))[0] < oldest:
                left[stream] = (oldest, False)
            else:
                left.pop(stream, None)
            try:
                async with self._client.history(filter, since=_known(Cursor(left))) as reading:
                    await self._check_gone(Cursor(left), _streams(reading.positions))
                    return Cursor(left)
            except HistoryTruncated as another:
                error = another
            except BeyondTheEnd as beyond:
                raise await self._lost(Cursor(left)) from beyond


def _known(cursor: Cursor) -> dict[str, int]:
    """The last offset of each stream that is known already, as `history` takes it."""
    return {str(stream): next - 1 for stream, (next, _) in cursor.places.items()}


def _streams(places: Mapping[str, Any]) -> dict[StreamId, int]:
    return {StreamId.parse(name): next for name, next in places.items()}
