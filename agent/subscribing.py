"""What a program asks for by ``client.subscribe``: checked when it is called, opened when it is entered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Never, TypeAlias, TypedDict, TypeVar

from streamlease.agent.membership.agent import Agent
from streamlease.agent.membership.borrower_slot import SessionConfig
from streamlease.agent.membership.session import Session
from streamlease.agent.subscription import SharedReader
from streamlease.borrower.life import BorrowerConfig
from streamlease.protocol.errors import (
    GroupConflict,
    InvalidOption,
    InvalidTopic,
    StreamleaseError,
    UnknownGroup,
)
from streamlease.protocol.group_options import GroupOptions, check_options
from streamlease.protocol.ids import check_name, random_token
from streamlease.protocol.quantities import parse_count
from streamlease.protocol.topics import SHARED_PREFIXES, SharedSubscription, is_of_catalog
from streamlease.registry.groups import Declaration, Groups
from streamlease.registry.starts import Start, check_start
from streamlease.streams.entries.schemas import Schema, SchemaLike
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore

if TYPE_CHECKING:
    from types import TracebackType

    from streamlease.agent.epochs.group_opening import GroupEpochs
    from streamlease.agent.epochs.group_reader import EpochGroupReader

AnyReader: TypeAlias = "SharedReader | EpochGroupReader"
R = TypeVar("R", bound="AnyReader")


class Joining(TypedDict, total=False):
    """What a consumer may say however it reads."""

    start: Start
    name: str | None
    buffered_batches: int
    auto_commit: bool
    session_timeout: float
    schema: SchemaLike | None
    options: GroupOptions | None


@dataclass(frozen=True, slots=True)
class Subscribing:
    """The arguments of ``client.subscribe``, which are acceptable."""

    shared: SharedSubscription
    start: Start
    name: str | None
    max_batch: int | None
    buffered_batches: int
    auto_commit: bool
    timers: BorrowerConfig
    schema: Schema | None
    options: GroupOptions | None
    whole_epochs: bool

    @classmethod
    def checked(
        cls,
        subscription: str,
        start: Start,
        name: str | None,
        max_batch: int | None,
        buffered_batches: int,
        auto_commit: bool,
        session_timeout: float,
        schema: SchemaLike | None,
        options: GroupOptions | None,
        epochs: str,
    ) -> Subscribing:
        """The same, checked.

        Raises:
            InvalidTopic, InvalidOption: an argument is not acceptable.
        """
        if not isinstance(subscription, str) or subscription.partition("/")[0] not in SHARED_PREFIXES:
            raise InvalidTopic(
                f"{ascii(subscription)[:80]} names no group: share it as '$shared/GROUP/FILTER', "
                f"or read all of it without a group by client.listen(FILTER) or client.history(FILTER)"
            )
        shared = SharedSubscription.parse(subscription)
        if is_of_catalog(shared.filter):
            raise InvalidOption(
                f"{ascii(subscription)[:80]}: nobody shares the catalog out, so it is read without a group: "
                f"use client.listen('{shared.filter}')"
            )
        if name is not None:
            check_name("static name", name)
        if max_batch is not None:
            parse_count("max_batch", max_batch)
        parse_count("buffered_batches", buffered_batches)
        if not isinstance(auto_commit, bool):
            raise InvalidOption(f"auto_commit is {ascii(auto_commit)[:80]}: give True or False")
        check_start(start)
        _check_mode(epochs, max_batch)
        known = None if options is None else _known(check_options(options))
        columns = None if schema is None else Schema.of(schema)
        if not isinstance(session_timeout, int | float) or not 0.1 <= session_timeout <= 86_400:
            raise InvalidOption(
                f"session_timeout is {ascii(session_timeout)[:80]}: give 0.1 to 86400 seconds"
            )
        timers = BorrowerConfig(session_timeout=round(session_timeout * 1000))
        whole = epochs == "atomic"
        return cls(
            shared, start, name, max_batch, buffered_batches, auto_commit, timers, columns, known, whole
        )

    def subscription(
        self,
        redis: AsyncRedis,
        tails: Tails,
        groups: Groups,
        agent_of: Callable[[], Awaitable[Agent]],
        readers: dict[AnyReader, None],
    ) -> Subscription[SharedReader] | Subscription[EpochGroupReader]:
        """What the program enters.

        Args:
            readers: those that are open; its own is one of them while it is.
        """
        own = (redis, tails, groups, agent_of)
        if self.whole_epochs:
            return Subscription(partial(self._open_epochs, *own), readers, whole_epochs=True)
        return Subscription(partial(self._open, *own), readers)

    async def _open(
        self, redis: AsyncRedis, tails: Tails, groups: Groups, agent_of: Callable[[], Awaitable[Agent]]
    ) -> SharedReader:
        """Join the group and begin to borrow.

        Raises:
            UnknownSpace, UnknownGroup, GroupConflict, HistoryTruncated: the group cannot be joined so.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        await self.join(redis, groups)
        return await self._begin(redis, tails, groups, agent_of, None)

    async def carry(
        self,
        redis: AsyncRedis,
        tails: Tails,
        groups: Groups,
        agent_of: Callable[[], Awaitable[Agent]],
        session: str,
        arrival: int,
    ) -> SharedReader:
        """Begin to borrow as a session that another process may have had before, by a later arrival.

        The leader sees the session that it knows: nothing is given to others, and it goes on behind what is
        committed. The group is joined already.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        return await self._begin(redis, tails, groups, agent_of, None, (session, arrival))

    async def _open_epochs(
        self, redis: AsyncRedis, tails: Tails, groups: Groups, agent_of: Callable[[], Awaitable[Agent]]
    ) -> EpochGroupReader:
        """The same, to read whole epochs.

        Raises:
            InvalidOption: not all spaces of the filter have epochs, of equally many dimensions.
            EpochsTruncated: retention removed the boundary at which the group was to begin.
            And as `_open`.
        """
        from streamlease.agent.epochs.group_opening import GroupEpochs
        from streamlease.agent.epochs.opening import check_epochs

        spaces = await SpaceStore(redis).for_filter(self.shared.filter)
        check_epochs(self.shared.filter, spaces)
        declared = await self.join(redis, groups)
        assert declared.epochs is not None
        epochs = GroupEpochs(redis, spaces, self.shared.filter, declared.epochs)
        reader = await self._begin(redis, tails, groups, agent_of, epochs)
        (await agent_of()).need_keepers()
        return epochs.start(reader)

    async def join(self, redis: AsyncRedis, groups: Groups, arrival: int = 0) -> Declaration:
        """Declare the group, if it is not, and check that it may be consumed so.

        Raises:
            UnknownSpace, UnknownGroup, GroupConflict, HistoryTruncated: it may not.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        if self.whole_epochs:
            from streamlease.agent.epochs.group_opening import join_epochs

            return await join_epochs(
                groups, redis, self.shared, self.start, options=self.options, arrival=arrival
            )
        declared = await groups.join(self.shared, self.start, options=self.options, arrival=arrival)
        declared.check_epochs(whole=False)
        return declared

    async def _begin(
        self,
        redis: AsyncRedis,
        tails: Tails,
        groups: Groups,
        agent_of: Callable[[], Awaitable[Agent]],
        epochs: GroupEpochs | None,
        carried: tuple[str, int] | None = None,
    ) -> SharedReader:
        agent = await agent_of()
        session, arrival = carried or (f"s-{random_token()}", await groups.arrive(self.shared))
        reader = SharedReader(
            redis,
            tails,
            self.shared,
            max_batch=self.max_batch,
            buffered_batches=self.buffered_batches,
            auto_commit=self.auto_commit,
            schema=self.schema,
            lines=agent.lines,
            reading_lines=agent.reading_lines,
            divide=epochs.divide if epochs is not None else None,
        )
        names = (self.name or f"{session}/0",)
        joined = Session(agent, SessionConfig(self.shared, session, names, arrival, self.timers), reader)

        async def declare_again() -> None:
            try:
                declared = await groups.get(self.shared)
                declared.check_epochs(whole=self.whole_epochs)
            except UnknownGroup:
                await self.join(redis, groups, arrival)
            except GroupConflict as error:
                reader.refuse(error)

        agent.leaders.keep_declared(self.shared.id, (lambda: not joined.over, declare_again))
        reader.start(joined)
        return reader


class Subscription(Generic[R]):
    """``client.subscribe(...)``: an async context manager around an async iterator of batches or items."""

    def __init__(
        self,
        opener: Callable[[], Awaitable[R]],
        readers: dict[AnyReader, None],
        *,
        whole_epochs: bool = False,
    ) -> None:
        self.whole_epochs = whole_epochs
        self._opener = opener
        self._readers = readers
        self._reader: R | None = None

    if not TYPE_CHECKING:  # which would take it for something that can be iterated

        def __aiter__(self) -> Never:
            raise InvalidOption(
                "what a subscription gives is iterated: write 'async with client.subscribe(...) as sub', and "
                "in it 'async for batch in sub'"
            )

    async def __aenter__(self) -> R:
        """Join the group, not for the first time if it was left before.

        Raises:
            InvalidOption: it is joined already. And as ``client.subscribe`` says.
        """
        if self._reader is not None:
            raise InvalidOption("the subscription is open already: make another one by client.subscribe(...)")
        self._reader = await self._opener()
        self._readers[self._reader] = None
        return self._reader

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; an error that comes of it does not hide `error`, after which nothing more is finished."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if error is None:
            reader.finished()
        try:
            await reader.close()
        except StreamleaseError:
            self._readers.pop(reader, None)
            if error is None:
                raise
        else:  # not where this is cancelled: then the client closes it
            self._readers.pop(reader, None)


def _check_mode(epochs: str, max_batch: int | None) -> None:
    """Raises:
    InvalidOption: a group cannot be read so.
    """
    if epochs == "eager":
        raise InvalidOption(
            "epochs is 'eager', and nothing can be committed of what is not complete: read a group with "
            "'atomic' or 'off', or all messages as they come without a group by client.listen(FILTER)"
        )
    if epochs not in ("atomic", "off"):
        raise InvalidOption(f"epochs is {ascii(epochs)[:80]}: use 'atomic' or 'off'")
    if epochs == "atomic" and max_batch is not None:
        raise InvalidOption(
            f"max_batch is {max_batch}, and with epochs 'atomic' an item is all of an epoch that a stream "
            f"has: leave it out"
        )


def _known(options: GroupOptions) -> GroupOptions:
    """`options`, whose strategy is one that is there.

    Raises:
        InvalidOption: it is not.
    """
    if options.strategy is not None:
        from streamlease.leader.core.planning.strategies import strategy

        strategy(options.strategy)
    return options
