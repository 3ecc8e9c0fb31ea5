"""One :class:`Tails` for all readers of a client, instead of one for each.

Each reader has a :class:`Watch` with streams of its own. Together they cost one connection for what is pushed
and one question per poll, and a stream that several readers watch is asked for once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.tails import OnChange, Tails
from streamlease.streams.redis.connection import AsyncRedis

log = logging.getLogger(__name__)


class SharedTails:
    """Watches what any reader watches, while there are readers. Belongs to one event loop.

    Args:
        tails: what to share; that of `redis` if not given.
    """

    def __init__(self, redis: AsyncRedis, tails: Tails | None = None) -> None:
        self._tails = Tails(redis) if tails is None else tails
        self._tails.on_change = self._moved
        self._open: dict[Watch, None] = {}

    def watch(self, on_change: OnChange) -> Watch:
        """The share of one reader, which watches nothing yet; `on_change` as of :class:`Tails`."""
        return Watch(self, on_change)

    def _moved(self, stream: StreamId, next: int | None) -> None:
        lowered = stream in self._tails.lowered
        self._tails.lowered.discard(stream)
        for watch in [*self._open]:
            watch._moved(stream, next, lowered=lowered)

    def _changed(self, new: Iterable[StreamId] = ()) -> None:
        """The streams of some reader changed; it has `new` ones, which are polled at once."""
        self._tails.set_streams({stream for watch in self._open for stream in watch.streams})
        self._tails.poll_soon(new)

    async def _close(self, watch: Watch) -> None:
        if watch not in self._open:
            return
        del self._open[watch]
        self._changed()
        if not self._open:
            await self._tails.close()
            if self._open:  # another reader came meanwhile
                self._tails.start()


class Watch:
    """The share of one reader, between ``start`` and ``close``."""

    def __init__(self, shared: SharedTails, on_change: OnChange) -> None:
        self._shared = shared
        self._on_change = on_change
        self.streams: frozenset[StreamId] = frozenset()
        self.lowered: set[StreamId] = set()
        """Streams of which Redis lost the end; who has looked at one takes it out."""

    @property
    def error(self) -> StreamleaseError | None:
        """Why the last poll failed; None while all is well."""
        return self._shared._tails.error

    def start(self) -> None:
        """Begin to watch, on the running event loop. A second call does nothing."""
        if self not in self._shared._open:
            self._shared._open[self] = None
            self._shared._tails.start()
            self._tell(self.streams)

    async def close(self) -> None:
        """Stop watching. A second call does nothing."""
        await self._shared._close(self)

    def set_streams(self, streams: Iterable[StreamId]) -> None:
        """Watch just these from now on; new ones are polled at once."""
        wanted = frozenset(streams)
        if wanted != self.streams:
            new, self.streams = wanted - self.streams, wanted
            self.lowered &= wanted
            if self in self._shared._open:
                self._tell(new)

    def next_of(self, stream: StreamId) -> int | None:
        """The offset that the stream's next message will get, as far as known; None if it is not known."""
        return self._shared._tails.next_of(stream) if stream in self.streams else None

    def _tell(self, new: Iterable[StreamId]) -> None:
        """Have `new` streams watched; what another reader knows of them is news to this one."""
        self._shared._changed(new)
        for stream in new:
            if (next := self.next_of(stream)) is not None:
                self._moved(stream, next, lowered=False)

    def _moved(self, stream: StreamId, next: int | None, *, lowered: bool) -> None:
        if stream not in self.streams:
            return
        if lowered:
            self.lowered.add(stream)
        try:
            self._on_change(stream, next)
        except Exception:
            log.exception("tails: the callback for %s failed", stream, extra={"stream": str(stream)})
