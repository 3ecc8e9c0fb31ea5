"""What a program asks for by ``client.subscribe``: checked when it is called, opened when it is entered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from streamlease.agent.membership.agent import Agent
from streamlease.agent.membership.borrower_slot import SessionConfig
from streamlease.agent.membership.session import Session
from streamlease.agent.subscription import SharedReader
from streamlease.borrower.life import BorrowerConfig
from streamlease.protocol.errors import InvalidOption, InvalidTopic, UnknownGroup
from streamlease.protocol.group_options import GroupOptions, check_options
from streamlease.protocol.ids import check_name, random_token
from streamlease.protocol.quantities import parse_count
from streamlease.protocol.topics import SHARED_PREFIXES, SharedSubscription
from streamlease.registry.groups import Groups
from streamlease.registry.starts import Start, check_start
from streamlease.streams.entries.schemas import Schema, SchemaLike
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.connection import AsyncRedis


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

    @classmethod
    def checked(
        cls,
        subscription: str,
        *,
        start: Start,
        name: str | None,
        max_batch: int | None,
        buffered_batches: int,
        auto_commit: bool,
        session_timeout: float,
        schema: SchemaLike | None,
        options: GroupOptions | None,
    ) -> Subscribing:
        """The same, checked.

        Raises:
            InvalidTopic, InvalidOption: an argument is not acceptable.
        """
        if subscription.partition("/")[0] not in SHARED_PREFIXES:
            raise InvalidTopic(
                f"{ascii(subscription)[:80]} names no group: share it as '$shared/GROUP/FILTER', "
                f"or read all of it without a group by client.listen(FILTER) or client.history(FILTER)"
            )
        shared = SharedSubscription.parse(subscription)
        if name is not None:
            check_name("static name", name)
        if max_batch is not None:
            parse_count("max_batch", max_batch)
        parse_count("buffered_batches", buffered_batches)
        if not isinstance(auto_commit, bool):
            raise InvalidOption(f"auto_commit is {ascii(auto_commit)[:80]}: give True or False")
        check_start(start)
        known = None if options is None else _known(check_options(options))
        columns = None if schema is None else Schema.of(schema)
        if not isinstance(session_timeout, int | float) or not 0.1 <= session_timeout <= 86_400:
            raise InvalidOption(
                f"session_timeout is {ascii(session_timeout)[:80]}: give 0.1 to 86400 seconds"
            )
        timers = BorrowerConfig(session_timeout=round(session_timeout * 1000))
        return cls(shared, start, name, max_batch, buffered_batches, auto_commit, timers, columns, known)

    async def open(
        self, redis: AsyncRedis, tails: Tails, groups: Groups, agent_of: Callable[[], Awaitable[Agent]]
    ) -> SharedReader:
        """Join the group and begin to borrow.

        Raises:
            UnknownSpace, UnknownGroup, GroupConflict, HistoryTruncated: the group cannot be joined so.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        await groups.join(self.shared, self.start, options=self.options)
        agent = await agent_of()
        session = f"s-{random_token()}"
        arrival = await groups.arrive(self.shared)
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
        )
        names = (self.name or f"{session}/0",)
        joined = Session(agent, SessionConfig(self.shared, session, names, arrival, self.timers), reader)

        async def declare_again() -> None:
            try:
                await groups.get(self.shared)
            except UnknownGroup:
                await groups.join(self.shared, self.start, options=self.options, arrival=arrival)

        agent.leaders.keep_declared(self.shared.id, (lambda: not joined.over, declare_again))
        reader.start(joined)
        return reader


def _known(options: GroupOptions) -> GroupOptions:
    """`options`, whose strategy is one that is there.

    Raises:
        InvalidOption: it is not.
    """
    if options.strategy is not None:
        from streamlease.leader.core.planning.strategies import strategy

        strategy(options.strategy)
    return options
