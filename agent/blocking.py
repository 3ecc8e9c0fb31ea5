"""The blocking twin of ``streamlease.connect``, for programs without an event loop::

    with blocking.connect("redis://...") as client:
        client.create_space("flights", ["flights/#"], streams=8)
        with client.publisher() as publisher:
            publisher.send("flights/JFK/LAX", b"...", key=b"N14228")
        with client.subscribe("$shared/analytics/flights/#", start="earliest") as subscription:
            for batch in subscription:
                ...
                batch.commit()

A client has an event loop of its own in a thread, in which it pings, commits and reads ahead while the
program works; so a program that computes for an hour between two batches keeps its streams. Clients and
publishers may be used from several threads, a subscription from one at a time.

The classes are bridges to the asynchronous ones (`agent/loop.py`), which say what the methods do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from streamlease.agent import client as asynchronous
from streamlease.agent.batch import Batch as AsyncBatch
from streamlease.agent.collections.collection import Collection as AsyncCollection
from streamlease.agent.epochs.epoch_items import EpochItem
from streamlease.agent.epochs.epoch_reading import EpochSubscription as AsyncEpochSubscription
from streamlease.agent.handover import Publisher
from streamlease.agent.listening import PlainBatch
from streamlease.agent.listening import PlainSubscription as AsyncPlainSubscription
from streamlease.agent.loop import Bridge, LoopThread, ManagerBridge, at_once, opening, waiting
from streamlease.agent.subscription import Subscription as AsyncSubscription
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import InvalidInput
from streamlease.streams.collections.core.multiset import Change, Item
from streamlease.streams.entries.delivered import Messages
from streamlease.streams.entries.message_rows import HeadersInput
from streamlease.streams.epochs.epoch_publisher import EpochInput
from streamlease.streams.epochs.epoch_publisher import EpochPublisher as AsyncEpochPublisher
from streamlease.streams.publish.inputs import Payload

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from streamlease.agent.epochs.epoch_reading import EpochMode
    from streamlease.agent.plain_ways import Since
    from streamlease.agent.subscription import SharedReader
    from streamlease.registry.starts import Start
    from streamlease.streams.entries.schemas import SchemaLike
    from streamlease.streams.publish.publisher import Publisher as AsyncPublisher

__all__ = [
    "Batch",
    "Client",
    "EpochPublisher",
    "EpochSubscription",
    "PlainSubscription",
    "Publisher",
    "Subscription",
    "connect",
]

T_co = TypeVar("T_co", covariant=True)


class _Batches(Protocol[T_co]):
    async def __anext__(self) -> T_co: ...


async def _next(batches: _Batches[T_co], seconds: float | None = None) -> T_co | None:
    """The next batch; None if none came within `seconds`, or there is none any more."""
    try:
        async with asyncio.timeout(seconds):
            return await batches.__anext__()
    except (TimeoutError, StopAsyncIteration):
        return None


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
    to_arrow = at_once(AsyncBatch.to_arrow)
    commit = waiting(AsyncBatch.commit)

    def commit_soon(self, end: int | None = None) -> None:
        """As the asynchronous ``commit_soon``; but only ``flush`` tells that the stream was taken away.

        Raises:
            InvalidOption: `end` does not lie in the batch.
        """
        self._inner.check_end(end)
        self._loop.soon(partial(self._inner.commit_later, end))

    fail = waiting(AsyncBatch.fail)


class Subscription(ManagerBridge[AsyncSubscription]):
    """``client.subscribe(...)``: a context manager and an endless iterator of batches."""

    def __init__(self, loop: LoopThread, subscription: AsyncSubscription) -> None:
        super().__init__(loop, subscription)
        self._reader: SharedReader | None = None
        self._found: AsyncBatch | None = None
        """What an interrupted `poll` has left for the next one."""

    def __enter__(self) -> Self:
        self._reader = self._loop.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._found is not None:
            self._loop.soon(self._open().not_seen)
        super().__exit__(kind, error, traceback)

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.poll()) is not None:
            yield batch

    @property
    def streams(self) -> list[str]:
        """The streams that are held now."""
        return self._open().streams

    def poll(self, seconds: float | None = None) -> Batch | None:
        """The next batch; None if none came within `seconds`, or the subscription is closed.

        Raises:
            Fenced: another process took this one's static name.
        """
        if self._found is None:
            self._loop.call(self._find(self._open(), seconds))
        found, self._found = self._found, None
        return None if found is None else Batch(self._loop, found)

    async def _find(self, reader: SharedReader, seconds: float | None) -> None:
        self._found = await _next(reader, seconds)

    def flush(self) -> None:
        """As the asynchronous ``flush``: wait until all that was entered until now is durable."""
        self._loop.call(self._open().flush())

    def _open(self) -> SharedReader:
        if self._reader is None:
            raise InvalidInput("the subscription is not open: write 'with client.subscribe(...) as ...'")
        return self._reader


class PlainSubscription(ManagerBridge[AsyncPlainSubscription]):
    """``client.listen(...)`` and ``client.history(...)``: a context manager and an iterator of batches."""

    def __iter__(self) -> Iterator[PlainBatch]:
        while (batch := self._loop.call(_next(self._inner))) is not None:
            yield batch

    @property
    def positions(self) -> dict[str, int]:
        """Of each stream, the offset behind the last batch."""
        return self._inner.positions


class EpochSubscription(ManagerBridge[AsyncEpochSubscription]):
    """``client.listen(..., epochs=...)``: a context manager and an iterator of items."""

    def __iter__(self) -> Iterator[EpochItem]:
        while (item := self._loop.call(_next(self._inner))) is not None:
            yield item

    @property
    def positions(self) -> dict[str, int]:
        """Of each stream, its end at the newest boundary of which everything was handed out."""
        return self._inner.positions


class Collection(ManagerBridge[AsyncCollection]):
    """``client.collection(...)``: a context manager and an iterator of changes."""

    def __iter__(self) -> Iterator[Change]:
        while (change := self._loop.call(_next(self._inner))) is not None:
            yield change

    @property
    def items(self) -> dict[Item, int]:
        """How many there were of each item at the point."""
        return self._inner.items

    @property
    def positions(self) -> dict[str, int]:
        """How far each stream was handed out."""
        return self._inner.positions

    @property
    def frontier(self) -> list[Epoch] | None:
        """The lower frontier, in spaces with epochs."""
        return self._inner.frontier


class EpochPublisher(ManagerBridge[AsyncEpochPublisher]):
    """``client.epoch_publisher(...)``: a context manager."""

    @property
    def frontier(self) -> list[Epoch]:
        """What it holds: it may send at each epoch that is at or above one of these."""
        return self._inner.frontier

    def submit(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
        diff: int | None = None,
        *,
        epoch: EpochInput,
    ) -> None:
        """Hand over one message of `epoch`, as the asynchronous ``submit``; ``flush`` tells its error."""
        self._loop.call(self._inner.submit(topic, payload, key, headers, timestamp, diff, epoch=epoch))

    send = waiting(AsyncEpochPublisher.send)
    send_many = waiting(AsyncEpochPublisher.send_many)
    send_batch = waiting(AsyncEpochPublisher.send_batch)
    flush = waiting(AsyncEpochPublisher.flush)
    advance = waiting(AsyncEpochPublisher.advance)
    close = waiting(AsyncEpochPublisher.close)


class Client(ManagerBridge[asynchronous.Client]):
    """The blocking twin of ``streamlease.agent.client.Client``."""

    def __init__(self, url: str | None = None, *, embedded: bool = True) -> None:
        inner = asynchronous.Client(url, embedded=embedded)
        super().__init__(LoopThread("streamlease"), inner)

    @property
    def url(self) -> str:
        """The URL of the Redis."""
        return self._inner.url

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            self._loop.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave all subscriptions in good order, close the connections, end the thread."""
        try:
            self._loop.call(self._inner.close())
        finally:
            self._loop.stop()

    @wraps(asynchronous.Client.publisher)
    def publisher(self, /, **options: Any) -> Publisher:
        async def make() -> AsyncPublisher:
            return self._inner.publisher(**options)

        return Publisher(self._loop, self._loop.call(make()), self.url)

    epoch_publisher = opening(asynchronous.Client.epoch_publisher, EpochPublisher)

    @overload
    def listen(
        self, filter: str, *, start: Start = ..., schema: SchemaLike | None = ..., epochs: EpochMode
    ) -> EpochSubscription: ...
    @overload
    def listen(
        self,
        filter: str,
        *,
        start: Start = ...,
        max_batch: int = ...,
        schema: SchemaLike | None = ...,
        epochs: Literal["off"] = ...,
    ) -> PlainSubscription: ...
    @wraps(asynchronous.Client.listen)
    def listen(self, filter: str, **options: Any) -> PlainSubscription | EpochSubscription:
        return self._reading(partial(self._inner.listen, filter, **options))

    @overload
    def history(
        self, filter: str, *, since: Since = ..., schema: SchemaLike | None = ..., epochs: Literal["atomic"]
    ) -> EpochSubscription: ...
    @overload
    def history(
        self,
        filter: str,
        *,
        since: Since = ...,
        max_batch: int = ...,
        schema: SchemaLike | None = ...,
        epochs: Literal["off"] = ...,
    ) -> PlainSubscription: ...
    @wraps(asynchronous.Client.history)
    def history(self, filter: str, **options: Any) -> PlainSubscription | EpochSubscription:
        return self._reading(partial(self._inner.history, filter, **options))

    def _reading(
        self, make: Callable[[], AsyncPlainSubscription | AsyncEpochSubscription]
    ) -> PlainSubscription | EpochSubscription:
        async def made() -> AsyncPlainSubscription | AsyncEpochSubscription:
            return make()

        inner = self._loop.call(made())
        if isinstance(inner, AsyncPlainSubscription):
            return PlainSubscription(self._loop, inner)
        return EpochSubscription(self._loop, inner)

    create_space = waiting(asynchronous.Client.create_space)
    seal_space = waiting(asynchronous.Client.seal_space)
    subscribe = opening(asynchronous.Client.subscribe, Subscription)
    collection = opening(asynchronous.Client.collection, Collection)


def connect(url: str | None = None, *, embedded: bool = True) -> Client:
    """A client, to be used as a context manager.

    Raises:
        InvalidOption: `url` is malformed.
    """
    return Client(url, embedded=embedded)
