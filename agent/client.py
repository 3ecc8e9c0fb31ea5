"""The entrance: ``streamlease.connect(url)``.

What consumes, publishes or leads is imported by the call that needs it: an operator's view of a Redis needs
none of it, and half of its time would be imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Unpack, overload

from streamlease.agent.own_parts import OwnParts, beside
from streamlease.catalog.shown import shown_by
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.groups import Groups
from streamlease.registry.starts import Start
from streamlease.streams.entries.schemas import SchemaLike
from streamlease.streams.redis.connection import AsyncRedis, check_server
from streamlease.streams.redis.connection import connect as connect_redis
from streamlease.streams.redis.urls import redis_url
from streamlease.streams.spaces.space_options import SpaceAlteration, SpaceOptions
from streamlease.streams.spaces.spaces import Space, SpaceStore

if TYPE_CHECKING:
    from pydantic import BaseModel

    from streamlease.agent.collections.catalog_messages import CatalogMessages
    from streamlease.agent.collections.collection import Collection
    from streamlease.agent.epochs.epoch_reading import EpochMode, EpochSubscription
    from streamlease.agent.epochs.group_reader import EpochGroupReader
    from streamlease.agent.membership.agent import Agent
    from streamlease.agent.operator_acts import ActOptions, CommandOptions, DrainOptions
    from streamlease.agent.plain.listening import PlainSubscription
    from streamlease.agent.plain.plain_ways import Since
    from streamlease.agent.subscribing import Joining, Subscription
    from streamlease.agent.subscription import SharedReader
    from streamlease.catalog.followed import Catalog, CatalogFeeds
    from streamlease.catalog.items import PublicationItem
    from streamlease.protocol.acts import Act
    from streamlease.services.client_services import CallOptions, ClientServices, Handlers, ServeOptions
    from streamlease.services.service import Serving
    from streamlease.streams.epochs.epoch_publisher import EpochPublisher
    from streamlease.streams.log.tails import Tails
    from streamlease.streams.publish.inputs import PublisherOptions
    from streamlease.streams.publish.publisher import Publisher

Typed: TypeAlias = SchemaLike | None
Off: TypeAlias = Literal["off"]
A = TypeVar("A", bound="BaseModel")


class Client:
    """A connection to Streamlease: spaces, publishers, subscriptions. Belongs to one event loop."""

    def __init__(
        self, url: str | None = None, *, embedded: bool = True, redis: AsyncRedis | None = None
    ) -> None:
        """Args:
        url: URL of the Redis; default as in `redis_url`.
        embedded: lead in this process where no leader host is registered.
        redis: what is connected to it already, such as an in-memory server's; it is closed with the client.
        """
        self.url = redis_url(url)
        self.redis: AsyncRedis = connect_redis(self.url) if redis is None else redis
        self.spaces = SpaceStore(self.redis)
        self.groups = Groups(self.redis, self.spaces)
        self._embedded = embedded
        self._agent: Agent | None = None
        self.shown = shown_by(self.redis)
        self._agent_lock = asyncio.Lock()
        self._readers: dict[SharedReader | EpochGroupReader, None] = {}
        self._own = OwnParts()

    @cached_property
    def tails(self) -> Tails:
        """The ends of the streams that anything of this client reads."""
        from streamlease.streams.log.tails import Tails

        self._own.check_open()
        return Tails(self.redis)

    async def __aenter__(self) -> Client:
        """Check the server; raises StoreUnavailable, or Unsupported if it is too old, or would drop data."""
        self._own.check_open()
        try:
            await check_server(self.redis)
        except BaseException:
            await self.redis.aclose()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with beside(error):
            await self.close()

    async def close(self) -> None:
        """Close publishers, leave all subscriptions in good order, and close the connections.

        Publishers of epochs give nothing up. What these raise, and subscriptions, is raised at the end.
        """
        async with AsyncExitStack() as left:
            left.push_async_callback(self._disconnect)
            for end in (*(one.close for one in self._readers), *self._own.ends_of_publishers):
                left.push_async_callback(end)
            self._readers.clear()

    async def _disconnect(self) -> None:
        self._own.close()
        agent, self._agent = self._agent, None
        made = [self.__dict__.pop(name) for name in self.__dict__.keys() & {"_feeds", "_services", "tails"}]
        async with AsyncExitStack() as left:  # all of it, also where one is cancelled
            left.push_async_callback(self.redis.aclose)
            for part in (self.shown, *([agent] if agent is not None else []), *made):
                left.push_async_callback(part.close)

    async def agent(self) -> Agent:
        """The agent of this client, started at its first use, and anew when it ended by a defect."""
        from streamlease.agent.membership.agent import Agent

        self._own.check_open()
        async with self._agent_lock:
            if self._agent is not None and self._agent.error is not None:
                ended, self._agent = self._agent, None
                await ended.close()
            if self._agent is None:
                agent = Agent(self.redis, embedded=self._embedded, shown=self.shown)
                await agent.start()
                self._agent = agent
            return self._agent

    async def create_space(self, name: str, topics: Iterable[str], **options: Unpack[SpaceOptions]) -> Space:
        """Create a space, or return it if it exists with the same definition; as `SpaceStore.create`."""
        self._own.check_open()
        return await self.spaces.create(name, topics, **options)

    async def alter_space(self, /, name: str, **changes: Unpack[SpaceAlteration]) -> Space:
        """Change what `SpaceAlteration` names of a space that is used; as `sealing.change_space`."""
        from streamlease.streams.epochs.sealing import alter_space

        self._own.check_open()
        return await alter_space(self.redis, self.spaces, name, self._have_keepers, **changes)

    async def seal_space(self, name: str) -> Space:
        """End a space: it takes no more messages, and readers reach its end; as `sealing.seal_space`."""
        from streamlease.streams.epochs.sealing import seal_space

        self._own.check_open()
        return await seal_space(self.redis, self.spaces, name, self._have_keepers)

    async def next_offsets(self, streams: Iterable[StreamId | str]) -> dict[StreamId, int]:
        """The offset that the next message of each stream will get; unknown streams are left out.

        Raises:
            InvalidInput: one is no stream.
        """
        from streamlease.streams.log.log import AsyncLog

        self._own.check_open()
        return await AsyncLog(self.redis).next_offsets(StreamId.all_of(streams))

    def publisher(self, /, **options: Unpack[PublisherOptions]) -> Publisher:
        """A publisher, to be used as a context manager. Raises InvalidOption."""
        from streamlease.streams.publish.publisher import Publisher

        made = Publisher(self.redis, spaces=self.spaces, shown=self.shown.publication, **options)
        return self._own.publishing(made)

    def epoch_publisher(
        self, space: str, name: str, /, **options: Unpack[PublisherOptions]
    ) -> EpochPublisher:
        """A publisher of messages of epochs, to be used as a context manager; as of `EpochPublisher`."""
        from streamlease.streams.epochs.epoch_publisher import EpochPublisher

        own: dict[str, Any] = {"keep": self._have_keepers, "shown": self.shown.publication}
        made = EpochPublisher(self.redis, space, name, spaces=self.spaces, **own, **options)
        return self._own.publishing_epochs(made)

    async def _have_keepers(self) -> None:
        (await self.agent()).need_keepers()

    @overload
    def subscribe(
        self, subscription: str, *, epochs: Off = ..., max_batch: int | None = ..., **options: Unpack[Joining]
    ) -> Subscription[SharedReader]: ...
    @overload
    def subscribe(
        self, subscription: str, *, epochs: Literal["atomic"], **options: Unpack[Joining]
    ) -> Subscription[EpochGroupReader]: ...
    def subscribe(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        name: str | None = None,
        max_batch: int | None = None,
        buffered_batches: int = 16,
        auto_commit: bool = False,
        session_timeout: float = 10.0,
        schema: SchemaLike | None = None,
        options: GroupOptions | None = None,
        epochs: Literal["atomic", "off"] = "off",
    ) -> Subscription[SharedReader] | Subscription[EpochGroupReader]:
        """Consume ``$shared/GROUP/FILTER`` together with all others that subscribe to it.

        Args:
            subscription: ``$shared/GROUP/FILTER`` or ``$queue/GROUP/FILTER``.
            start: where the group begins if this is its first subscriber: ``earliest``, ``latest``, a
                datetime (what was appended then or later), an offset, or offsets by stream. A ``$queue``
                must be declared (`Groups.declare`) and begins where that says.
            options: how the group behaves if this is its first subscriber: strategy, time to give streams
                back, what becomes of messages that cannot be processed.
            name: static name: a newcomer with the same name takes the streams over at once.
            max_batch: most messages in one batch; None: as many as came together, a few MiB at most.
            buffered_batches: how many full batches are fetched ahead; of small ones more.
            auto_commit: a batch is done when the loop comes back for the next one, or leaves the ``async
                with`` without an exception; then it is entered as by ``batch.commit_soon()``. Whoever takes
                several at once, or works in tasks, commits by himself (docs/consuming.md).
            session_timeout: seconds of silence after which the streams go to others.
            schema: the typed columns wanted, in a space with a schema; None for all. If the space has them
                not, or of other types, the iterator raises ``SchemaMismatch``.
            epochs: ``atomic`` gives all messages of an epoch in a stream together, and tells how far the
                frontier is (docs/epochs.md); all consumers of the group must say so.

        Raises:
            InvalidTopic, InvalidOption: at once. UnknownSpace, UnknownGroup (a ``$queue`` that nobody
            declared), GroupConflict, HistoryTruncated, EpochsTruncated, or that spaces have no epochs
            (InvalidOption): when entered.
        """
        from streamlease.agent.subscribing import Subscribing

        own = (self.redis, self.tails, self.groups, self.agent, self._readers)
        reading = (start, name, max_batch, buffered_batches, auto_commit, session_timeout, schema, options)
        return Subscribing.checked(subscription, *reading, epochs).subscription(*own)

    @overload
    def listen(
        self, filter: str, *, start: Start = ..., schema: Typed = ..., epochs: EpochMode
    ) -> EpochSubscription: ...
    @overload
    def listen(
        self, filter: str, *, start: Start = ..., max_batch: int = ..., schema: Typed = ..., epochs: Off = ...
    ) -> PlainSubscription: ...
    def listen(
        self,
        filter: str,
        *,
        start: Start = "latest",
        max_batch: int = 1000,
        schema: SchemaLike | None = None,
        epochs: EpochMode | Literal["off"] = "off",
    ) -> PlainSubscription | EpochSubscription | CatalogMessages:
        """All messages of `filter`, or changes of ``$catalog/NAME``, from one point on, without a group.

        Args:
            start: ``earliest``, ``latest``, an offset, offsets by stream, or a datetime: then or later.
            max_batch: most messages in one batch.
            schema: the typed columns wanted, in spaces with a schema; None for all of each space's newest
                version. If a space has them not, or of other types, the iterator raises ``SchemaMismatch``.
            epochs: ``off`` reads each stream as it is. In spaces with epochs ``atomic`` gives all messages of
                an epoch together, ``eager`` what is staged, both how far the frontier is: docs/epochs.md.

        Raises:
            InvalidTopic, InvalidOption: at once. UnknownSpace, HistoryTruncated, EpochsTruncated, or that
            spaces have no epochs (InvalidOption): when entered.
        """
        return self._read(filter, start, epochs, max_batch, schema, follow=True)

    @overload
    def history(
        self, filter: str, *, since: Since = ..., schema: Typed = ..., epochs: Literal["atomic"]
    ) -> EpochSubscription: ...
    @overload
    def history(
        self, filter: str, *, since: Since = ..., max_batch: int = ..., schema: Typed = ..., epochs: Off = ...
    ) -> PlainSubscription: ...
    def history(
        self,
        filter: str,
        *,
        since: Since = None,
        max_batch: int = 1000,
        schema: SchemaLike | None = None,
        epochs: Literal["atomic", "off"] = "off",
    ) -> PlainSubscription | EpochSubscription | CatalogMessages:
        """What is there of `filter` after the point `since`, up to now; then the iteration ends.

        Args:
            since: the last offset that is known already, of each stream or by stream; or a datetime: what was
                appended after it; None: all that is left.
            max_batch, schema, epochs: as of `listen`; ``atomic`` ends at the newest boundary.
        """
        from streamlease.agent.plain.plain_ways import after

        return self._read(filter, after(since), epochs, max_batch, schema, follow=False)

    def _read(self, *what: Any, follow: bool) -> PlainSubscription | EpochSubscription | CatalogMessages:
        from streamlease.agent.plain.plain_ways import read_plain

        own = (self.redis, self.tails, self.spaces, self.agent, self.catalog, self.shown, self._own)
        return read_plain(*own, *what, follow=follow)

    def collection(self, filter: str, *, start: Mapping[str, int] | None = None) -> Collection:
        """What is there of collections at one point (`items`), and then each change behind it, once.

        Args:
            start: `positions` of another one, to go on there; None: with all that is there.

        Raises InvalidTopic, InvalidOption: at once; when entered, as of `Collection`.
        """
        from streamlease.agent.collections.collection import Collection

        own = (self.redis, self.tails, self.spaces, self.agent)
        return self._own.add(Collection(*own, filter, start, self.shown))

    @cached_property
    def _services(self) -> ClientServices:
        from streamlease.services.client_services import ClientServices

        return ClientServices(self.redis, self.shown.process)

    def serve(self, service: str, handlers: Handlers, **options: Unpack[ServeOptions]) -> Serving:
        """Serve a name with typed handlers, ``{Request: handler}``, as a context manager; as of `Serving`."""
        return self._services.serve(service, handlers, **options)

    async def call(
        self, service: str, request: BaseModel, *, answer: type[A], **options: Unpack[CallOptions]
    ) -> A:
        """Ask one of those who serve a name for one answer; as of `ClientServices.call`."""
        return await self._services.call(service, request, answer=answer, **options)

    def catalog(self, collection: str, *, start: str | None = None) -> Catalog:
        """What there is of a collection of the catalog, and each change behind it; as of `Catalog`."""
        return self._feeds.catalog(collection, start)

    @cached_property
    def _feeds(self) -> CatalogFeeds:
        from streamlease.catalog.followed import CatalogFeeds

        self._own.check_open()
        return CatalogFeeds(self.redis)

    async def lookup(self, topic: str, *, wait: float = 0.0) -> PublicationItem:
        """Somebody who publishes to `topic`; TopicNotFound if nobody comes in `wait` seconds."""
        return await self._feeds.lookup(topic, wait)

    async def command(
        self, subscription: SharedSubscription | str, act: Act | str, **asked: Unpack[CommandOptions]
    ) -> dict[str, Any]:
        """As `act`, by whoever leads the group now: NotLeader if nobody does."""
        from streamlease.agent.operator_acts import ask_leader

        self._own.check_open()
        return await ask_leader(self.redis, self.groups, self.agent, subscription, act, **asked)

    async def act(
        self, subscription: SharedSubscription | str, act: Act | str, **asked: Unpack[ActOptions]
    ) -> dict[str, Any]:
        """Have an operator's act done; a leader is found or spawned for it. The leader's answer.

        Args:
            act: one of ``protocol.acts``, or its name; the name's own fields are among `asked`.
            asked: see `ActOptions`.

        Raises:
            InvalidInput: an argument is not acceptable. UnknownGroup: nobody declared it.
            ActRefused: the leader says why it is not done.
            NotLeader: nobody leads, and nobody could be made to: nothing was done.
            Indefinite: no answer within `seconds`: it was done, or it was not. Or a group that is deleted
                was ended, and what is kept of it could not be removed: repeat it.
        """
        from streamlease.agent.operator_acts import have_done

        self._own.check_open()
        return await have_done(self.redis, self.groups, self.agent, subscription, act, **asked)

    async def drain_host(self, host: str, **asked: Unpack[DrainOptions]) -> dict[str, Any]:
        """Have a leader host hand its leaders to others, one by one, and take none; or take them again.

        It answers at once, and names the groups that it leads; they are handed over afterwards. Raises
        InvalidOption; ActRefused: it is the last host; Indefinite: it did not answer within `seconds`.
        """
        from streamlease.agent.operator_acts import have_drained

        self._own.check_open()
        return await have_drained(self.redis, self.agent, host, **asked)


def connect(url: str | None = None, *, embedded: bool = True) -> Client:
    """A client, to be used as an async context manager; see `Client`.

    Raises:
        InvalidOption: `url` is malformed.
    """
    return Client(url, embedded=embedded)
