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
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from streamlease.agent import client as asynchronous
from streamlease.agent.handover import Handover
from streamlease.agent.listening import PlainBatch
from streamlease.agent.listening import PlainSubscription as AsyncPlainSubscription
from streamlease.agent.listening import Start as PlainStart
from streamlease.protocol.errors import InvalidInput
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import Verdict
from streamlease.registry.groups import Start
from streamlease.streams.entries.messages import HeadersInput, Message
from streamlease.streams.entries.schemas import SchemaLike
from streamlease.streams.publish.parts import Placed, PlacedRange
from streamlease.streams.publish.publisher import Payload
from streamlease.streams.publish.publisher import Publisher as AsyncPublisher
from streamlease.streams.spaces.retention import Retention
from streamlease.streams.spaces.spaces import ShardBy, Space

if TYPE_CHECKING:
    from types import TracebackType

    from streamlease.agent.subscription import Batch as AsyncBatch
    from streamlease.agent.subscription import SharedReader
    from streamlease.agent.subscription import Subscription as AsyncSubscription
    from streamlease.protocol.ids import StreamId

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="streamlease", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` in the loop and wait for it. An interrupted wait, as by Ctrl-C, cancels it."""
        if self._loop.is_closed():
            work.close()
            raise _closed()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, callback: Callable[[], object]) -> None:
        """Have `callback` called in the loop, without waiting."""
        if self._loop.is_closed():
            raise _closed()
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """End the thread. A second call does nothing."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def _closed() -> InvalidInput:
    return InvalidInput("the client is closed: connect again")


class Batch:
    """Some messages of one stream, in order; see ``streamlease.agent.subscription.Batch``."""

    def __init__(self, loop: _Loop, batch: AsyncBatch) -> None:
        self._loop = loop
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def stream(self) -> StreamId:
        """The stream that the messages come from."""
        return self._batch.stream

    @property
    def start(self) -> int:
        """The first offset that was read."""
        return self._batch.start

    @property
    def end(self) -> int:
        """The offset behind the last one that was read."""
        return self._batch.end

    @property
    def messages(self) -> list[Message]:
        """The messages, one by one."""
        return self._batch.messages

    def to_arrow(self) -> pa.RecordBatch:
        """The messages as one Arrow record batch."""
        return self._batch.to_arrow()

    def commit(self, end: int | None = None) -> None:
        """Everything up to the end of this batch, or below `end`, is done; returns when that is durable.

        Raises:
            Fenced: the stream was taken away meanwhile.
            Indefinite: no leader answered in time: it was committed, or it was not.
        """
        self._loop.call(self._batch.commit(end))

    def fail(self, offset: int, cause: BaseException | str) -> Verdict:
        """The message at `offset` could not be processed; see ``streamlease.agent.batch.Batch.fail``."""
        return self._loop.call(self._batch.fail(offset, cause))


class Subscription:
    """``client.subscribe(...)``: a context manager and an endless iterator of batches."""

    def __init__(self, loop: _Loop, subscription: AsyncSubscription) -> None:
        self._loop = loop
        self._subscription = subscription
        self._reader: SharedReader | None = None

    def __enter__(self) -> Subscription:
        self._reader = self._loop.call(self._subscription.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call(self._subscription.__aexit__(kind, error, traceback))

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
        batch = self._loop.call(_next(self._open(), seconds))
        return None if batch is None else Batch(self._loop, batch)

    def _open(self) -> SharedReader:
        if self._reader is None:
            raise InvalidInput("the subscription is not open: write 'with client.subscribe(...) as ...'")
        return self._reader


async def _next(reader: SharedReader, seconds: float | None) -> AsyncBatch | None:
    try:
        async with asyncio.timeout(seconds):
            return await anext(reader, None)
    except TimeoutError:
        return None


class PlainSubscription:
    """``client.listen(...)`` and ``client.history(...)``: a context manager and an iterator of batches."""

    def __init__(self, loop: _Loop, subscription: AsyncPlainSubscription) -> None:
        self._loop = loop
        self._subscription = subscription

    def __enter__(self) -> PlainSubscription:
        self._loop.call(self._subscription.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call(self._subscription.__aexit__(kind, error, traceback))

    def __iter__(self) -> Iterator[PlainBatch]:
        while (batch := self._loop.call(self._next())) is not None:
            yield batch

    @property
    def positions(self) -> dict[str, int]:
        """Of each stream, the offset behind the last batch."""
        return self._subscription.positions

    async def _next(self) -> PlainBatch | None:
        return await anext(self._subscription, None)


class Publisher:
    """``client.publisher()``; see ``streamlease.streams.publish.publisher.Publisher``."""

    def __init__(self, loop: _Loop, publisher: AsyncPublisher) -> None:
        self._loop = loop
        self._publisher = publisher
        self._handover = Handover(loop, publisher)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call(self._handover.leave(kind, error, traceback))

    def send(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
    ) -> Placed:
        """Publish one message and wait until it is written; its stream and offset."""

        return self._behind(lambda: self._publisher.send(topic, payload, key, headers, timestamp))

    def submit(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
    ) -> None:
        """Hand over one message, waiting only while the buffer is full; its error comes out of ``flush``."""
        self._handover.submit(topic, payload, key, headers, timestamp)

    def send_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        timestamps: Sequence[datetime | int | None] | None = None,
    ) -> list[PlacedRange]:
        """Publish many messages, given column by column, and wait until they are written."""
        return self._behind(
            lambda: self._publisher.send_many(
                topics, payloads, keys=keys, headers=headers, timestamps=timestamps
            )
        )

    def send_batch(self, topic: str, batch: pa.RecordBatch) -> list[PlacedRange]:
        """Publish all rows of an Arrow record batch and wait until they are written."""
        return self._behind(lambda: self._publisher.send_batch(topic, batch))

    def flush(self) -> None:
        """Wait until all that was submitted is written; raises the first error of what was not."""
        self._loop.call(self._handover.flush())

    def close(self) -> None:
        """Flush, then end."""
        self._loop.call(self._handover.close())

    def _behind(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do `work` behind what was submitted, and wait for it."""

        async def both() -> T:
            await self._handover.empty()
            return await work()

        return self._loop.call(both())


class Client:
    """The blocking twin of ``streamlease.agent.client.Client``."""

    def __init__(self, url: str | None = None, *, embedded: bool = True) -> None:
        self._client = asynchronous.Client(url, embedded=embedded)
        self._loop = _Loop()

    @property
    def url(self) -> str:
        """The URL of the Redis."""
        return self._client.url

    def __enter__(self) -> Client:
        try:
            self._loop.call(self._client.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave all subscriptions in good order, close the connections, end the thread."""
        try:
            self._loop.call(self._client.close())
        finally:
            self._loop.close()

    def create_space(
        self,
        name: str,
        topics: Iterable[str],
        *,
        streams: int = 1,
        shard_by: ShardBy = "topic",
        retention: Retention | None = None,
        durability: str = "memory",
        schema: SchemaLike | None = None,
    ) -> Space:
        """Create a space, or return it if it exists with the same definition."""
        return self._loop.call(
            self._client.create_space(
                name,
                topics,
                streams=streams,
                shard_by=shard_by,
                retention=retention,
                durability=durability,
                schema=schema,
            )
        )

    def publisher(self, **options: Any) -> Publisher:
        """A publisher, to be used as a context manager."""

        async def make() -> AsyncPublisher:
            return self._client.publisher(**options)

        return Publisher(self._loop, self._loop.call(make()))

    def listen(
        self,
        filter: str,
        *,
        start: PlainStart = "latest",
        max_batch: int = 1000,
        schema: SchemaLike | None = None,
    ) -> PlainSubscription:
        """All messages of `filter` from one point on and then as they come; see the asynchronous client."""
        opened = self._client.listen(filter, start=start, max_batch=max_batch, schema=schema)
        return PlainSubscription(self._loop, opened)

    def history(
        self,
        filter: str,
        *,
        since: int | datetime | Mapping[str, int] | None = None,
        max_batch: int = 1000,
        schema: SchemaLike | None = None,
    ) -> PlainSubscription:
        """What is there of `filter` after `since`, then the end; see the asynchronous client."""
        opened = self._client.history(filter, since=since, max_batch=max_batch, schema=schema)
        return PlainSubscription(self._loop, opened)

    def subscribe(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        name: str | None = None,
        max_batch: int = 1000,
        buffered_batches: int = 16,
        session_timeout: float = 10.0,
        schema: SchemaLike | None = None,
        options: GroupOptions | None = None,
    ) -> Subscription:
        """Consume ``$shared/GROUP/FILTER``; arguments and errors as of the asynchronous client."""
        opened = self._client.subscribe(
            subscription,
            start=start,
            name=name,
            max_batch=max_batch,
            buffered_batches=buffered_batches,
            session_timeout=session_timeout,
            schema=schema,
            options=options,
        )
        return Subscription(self._loop, opened)


def connect(url: str | None = None, *, embedded: bool = True) -> Client:
    """A client, to be used as a context manager.

    Raises:
        InvalidOption: `url` is malformed.
    """
    return Client(url, embedded=embedded)
