"""What a query's machine wants to know, found out from Redis and from the group's leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, assert_never

from streamlease.agent.client import Client
from streamlease.agent.membership import metrics
from streamlease.agent.membership.agent import Agent
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry import runs
from streamlease.spark.core import query_events as q
from streamlease.spark.core.conversations.query_desk import ANSWER_SECONDS
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.epoch_following import BoundaryFollower, epoch_space
from streamlease.spark.query.starting import declare
from streamlease.streams.epochs.boundary_reading import Vouched
from streamlease.streams.log.log import AsyncLog

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.05

Connect = Callable[[], Client]


class Finder:
    """Asks for a query, and owns the client by which it does.

    Args:
        cuts: who the query is, as soon as it is known.
        connect: makes the client, which is entered here, and closed at the end; None: by the options.
    """

    def __init__(self, options: SourceOptions, cuts: QueryCuts, connect: Connect | None = None) -> None:
        self._options = options
        self._cuts = cuts
        self._connect = connect or self._by_options
        self._is_late = False
        """Whether it is noted that the checkpoint is behind the query's progress."""
        self.client: Client | None = None
        self.agent: Agent | None = None
        self._boundaries: BoundaryFollower | None = None

    def _by_options(self) -> Client:
        return Client(self._options.redis, embedded=self._options.embedded_leader)

    async def connected(self) -> Client:
        """Connect, and declare the group unless it is declared already."""
        if self.client is None:
            options = self._options
            if options.metrics_port is not None:
                metrics.serve_metrics(options.metrics_port, "0.0.0.0")
            client = self._connect()
            await client.__aenter__()
            try:
                if options.whole_epochs:
                    self._boundaries = BoundaryFollower(client, await epoch_space(client, options))
                await declare(client.groups, AsyncLog(client.redis), options, self._boundaries)
            except BaseException:
                await client.close()
                raise
            self.client = client
        return self.client

    async def close(self) -> None:
        """Close the client."""
        if self.client is not None:
            await self.client.close()
            self.client = None

    def vouched(self, number: int) -> Vouched | None:
        """As of `BoundaryFollower`."""
        return None if self._boundaries is None else self._boundaries.vouched(number)

    async def found(self, what: q.Wanted) -> Any:
        """What the machine wants to know.

        Raises:
            StreamleaseError: that cannot be found out now.
        """
        client = await self.connected()
        streams, cuts = AsyncLog(client.redis), self._cuts
        match what:
            case q.Arrival():
                self.agent = await client.agent()
                if self._options.whole_epochs:
                    self.agent.need_keepers()
                return await client.groups.arrive(self._options.subscription)
            case q.GroupView():
                return await self._view(client)
            case q.MeanSizes():
                states = await streams.states(map(StreamId.parse, what.streams))
                return {str(stream): state.mean_bytes for stream, state in states.items()}
            case q.WrittenLate():
                return await runs.is_late(client.redis, cuts.who.group, cuts.who.session)
            case q.Floors():
                states = await streams.states(map(StreamId.parse, what.streams))
                return {str(stream): state.floor for stream, state in states.items()}
            case q.Untold():
                gone = await runs.untold(client.redis, cuts.who.group, cuts.who.session, what.gone)
                await runs.note_told(client.redis, cuts.who.group, cuts.who.session, gone)
                return gone
            case q.EpochBounds():
                assert self._boundaries is not None
                return await self._boundaries.found(what)
            case _:
                assert_never(what)

    async def _view(self, client: Client) -> dict[str, Any] | None:
        """The group as its leader describes it; None if it does not."""
        try:
            return await client.command(self._options.subscription, DescribeGroup(), seconds=ANSWER_SECONDS)
        except StreamleaseError as error:
            log.warning("%s", error)
            return None

    async def ends(self) -> dict[str, int]:
        """Where each stream of the group ends now; the newest boundary, where epochs are read whole."""
        client = await self.connected()
        if self._boundaries is not None:
            return await self._boundaries.ends()
        ends = await client.next_offsets(await client.groups.streams(self._options.subscription))
        return {str(stream): next for stream, next in ends.items()}

    async def go_behind(self, stream: str, read: int) -> None:
        """Have the stream give out no offset below `read` again.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        client = await self.connected()
        lost = await AsyncLog(client.redis).never_again(StreamId.parse(stream), read)
        if lost is not None:
            log.warning(
                "stream %s ended at offset %d, but was read up to %d: Redis lost acknowledged messages",
                stream, lost, read, extra={"stream": stream},
            )  # fmt: skip

    async def note_late(self) -> None:
        """Note that the checkpoint is behind the query's progress.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: Redis did not take it within ``redis.timeout``.
        """
        clock = asyncio.get_running_loop().time
        client = await self.connected()
        give_up = clock() + self._options.redis_timeout_ms / 1000
        while not self._is_late:
            try:
                await runs.note_late(client.redis, self._cuts.who.group, self._cuts.who.session)
                self._is_late = True
            except (StoreUnavailable, Indefinite):
                if clock() >= give_up:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
