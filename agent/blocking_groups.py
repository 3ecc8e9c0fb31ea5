"""The blocking twins of what a program gets of a group; see ``streamlease.agent.blocking``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from streamlease.agent.batch import Batch as AsyncBatch
from streamlease.agent.epochs.epoch_items import Frontier
from streamlease.agent.epochs.group_reader import EpochGroupReader
from streamlease.agent.epochs.group_reader import EpochPart as AsyncEpochPart
from streamlease.agent.loop import Bridge, LoopThread, Polled, at_once, waiting
from streamlease.agent.subscribing import Subscription as AsyncSubscription
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.errors import InvalidInput
from streamlease.streams.entries.delivered import Messages

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

R = TypeVar("R", bound=SharedReader | EpochGroupReader)
F = TypeVar("F")


class Batch(Bridge[AsyncBatch]):
    """Some messages of one stream, in order; see ``streamlease.agent.batch.Batch``."""

    def __init__(self, loop: LoopThread, batch: AsyncBatch) -> None:
        super().__init__(loop, batch)
        self.stream = batch.stream
        self.start = batch.start
        self.end = batch.end
        """Offsets ``start <= offset < end`` were read; those that the filter does not match are left out."""

    @property
    def messages(self) -> Messages:
        """The messages, one by one."""
        return self._inner.messages

    __len__ = at_once(AsyncBatch.__len__)
    __repr__ = at_once(AsyncBatch.__repr__)
    to_arrow = at_once(AsyncBatch.to_arrow)
    commit = waiting(AsyncBatch.commit)

    def commit_soon(self, end: int | None = None) -> None:
        """As the asynchronous ``commit_soon``; but only ``flush`` tells that the stream was taken away.

        Raises:
            InvalidOption: `end` does not lie in the batch.
        """
        self._loop.soon(partial(self._inner.commit_later, self._inner.check_end(end)))

    fail = waiting(AsyncBatch.fail)


class EpochPart(Bridge[AsyncEpochPart]):
    """All messages of one epoch in one stream; see ``streamlease.agent.epochs.group_reader.EpochPart``."""

    __match_args__ = ("epoch",)

    def __init__(self, loop: LoopThread, part: AsyncEpochPart) -> None:
        super().__init__(loop, part)
        self.epoch = part.epoch
        self.whole = part.whole
        """False: some of them are missing."""
        self.stream = part.stream
        self.start = part.start
        self.end = part.end
        """Offsets ``start <= offset < end``; those that the filter does not match are left out."""

    @property
    def messages(self) -> Messages:
        """The messages, one by one."""
        return self._inner.messages

    __len__ = at_once(AsyncEpochPart.__len__)
    __repr__ = at_once(AsyncEpochPart.__repr__)
    to_arrow = at_once(AsyncEpochPart.to_arrow)
    commit = waiting(AsyncEpochPart.commit)

    def commit_soon(self) -> None:
        """As the asynchronous ``commit_soon``; but only ``flush`` tells that the stream was taken away."""
        self._loop.soon(self._inner.batch.commit_later)

    fail = waiting(AsyncEpochPart.fail)


class _Joined(Polled[AsyncSubscription[R], F], Generic[R, F]):
    """A subscription of a group, whose reader finds items of type `F`."""

    def __init__(self, loop: LoopThread, subscription: AsyncSubscription[R]) -> None:
        super().__init__(loop, subscription)
        self._reader: R | None = None

    def __enter__(self) -> Self:
        self._reader = self._loop.call(self._inner.__aenter__())
        return self

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._found is not None:
            self._loop.soon(self._open().not_seen)
        super()._leave(kind, error, traceback)

    @property
    def streams(self) -> list[str]:
        """The streams that are held now."""
        return self._open().streams

    def _poll(self, seconds: float | None) -> F | None:
        reader: Any = self._open()
        return self._next(reader, seconds)

    def flush(self) -> None:
        """As the asynchronous ``flush``: wait until all that was entered until now is durable."""
        self._loop.call(self._open().flush())

    def _open(self) -> R:
        if self._reader is None:
            raise InvalidInput("the subscription is not open: write 'with client.subscribe(...) as ...'")
        return self._reader


class Subscription(_Joined["SharedReader", AsyncBatch]):
    """``client.subscribe(...)``: a context manager and an endless iterator of batches."""

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.poll()) is not None:
            yield batch

    def poll(self, seconds: float | None = None) -> Batch | None:
        """The next batch; None if none came within `seconds`, or the subscription is closed.

        Raises:
            Fenced: another process took this one's static name.
        """
        found = self._poll(seconds)
        return None if found is None else Batch(self._loop, found)


class EpochGroupSubscription(_Joined["EpochGroupReader", "AsyncEpochPart | Frontier"]):
    """``client.subscribe(..., epochs="atomic")``: a context manager and an endless iterator of items."""

    def __iter__(self) -> Iterator[EpochPart | Frontier]:
        while (item := self.poll()) is not None:
            yield item

    def poll(self, seconds: float | None = None) -> EpochPart | Frontier | None:
        """The next item; None if none came within `seconds`, or the subscription is closed.

        Raises:
            Fenced: another process took this one's static name.
        """
        found = self._poll(seconds)
        return EpochPart(self._loop, found) if isinstance(found, AsyncEpochPart) else found
