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

from collections.abc import Callable
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from streamlease.agent import client as asynchronous
from streamlease.agent.blocking_groups import Batch, EpochGroupSubscription, EpochPart, Subscription
from streamlease.agent.collections.catalog_messages import CatalogMessages
from streamlease.agent.collections.collection import Collection as AsyncCollection
from streamlease.agent.epochs.epoch_items import EpochItem
from streamlease.agent.epochs.epoch_reading import EpochSubscription as AsyncEpochSubscription
from streamlease.agent.handover import Publisher
from streamlease.agent.loop import LoopThread, ManagerBridge, Ungrouped, opening, waiting
from streamlease.agent.own_parts import beside
from streamlease.agent.plain.listening import PlainSubscription as AsyncPlainSubscription
from streamlease.agent.plain.selecting import PlainBatch
from streamlease.catalog.feed import CatalogChange
from streamlease.catalog.followed import Catalog as AsyncCatalog
from streamlease.catalog.items import CatalogItem
from streamlease.protocol.epochs.order import Epoch
from streamlease.services.service import Serving as AsyncServing
from streamlease.streams.collections.core.multiset import Change, Item
from streamlease.streams.entries.message_rows import HeadersInput
from streamlease.streams.epochs.epoch_publisher import EpochInput
from streamlease.streams.epochs.epoch_publisher import EpochPublisher as AsyncEpochPublisher
from streamlease.streams.publish.inputs import Payload, PublisherOptions

if TYPE_CHECKING:
    from typing import Self

    from streamlease.agent.epochs.epoch_reading import EpochMode
    from streamlease.agent.plain.plain_ways import Since
    from streamlease.agent.subscribing import Joining
    from streamlease.registry.starts import Start
    from streamlease.streams.entries.schemas import SchemaLike
    from streamlease.streams.publish.publisher import Publisher as AsyncPublisher

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "Batch",
    "Catalog",
    "Client",
    "EpochGroupSubscription",
    "EpochPart",
    "EpochPublisher",
    "EpochSubscription",
    "PlainSubscription",
    "Publisher",
    "Serving",
    "Subscription",
    "connect",
]


class PlainSubscription(Ungrouped[AsyncPlainSubscription | CatalogMessages, PlainBatch]):
    """``client.listen(...)`` and ``client.history(...)``: a context manager and an iterator of batches."""

    @property
    def positions(self) -> dict[str, int]:
        """Of each stream, the offset behind the last batch."""
        return self._inner.positions


class EpochSubscription(Ungrouped[AsyncEpochSubscription, EpochItem]):
    """``client.listen(..., epochs=...)``: a context manager and an iterator of items."""

    @property
    def positions(self) -> dict[str, int]:
        """Of each stream, its end at the newest boundary of which everything was handed out."""
        return self._inner.positions


class Collection(Ungrouped[AsyncCollection, Change]):
    """``client.collection(...)``: a context manager and an iterator of changes."""

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


class Catalog(Ungrouped[AsyncCatalog, CatalogChange]):
    """``client.catalog(...)``: a context manager and an iterator of changes."""

    @property
    def items(self) -> dict[CatalogItem, int]:
        """How many there are of each item: at the point, and as far as changes were handed out."""
        return self._inner.items

    @property
    def at(self) -> str:
        """A cursor behind all that was read, to go on there."""
        return self._inner.at


class Serving(ManagerBridge[AsyncServing]):
    """``client.serve(...)``: a context manager. The handlers run on the client's event loop."""

    close = waiting(AsyncServing.close)


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
    abandon = waiting(AsyncEpochPublisher.abandon)
    close = waiting(AsyncEpochPublisher.close)


def _told_as(original: Callable[..., Any]) -> Callable[[F], F]:
    """``wraps``, behind which type checkers still see a method."""

    def same(method: F) -> F:
        return wraps(original)(method)  # type: ignore[return-value]

    return same


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

    def _leave(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with beside(error):
            self.close()

    def close(self) -> None:
        """Close publishers, leave all subscriptions in good order, close the connections, end the thread."""
        try:
            self._loop.call(self._inner.close())
        finally:
            self._loop.stop()

    @_told_as(asynchronous.Client.publisher)
    def publisher(self, /, **options: Unpack[PublisherOptions]) -> Publisher:
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
        self, make: Callable[[], AsyncPlainSubscription | AsyncEpochSubscription | CatalogMessages]
    ) -> PlainSubscription | EpochSubscription:
        async def made() -> AsyncPlainSubscription | AsyncEpochSubscription | CatalogMessages:
            return make()

        inner = self._loop.call(made())
        if isinstance(inner, AsyncEpochSubscription):
            return EpochSubscription(self._loop, inner)
        return PlainSubscription(self._loop, inner)

    create_space = waiting(asynchronous.Client.create_space)
    alter_space = waiting(asynchronous.Client.alter_space)
    seal_space = waiting(asynchronous.Client.seal_space)
    next_offsets = waiting(asynchronous.Client.next_offsets)
    act = waiting(asynchronous.Client.act)
    command = waiting(asynchronous.Client.command)
    drain_host = waiting(asynchronous.Client.drain_host)

    @overload
    def subscribe(
        self,
        subscription: str,
        *,
        epochs: Literal["off"] = ...,
        max_batch: int | None = ...,
        **options: Unpack[Joining],
    ) -> Subscription: ...
    @overload
    def subscribe(
        self, subscription: str, *, epochs: Literal["atomic"], **options: Unpack[Joining]
    ) -> EpochGroupSubscription: ...
    @wraps(asynchronous.Client.subscribe)
    def subscribe(self, subscription: str, **options: Any) -> Subscription | EpochGroupSubscription:
        async def made() -> Any:
            return self._inner.subscribe(subscription, **options)

        inner = self._loop.call(made())
        return (EpochGroupSubscription if inner.whole_epochs else Subscription)(self._loop, inner)

    collection = opening(asynchronous.Client.collection, Collection)
    catalog = opening(asynchronous.Client.catalog, Catalog)
    lookup = waiting(asynchronous.Client.lookup)
    serve = opening(asynchronous.Client.serve, Serving)
    call = waiting(asynchronous.Client.call)


def connect(url: str | None = None, *, embedded: bool = True) -> Client:
    """A client, to be used as a context manager.

    Raises:
        InvalidOption: `url` is malformed.
    """
    return Client(url, embedded=embedded)
