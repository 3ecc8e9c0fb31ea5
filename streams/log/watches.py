"""The streams that one reader watches; `tails` looks after the streams of all readers of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId

OnChange = Callable[[StreamId, int | None], None]
OnPushed = Callable[[StreamId], None]


class Watched(Protocol):
    """What a reader's share needs of `streamlease.streams.log.tails.Tails`."""

    def join(self, stream: StreamId, watch: Watch) -> None:
        """`watch` watches this stream from now on."""

    def leave(self, stream: StreamId, watch: Watch) -> None:
        """`watch` watches this stream no longer."""

    def poll_soon(self, stream: StreamId) -> None:
        """Let the next poll, which begins at once, read this stream."""

    def next_of(self, stream: StreamId) -> int | None:
        """The end of a stream that somebody watches, as far as it is known."""
        ...

    def set_end(self, stream: StreamId, next: int | None, *, but: Watch | None = None) -> None:
        """The end of a stream is known; all who watch it are told, but for one who knows."""

    def error_of(self, streams: Iterable[StreamId]) -> StreamleaseError | None:
        """Why some of `streams` could not be read by the last poll; None while all is well."""
        ...


class Watch:
    """The streams of one reader; made by :meth:`Tails.watch`."""

    def __init__(self, tails: Watched, on_change: OnChange | None, on_pushed: OnPushed | None = None) -> None:
        self.on_change = on_change
        self.on_pushed = on_pushed
        self.alone = (self,)
        """Who watches a stream that nobody else watches."""
        self.streams: set[StreamId] = set()
        self.lowered: set[StreamId] = set()
        """Streams of which Redis lost the end; who has looked at one takes it out."""
        self._tails = tails

    @property
    def error(self) -> StreamleaseError | None:
        """Why some of the streams could not be read by the last poll; None while all is well."""
        return self._tails.error_of(self.streams)

    def add(self, stream: StreamId) -> None:
        """Watch this stream too; it is polled at once."""
        if stream not in self.streams:
            self.streams.add(stream)
            self._tails.join(stream, self)

    def discard(self, stream: StreamId) -> None:
        """Watch this stream no longer."""
        if stream in self.streams:
            self.streams.remove(stream)
            self.lowered.discard(stream)
            self._tails.leave(stream, self)

    def set_streams(self, streams: Iterable[StreamId]) -> None:
        """Watch just these from now on."""
        wanted = {*streams}
        for stream in self.streams - wanted:
            self.discard(stream)
        for stream in wanted - self.streams:
            self.add(stream)

    def close(self) -> None:
        """Watch nothing any more."""
        self.set_streams(())

    def next_of(self, stream: StreamId) -> int | None:
        """The offset that the stream's next message will get, as far as known; None if it is not known."""
        return self._tails.next_of(stream) if stream in self.streams else None

    def learn(self, stream: StreamId, next: int | None) -> None:
        """What this reader has read says where the stream ends; None: it could not be read."""
        if stream not in self.streams:
            return
        if next is None:
            self._tails.poll_soon(stream)
        elif next > (self._tails.next_of(stream) or -1):
            self._tails.set_end(stream, next, but=self)
