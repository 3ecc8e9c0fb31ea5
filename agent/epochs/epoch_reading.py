"""A plain subscription to spaces with epochs.

::

    async with client.listen("clicks/#", start="earliest", epochs="atomic") as items:
        async for item in items:
            match item:
                case EpochBatch(epoch): ...         # all messages of it
                case Frontier(lower): ...           # what is behind it was handed out
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal, cast, get_args

from streamlease.agent.epochs.atomic import AtomicReader
from streamlease.agent.epochs.eager import EagerReader
from streamlease.agent.epochs.epoch_items import EpochItem
from streamlease.agent.epochs.opening import open_epochs
from streamlease.agent.shielded import ShieldedItems, check_new
from streamlease.catalog.shown import Removal, Shown
from streamlease.protocol.errors import (
    EpochsTruncated,
    HistoryTruncated,
    InvalidOption,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.seldom import Seldom
from streamlease.registry.starts import Start, check_start
from streamlease.streams.entries.schemas import Schema, SchemaLike
from streamlease.streams.epochs.news import EpochNews
from streamlease.streams.log.many import RETRY_SECONDS
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from types import TracebackType


Reader = AtomicReader | EagerReader

EpochMode = Literal["atomic", "eager"]
"""How epochs are read."""

LOOK_SECONDS = 1.0
"""How often boundaries are looked for, whatever is pushed."""

log = logging.getLogger(__name__)


def checked_mode(mode: str) -> EpochMode:
    """`mode`, if epochs can be read so.

    Raises:
        InvalidOption: they cannot.
    """
    if mode not in get_args(EpochMode):
        raise InvalidOption(f"epochs is {ascii(mode)[:80]}: use 'atomic', 'eager' or 'off'")
    return cast("EpochMode", mode)


class EpochSubscription:
    """``client.listen(..., epochs=...)``: an async context manager and iterator of items.

    Args:
        start: see ``client.listen``.
        follow: go on for ever; else end at the newest boundary when it is entered.
        schema: the typed columns wanted, in spaces with a schema; None for all.
        need_keepers: sees that there is a keeper, without which no epoch completes.

    Raises:
        InvalidOption: `start` is none of the kinds.
        InvalidInput: a time has no zone.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        spaces: SpaceStore,
        filter: str,
        start: Start,
        mode: EpochMode,
        *,
        follow: bool,
        schema: SchemaLike | None = None,
        need_keepers: Callable[[], Awaitable[None]] | None = None,
        shown: Shown | None = None,
    ) -> None:
        check_start(start)
        if mode == "eager" and not follow:
            raise InvalidOption("history ends at a boundary, where epochs are whole: use 'atomic' or 'off'")
        self._redis = redis
        self._seldom = Seldom(log)
        self._spaces = spaces
        self._need_keepers = need_keepers
        self._shown = shown or Shown()
        self._remove: Removal | None = None
        self._filter = filter
        self._start = start
        self._mode = mode
        self._follow = follow
        self._schema = None if schema is None else Schema.of(schema)
        self._changed = asyncio.Event()
        self._tasks = Supervisor(f"epochs of {filter}", self._failed)
        self._news: EpochNews | None = None
        self._reader: Reader | None = None
        self._items: ShieldedItems[EpochItem | MissingOffsets] | None = None
        self._reached: Mapping[StreamId, int] = {}
        """The positions as of what was handed out, which may be less than what was read."""

    async def __aenter__(self) -> EpochSubscription:
        """Find the spaces and where each begins.

        Raises:
            UnknownSpace: no space has topics that the filter matches.
            InvalidOption: not all of them have epochs, of equally many dimensions.
            HistoryTruncated, EpochsTruncated: retention removed what was to come first.
            InvalidInput: a stream never had the offset at which it is to begin.
            StoreUnavailable, StoreRefused.
        """
        check_new(self._items, "client.listen(...) or client.history(...)")
        self._reader, first = await self._open()
        self._reached = self._reader.positions
        if self._follow:
            if self._need_keepers is not None:
                await self._need_keepers()
            self._news = EpochNews(self._redis, self._tasks)
            self._reader.watch(self._news, self._changed)
            self._remove = self._shown.subscription(self._filter)
        self._items = ShieldedItems(self._read(self._reader, first), f"reading the epochs of {self._filter}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._items is not None:
            await self._items.close()
        await self._tasks.close()
        if self._remove is not None:
            self._remove()

    def __aiter__(self) -> AsyncIterator[EpochItem]:
        return self

    async def __anext__(self) -> EpochItem:
        """The next item.

        Raises:
            MissingOffsets: Redis lost messages that were acknowledged. Asked again, the subscription goes on
                with what is left; after every other error it is over.
            HistoryTruncated, EpochsTruncated: retention was faster.
            EpochsLost: Redis lost boundaries that were handed out.
            SchemaMismatch: an entry is damaged, or a space has not the columns wanted.
        """
        if self._items is None:
            raise InvalidOption(
                "it is not open: write 'async with client.listen(...) as ...', or client.history(...)"
            )
        item = await self._items.next()
        assert self._reader is not None
        self._reached = self._reader.positions
        if isinstance(item, MissingOffsets):
            raise item
        return item

    def end(self, error: StreamleaseError) -> None:
        """Go no further: who waits for an item, or else who asks next, gets `error`."""
        if self._items is not None:
            self._items.end(error)

    @property
    def positions(self) -> dict[str, int]:
        """Of each stream, its end at the newest boundary of which everything was handed out.

        A `start` for another subscription, which begins at that boundary.
        """
        return {str(stream): end for stream, end in self._reached.items()}

    # ------------------------------------------------------------ inside

    def _failed(self, task: str, error: StreamleaseError) -> None:
        """A defect of the push was logged; boundaries are looked for all the same."""

    async def _open(self) -> tuple[Reader, EpochItem | None]:
        """A reader, and what is to be told first."""
        opened = await open_epochs(self._redis, self._spaces, self._filter, self._start)
        what = (self._redis, opened, self._filter, self._schema)
        reader: Reader
        if self._mode == "eager":
            reader = EagerReader(*what, late=self._start == "latest")
        else:
            reader = AtomicReader(*what, follow=self._follow)
        await reader.open()
        return reader, opened.first

    async def _read(
        self, reader: Reader, first: EpochItem | None
    ) -> AsyncGenerator[tuple[EpochItem | MissingOffsets]]:
        if first is not None:
            yield (first,)
        any_yet = False
        while True:
            self._reached = reader.positions  # all that was told is handed out
            if not self._follow and reader.at_end:
                return
            self._changed.clear()
            steps = reader.steps
            try:
                async for told in reader.turn():
                    any_yet = True
                    yield (told,)
            except (StoreUnavailable, StoreRefused) as error:
                self._seldom.warning("reading the epochs of %s: %s", self._filter, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except (HistoryTruncated, EpochsTruncated):
                if self._start != "earliest" or any_yet:
                    raise
                # Retention moved the earliest before anything was handed out.
                reader, first = await self._open()
                self._reader = reader
                if self._news is not None:
                    reader.watch(self._news, self._changed)
                if first is not None:
                    yield (first,)
                continue
            if steps == reader.steps and self._follow:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._changed.wait()
