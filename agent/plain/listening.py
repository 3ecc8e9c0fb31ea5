"""A plain subscription: all messages of a filter, per stream in order, without a group and without progress.

::

    async with client.listen("flights/#", start="earliest") as messages:   # and then as they come
        async for batch in messages: ...

    async with client.history("flights/#", since=yesterday) as messages:   # what is there now, then the end
        async for batch in messages: ...

The log is the truth: each stream is read from a position on, each batch begins where the one before ended,
and what retention took away before it was read is ``HistoryTruncated``, never silence. Streams of a later
generation wait until all earlier ones of their space are read to their end, so the messages of a key stay in
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import TYPE_CHECKING

from streamlease.agent.plain.plain_places import PlainPlace, PlainPlaces
from streamlease.agent.plain.selecting import PlainBatch, Selection
from streamlease.agent.shielded import ShieldedItems, check_new
from streamlease.catalog.shown import Removal, Shown
from streamlease.protocol.errors import (
    ArchiveUnavailable,
    HistoryTruncated,
    InvalidOption,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.quantities import parse_count
from streamlease.protocol.seldom import Seldom
from streamlease.registry.starts import Start, check_start
from streamlease.streams.entries.schemas import Schema, SchemaLike
from streamlease.streams.log.joining import in_pieces
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.many import READ_BYTES, RETRY_SECONDS, Outcome, ServerReading
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.log.state import LogState, MissingOffsets
from streamlease.streams.log.tails import Tails
from streamlease.streams.log.times import after_offset, microseconds, offsets_after
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import Known, SpaceStore

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often new spaces and generations are looked for; what another reader of the client saw since serves."""

AT_ONCE = 64
"""So many streams are read at once, and of each no more than its share of what is read of one alone."""


class PlainSubscription:
    """``client.listen(...)`` and ``client.history(...)``: an async context manager and iterator of batches.

    Args:
        selection: what is read.
        start: see `Start`.
        follow: go on for ever; else end where the streams end when it is entered.
        max_batch: most messages in one batch.
        schema: the typed columns wanted, in spaces with a schema; None for all of a space's newest version.
        need_keepers: called if a space has epochs: without a keeper nothing comes into its streams.
        shown: what the client shows of itself in the catalog.
        keep_offsets: where Redis lost messages that were read, see to it that no others get their offsets,
            and raise `MissingOffsets`, instead of waiting until as many came again.

    Raises:
        InvalidOption: `start` is none of the kinds, `max_batch` is below 1, or `schema` is none.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        tails: Tails,
        spaces: SpaceStore,
        selection: Selection,
        start: Start,
        *,
        follow: bool,
        max_batch: int,
        schema: SchemaLike | None = None,
        need_keepers: Callable[[], Awaitable[None]] | None = None,
        shown: Shown | None = None,
        keep_offsets: bool = False,
    ) -> None:
        self._selection = selection
        self._keep_offsets = keep_offsets
        check_start(start)
        parse_count("max_batch", max_batch)
        self._redis = redis
        self._seldom = Seldom(log)
        self._spaces = spaces
        self._log = AsyncLog(redis)
        self._start = start
        self._follow = follow
        self._need_keepers = need_keepers
        self._shown = shown or Shown()
        self._remove: Removal | None = None
        self._max_batch = max_batch
        self._schema = None if schema is None else Schema.of(schema)
        self._changed = asyncio.Event()
        self._tails = tails.watch(self._heard)
        self._places = PlainPlaces(self._tails.next_of)
        self._seen: Known | None = None
        """The spaces as they were when all their streams were found; None: they are looked for again."""
        self._has_epochs = False
        self._reading = ServerReading(redis, f"listening to {selection.name}", self._changed.set)
        self._batches: ShieldedItems[PlainBatch] | None = None

    async def __aenter__(self) -> PlainSubscription:
        """Find the streams and where each begins.

        Raises:
            UnknownSpace: there is no space to read. StoreUnavailable, StoreRefused.
            HistoryTruncated: what was to come first is gone. InvalidInput: a stream never had that offset.
        """
        check_new(self._batches, "client.listen(...) or client.history(...)")
        await self._look(await self._spaces.look(), self._start)
        if self._follow:
            for stream, place in self._places.by_stream.items():
                self._tails.learn(stream, place.position)  # so that an end that is lost right now is missed
            self._remove = self._shown.subscription(self._selection.name)
        self._batches = ShieldedItems(self._read(), f"listening to {self._selection.name}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._batches is not None:
            await self._batches.close()
        await self._reading.close()
        self._tails.close()
        if self._remove is not None:
            self._remove()

    def __aiter__(self) -> AsyncIterator[PlainBatch]:
        return self

    async def __anext__(self) -> PlainBatch:
        """The next batch.

        Raises:
            HistoryTruncated: retention was faster; `oldest` says where the stream goes on.
            SchemaMismatch: an entry is damaged or of an unknown form, or a space has not the columns wanted.
        """
        if self._batches is None:
            raise InvalidOption(
                "it is not open: write 'async with client.listen(...) as ...', or client.history(...)"
            )
        while True:
            batch = await self._batches.next()
            self._places.by_stream[batch.stream].delivered = batch.end
            if len(batch):
                return batch

    def end(self, error: StreamleaseError) -> None:
        """Go no further: who waits for a batch, or else who asks next, gets `error`."""
        if self._batches is not None:
            self._batches.end(error)

    @property
    def positions(self) -> dict[str, int]:
        """Of each stream, the offset behind the last batch: a `start` for another subscription."""
        return {str(stream): place.delivered for stream, place in self._places.by_stream.items()}

    @property
    def ends(self) -> dict[str, int]:
        """The offset at which each stream ended, of those that are known to be sealed."""
        places = self._places.by_stream.items()
        return {str(stream): place.last for stream, place in places if place.last is not None}

    # ------------------------------------------------------------ where each stream begins

    async def _look(self, seen: Known, start: Start) -> None:
        """Add the streams of the filter that are not there yet, at `start`; drop those that are gone."""
        # Streams of a space whose definition was damaged meanwhile are still there, and read on.
        there = self._places.by_stream
        kept = seen.damaged.keys() if there else ()
        spaces = self._selection.spaces(seen, kept)
        self._has_epochs = any(space.epochs for space in spaces)
        await self._have_keepers()
        found = {stream for space in spaces for stream in space.streams()}
        self._places.set_newest({space.name: space.newest.number for space in spaces}, kept)
        self._drop([stream for stream in there.keys() - found if stream.space not in kept])
        new = found - there.keys()
        former = {s for s in found - new if self._places.is_followed(s) and there[s].last is None}
        # The newest first: then all that came before a message that is seen is seen too.
        known = await self._log.states(sorted(new | former, reverse=True))
        await self._add({stream: state for stream, state in known.items() if stream in new}, start)
        for stream, state in known.items():
            if state.sealed:
                there[stream].last = state.next
        self._places.order()
        if self._follow:
            self._tails.set_streams(there)
        # What is named and not there may come yet, or come back.
        self._seen = seen if new <= known.keys() else None

    async def _have_keepers(self) -> None:
        if self._need_keepers is not None and self._follow and self._has_epochs:
            await self._need_keepers()

    def _drop(self, gone: Iterable[StreamId]) -> None:
        for stream in gone:
            place = self._places.by_stream[stream]
            self._places.remove(stream)
            unread = not place.sliding and (place.last is None or place.position < place.last)
            if unread and self._places.is_followed(stream):
                raise HistoryTruncated(str(stream), place.position, place.last or place.position)

    async def _add(self, states: Mapping[StreamId, LogState], start: Start) -> None:
        moments: dict[StreamId, int] = {}
        for stream, state in states.items():
            place = PlainPlace(state.floor, None if self._follow else state.next)
            if start == "latest":
                place = PlainPlace(state.next, place.end, sliding=False)
            elif isinstance(start, int):
                place = PlainPlace(start, place.end, sliding=False)
            elif isinstance(start, datetime):
                moments[stream] = microseconds(start) - 1
            elif isinstance(start, Mapping) and str(stream) in start:
                place = PlainPlace(start[str(stream)], place.end, sliding=False)
                after_offset(stream, place.position - 1, state)
            if not place.sliding:
                state.check_exists(stream, place.position)
            self._places.put(stream, place)
        for stream, offset in (await offsets_after(self._redis, moments)).items():
            self._places.put(stream, PlainPlace(offset, self._places.by_stream[stream].end, sliding=False))

    # ------------------------------------------------------------ reading

    def _heard(self, stream: StreamId, next: int | None) -> None:
        self._places.heard(stream)
        self._changed.set()

    async def _read(self) -> AsyncGenerator[list[PlainBatch]]:
        """What comes, some of one stream at a time; an empty batch only says how far the stream is."""
        looked = asyncio.get_running_loop().time()
        while True:
            self._changed.clear()
            if self._keep_offsets and self._tails.lowered:
                await self._went_back()
            found = False
            ready = self._places.ready(asyncio.get_running_loop().time())
            for begin in range(0, len(ready), AT_ONCE):
                await self._read_some(ready[begin : begin + AT_ONCE])
                while (came := self._reading.take()) is not None:
                    if batches := await self._took(*came):
                        found = True
                        yield batches
            if not self._follow:
                left = [one.again_at for one in self._places.by_stream.values() if not one.is_finished]
                if not left:
                    return
                await asyncio.sleep(min(left) - asyncio.get_running_loop().time())
            elif asyncio.get_running_loop().time() - looked >= LOOK_SECONDS:
                looked = asyncio.get_running_loop().time()
                with contextlib.suppress(UnknownSpace, StoreUnavailable, StoreRefused):
                    await self._have_keepers()
                    seen = await self._spaces.recent()
                    if seen != self._seen or self._places.has_former:
                        await self._look(seen, "earliest")
            elif not found:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._changed.wait()

    async def _went_back(self) -> None:
        """Streams seem to end below what was read: one offset more, so that those who read it see a hole."""
        for stream in [*self._tails.lowered]:
            place, next = self._places.by_stream.get(stream), self._tails.next_of(stream)
            if place is not None and next is not None and next < place.position:
                try:
                    await self._log.never_again(stream, place.position + 1)
                except StreamleaseError as error:
                    self._seldom.warning("reading %s: %s", stream, error, extra={"stream": str(stream)})
                    return
            self._tails.lowered.discard(stream)

    async def _gone(self, stream: StreamId) -> None:
        """A stream is not there any more: its space was deleted, or its generation dropped."""
        try:
            await self._look(await self._spaces.look(), "earliest")
        except UnknownSpace:
            log.info("stream %s is gone with its space", stream, extra={"stream": str(stream)})
        except (StoreUnavailable, StoreRefused) as error:
            self._seldom.warning("reading %s: %s", stream, error, extra={"stream": str(stream)})
            return
        self._places.remove(stream)
        self._tails.discard(stream)
        self._seen = None  # it is looked for again, as long as a definition names it

    async def _read_some(self, streams: Sequence[StreamId]) -> None:
        readers = []
        for stream in streams:
            place = self._places.by_stream.get(stream)
            if place is None:
                continue
            reader = RangeReader(
                stream,
                place.position,
                place.until,
                enough=self._max_batch,
                max_bytes=READ_BYTES // len(streams),
                schema=self._schema,
                merged=place.reader is not None and place.reader.in_merged,
            )
            place.reader = reader
            readers.append(reader)
        try:
            await self._reading.turn(readers)
        except StoreUnavailable as error:
            self._seldom.warning("reading: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _took(self, stream: StreamId, outcome: Outcome) -> list[PlainBatch]:
        place = self._places.by_stream.get(stream)
        if place is None:
            return []  # it went meanwhile
        if isinstance(outcome, UnknownSpace):
            await self._gone(stream)
            return []
        if isinstance(outcome, StoreUnavailable | StoreRefused):
            self._seldom.warning("reading %s: %s", stream, outcome, extra={"stream": str(stream)})
            if isinstance(outcome, ArchiveUnavailable):
                place.rest(asyncio.get_running_loop().time())
            return []
        place.failures = 0
        if (
            isinstance(outcome, HistoryTruncated)
            and place.sliding
            and not isinstance(outcome, MissingOffsets)
        ):
            # Retention moved the earliest before anything of it was read.
            place.position = place.delivered = outcome.oldest
            return []
        if isinstance(outcome, MissingOffsets) and place.hole is None and outcome.asked != place.position:
            place.hole = int(outcome.asked)  # type: ignore[arg-type]  # an offset, as nobody asked for a time
            return []
        if isinstance(outcome, StreamleaseError):
            raise outcome
        batches: list[PlainBatch] = []
        for data in in_pieces(outcome, self._max_batch):
            end = place.position + data.num_rows
            batches.append(PlainBatch(stream, place.position, end, self._selection.rows(data)))
            place.position, place.sliding = end, False
        return batches
