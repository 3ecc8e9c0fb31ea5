"""One member that this gateway serves: its session, and what it was handed.

What it gets next is read ahead by the consumer that every Python program has (``agent.subscription``), of
which messages are taken only to hand them out: so a stream that is asked back waits for just what the client
got. Before an answer leaves, the record of the member says so (``registry.members``); a gateway that was
replaced is refused there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from streamlease.agent.batch import Batch
from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.gateway.http_calls import ClientGone
from streamlease.gateway.members.coming_back import FormerPlaces
from streamlease.gateway.members.core.handed_out import HandedOut
from streamlease.gateway.members.core.member_refusals import NotCommitted, NotHandedOut, NotHeld
from streamlease.gateway.members.core.member_requests import AskedToFetch, FailedMessage
from streamlease.gateway.pages.message_page import MessagePage
from streamlease.gateway.pages.page_taking import PageTaking
from streamlease.protocol.errors import Fenced, InvalidInput, InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import Verdict
from streamlease.registry.commits import committed
from streamlease.registry.members.member_records import (
    HandedPlace,
    MemberGone,
    MemberRecords,
    ServedElsewhere,
)
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from streamlease.agent.subscription import SharedReader
    from streamlease.streams.redis.connection import AsyncRedis

MOST_MESSAGES = 100_000
"""So many messages a member may have without a commit."""

SLACK_MS = 1000
"""How much longer than its session timeout the record of a member lasts: it is kept now and then only."""

PIECES = 256
"""Most batches that are taken for one answer."""

_logger = logging.getLogger(__name__)


class Served(NamedTuple):
    """By which right a member is served here.

    Args:
        arrival: who has a later one is right.
        timeout: seconds without a request after which the member leaves.
        handed: what a gateway before this one has handed out, and may not be committed.
    """

    records: MemberRecords
    arrival: int
    timeout: float
    handed: Mapping[str, HandedPlace]


class ServedMember:
    """A member.

    Args:
        group: identity of its group.
        most_bytes: so much it may have without a commit.
        cursors: of members; they hold in this group.
        clock: seconds.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        group: str,
        reader: SharedReader,
        served: Served,
        cursors: CursorCodec,
        most_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self.arrival = served.arrival
        self.timeout = served.timeout
        self.open = 0
        """Requests under way."""
        self.heard_at = self.kept_at = clock()
        self._redis = redis
        self._group = group
        self._reader = reader
        self._records = served.records
        self._noted = dict(served.handed)
        self._cursors = cursors
        self._clock = clock
        self._handed: HandedOut[Batch] = HandedOut(MOST_MESSAGES, most_bytes)
        self._former = FormerPlaces(served.handed, reader, self._handed)
        self._poll: asyncio.Future[None] | None = None
        self._tasks = Supervisor(f"member of {group}", lambda _, error: _logger.warning("%s", error))
        if served.handed:
            self._tasks.start("coming back", self._former.come_back())

    # ------------------------------------------------------------ fetch

    async def fetch(self, asked: AskedToFetch, gone: asyncio.Future[None] | None) -> MessagePage:
        """What is handed out and not committed, and what comes behind it; if nothing, once there is some.

        Raises:
            NotCommitted: it must commit first.
            ServedElsewhere, MemberGone: this gateway does not serve it any more.
            And why its subscription is over: HistoryTruncated, SchemaMismatch, UnknownGroup, Fenced.
        """
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(None)  # whoever asked before asks again, or is gone
        poll = self._poll = asyncio.get_running_loop().create_future()
        deadline = self._clock() + asked.wait
        self._check_over()
        known = await self._known(asked.since)
        while True:
            page = self._page(known, asked.limit)
            if page.count:
                await self._note()
                return page
            self._check_over()
            if asked.since is not None and not self._handed.has_room:
                await self.keep()
                raise NotCommitted(
                    f"{self._handed.messages} messages of {self._handed.bytes} bytes are handed out and not "
                    f"committed: commit what is done, by POST to .../commit, before more comes"
                )
            left = deadline - self._clock()
            if left <= 0 or poll.done():
                return page
            await self._come(asked.limit, left, poll, gone)

    def _check_over(self) -> None:
        if (error := self._reader.error) is not None:
            raise error

    def _page(self, known: Cursor, limit: int) -> MessagePage:
        """What can be handed out now."""
        self._tidy()
        taking = PageTaking(known, limit)
        count, more = 0, True
        for piece in [*self._handed]:
            if more:
                count, more = self._put(taking, piece, count)
        for _ in range(PIECES):
            if not more or not self._handed.has_room:
                break
            batches = self._reader.at_once(1, limit - count)
            if not batches:
                break
            self._handed.put(batches[0])
            count, more = self._put(taking, batches[0], count)
        return taking.page(self._cursors)

    def _put(self, taking: PageTaking, piece: Batch, count: int) -> tuple[int, bool]:
        """Take what the member does not have; how much the page has then, and whether it may have more."""
        start = max(piece.held.committed, taking.places.get(piece.stream, (0, False))[0])
        if start >= piece.end:
            return count, True
        rows = piece.to_arrow()
        if start > piece.start:
            offsets = rows.column("offset").to_numpy()
            rows = rows.slice(int(offsets.searchsorted(start)))
        return count + rows.num_rows, taking.take(piece.stream, piece.end, rows)

    async def _known(self, since: Cursor | None) -> Cursor:
        """The places of a cursor that stand for what this session was handed out and has had ever since."""
        places = {}
        for stream, (place, ended) in since.places.items() if since is not None else ():
            await self._former.have(stream, place - 1)
            held = self._reader.book.streams.get(str(stream))
            if held is not None and place <= (self._handed.end_of(stream) or held.committed):
                places[stream] = (place, ended)
        return Cursor(places)

    async def _come(
        self,
        limit: int,
        seconds: float,
        poll: asyncio.Future[None],
        gone: asyncio.Future[None] | None,
    ) -> None:
        """Wait for something to hand out, for the next request, or so long."""
        coming = asyncio.get_running_loop().create_task(self._next(limit))
        others = [poll] if gone is None else [poll, gone]
        try:
            await asyncio.wait({coming, *others}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            coming.cancel()
            await asyncio.wait({coming})
        if not coming.cancelled():
            coming.result()
        if gone is not None and gone.done():
            raise ClientGone

    async def _next(self, limit: int) -> None:
        try:
            found = await self._reader.next_item(_nothing, limit)
        except StopAsyncIteration:  # it leaves
            return
        self._handed.put(found)

    async def _note(self) -> None:
        """Have the record say what is handed out, before an answer does.

        Raises:
            ServedElsewhere: another gateway serves the member: what is known here may be old.
        """
        now = {str(p.stream): HandedPlace(p.held.lease_epoch, p.end) for p in self._handed.newest()}
        for stream, place in self._former.places.items():
            if stream not in now or place.end > now[stream].end:
                now[stream] = place
        more = {stream: place for stream, place in now.items() if self._noted.get(stream) != place}
        done = [stream for stream in self._noted if stream not in now]
        await self.keep(more, done)
        self._noted = now

    async def keep(
        self, handed: Mapping[str, HandedPlace] | None = None, done: list[str] | None = None
    ) -> None:
        """Keep the record; see `MemberRecords.keep`."""
        timeout = round(self.timeout * 1000) + SLACK_MS
        self.kept_at = self._clock()
        await self._records.keep(self.arrival, timeout, handed, done or ())

    # ------------------------------------------------------------ commit and fail

    async def commit(self, offsets: Mapping[StreamId, int]) -> dict[str, int]:
        """All below these offsets is done; returns when that is durable, with how far each stream is.

        Raises:
            NotHeld, NotHandedOut, ComingBack: nothing was committed.
            Fenced: a stream was taken away meanwhile; the others are committed.
            Indefinite, NotDurable: it was done, or it was not.
        """
        self._check_over()
        self._tidy()
        ends = {stream: await self._ending(stream, next) for stream, next in offsets.items()}
        waits = [piece.commit(end) for piece, end in filter(None, ends.values())]
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            if isinstance(outcome, InvalidInput):
                raise NotHandedOut(str(outcome)) from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        self._tidy()
        return {
            str(stream): next if end is None else end[1]
            for (stream, next), end in zip(offsets.items(), ends.values(), strict=True)
        }

    async def _ending(self, stream: StreamId, next: int) -> tuple[Batch, int] | None:
        """The piece to commit, and up to where; None: all that is committed already."""
        held = self._reader.book.streams.get(str(stream))
        if held is not None and next <= held.acknowledged:
            return None
        await self._former.have(stream, next - 1)
        piece = self._handed.ending(stream, next)
        end = self._handed.end_of(stream)
        if piece is not None and end is not None and next <= end:
            return piece, max(piece.start, min(next, piece.end))
        done = (await committed(self._redis, self._group, [str(stream)])).get(str(stream), 0)
        if next <= done:
            return None
        await self._check_held(stream)
        raise NotHandedOut(
            f"stream {stream} was handed out up to offset {max(end or 0, done)}, and {next} is to be "
            f"committed: commit the offset behind the last message that is done"
        )

    async def fail(self, failed: FailedMessage) -> Verdict:
        """A message could not be processed, and all before it in its stream is done; see `Batch.fail`.

        Raises:
            NotHeld, NotHandedOut, ComingBack: nothing was done.
            Fenced, Indefinite: as `Batch.fail`.
        """
        stream, offset = failed.stream, failed.offset
        self._check_over()
        self._tidy()
        await self._former.have(stream, offset)
        piece = self._handed.holding(stream, offset)
        if piece is None or offset < piece.held.committed:
            await self._check_held(stream)
            raise NotHandedOut(
                f"offset {offset} of stream {stream} is not handed out, or committed already: "
                f"fetch, and tell of a message that came with the newest answers"
            )
        try:
            verdict = await piece.fail(offset, failed.error)
        except (InvalidInput, InvalidOption) as error:
            raise NotHandedOut(str(error)) from error
        self._tidy()
        await self._note()
        return verdict

    async def _check_held(self, stream: StreamId) -> None:
        """Raises:
        NotHeld: so it is.
        ServedElsewhere: another gateway has to say that.
        """
        await self.keep()
        if str(stream) not in self._reader.book.streams:
            raise NotHeld(
                f"the member does not have stream {stream}: it was given to another one, or never was this "
                f"one's; drop its messages, they come again to whoever has it"
            )

    def _tidy(self) -> None:
        """Forget what is committed, comes again, or is somebody else's."""
        holds = self._reader.book.holds
        self._handed.keep(
            lambda piece: holds(piece.held) and not piece.is_void and piece.end > piece.held.committed
        )

    # ------------------------------------------------------------ the end

    @property
    def is_over(self) -> bool:
        """Whether its subscription has ended by an error, which every request gets."""
        return self._reader.error is not None

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Within, a request is under way."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            self.heard_at = self._clock()

    def silent_for(self, now: float) -> float:
        """For how long (s) no request came; 0 while one is under way."""
        return 0.0 if self.open else now - self.heard_at

    def is_to_be_kept(self, now: float) -> bool:
        """Whether there were requests since its record was kept, and that is a while ago."""
        return now - self.kept_at >= self.timeout / 8 and (self.open > 0 or self.heard_at >= self.kept_at)

    async def why_over(self, error: StreamleaseError) -> StreamleaseError:
        """`error`, or that another gateway serves the member, which is why the leader let this one go."""
        try:
            if isinstance(error, Fenced) and (await self._records.read()).arrival != self.arrival:
                return ServedElsewhere(str(error))
        except MemberGone:
            pass
        return error

    async def leave(self) -> None:
        """Leave the group; what is handed out and not committed goes to others.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: it is over here, and others learn it by its silence.
        """
        await self._close(leave=True)
        await self._records.end(self.arrival)

    async def hand_over(self) -> None:
        """Let another gateway serve the member.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: the other one waits until this one is seen dead.
        """
        await self._close(leave=False)
        await self._records.end(self.arrival, free=True)

    async def give_up(self) -> None:
        """Another gateway serves the member."""
        await self._close(leave=False)

    async def _close(self, *, leave: bool) -> None:
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(None)
        await self._tasks.close()
        try:
            await self._reader.close(leave=leave)
        except StreamleaseError as error:
            _logger.info("gateway: a member of %s left: %s", self._group, error)


def _nothing() -> Batch | None:
    return None
