"""What may be asked of a query, on the event loop on which it lives; `query` is its blocking twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlease.agent.membership import metrics
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.ids import random_token
from streamlease.spark.core import query_events as q
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_machine import QueryConfig, QueryMachine
from streamlease.spark.core.query_states import QueryState
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.finding import Connect, Finder
from streamlease.spark.query.query_loop import QueryLoop
from streamlease.streams.epochs.boundary_reading import Vouched


class AsyncQuery:
    """One query: its machine, the loop around it, and what finds out for it.

    Args:
        connect: makes the client, which is entered here, and closed at the end; default: by the options.
        token: tells the session of a query without a checkpoint from all others.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        connect: Connect | None = None,
        token: Callable[[], str] = random_token,
    ) -> None:
        self.options = options
        self.machine = QueryMachine(
            QueryConfig(
                group=options.subscription.id,
                subscription=str(options.subscription),
                fresh=f"q-{token()}",
                slots=options.slots,
                session_timeout_ms=options.session_timeout_ms,
                redis_timeout=options.redis_timeout_ms / 1000,
                fail_on_data_loss=options.fail_on_data_loss,
                whole_epochs=options.whole_epochs,
            )
        )
        self.finder = Finder(options, self.machine.cuts, connect)
        self.loop = QueryLoop(options, self.machine, self.finder)

    def mailbox(self) -> str:
        """That of the session's agent, for the reports of tasks; empty before there is one."""
        return self.finder.agent.id if self.finder.agent is not None else ""

    def initial(self) -> CutOffset:
        """The offset of a query that has no checkpoint; the same at every call."""
        return CutOffset(self.options.subscription.id, self.machine.config.fresh, 0)

    async def begin(self, cut: CutOffset, *, finished: bool) -> None:
        """Begin to borrow under the identity in the checkpoint's newest cut, unless it has begun."""
        if self.machine.state is QueryState.NEW:
            await self.loop.call(q.BeginQuery(cut, finished))

    async def next_cut(self, start: CutOffset, limits: Limits) -> CutOffset:
        """The cut that follows `start`, fixed durably, or `start` itself if there is nothing new.

        Raises:
            Fenced: another process runs the same query, or its checkpoint is an old copy.
            StoreUnavailable: Redis did not answer for ``redis.timeout``, or not at all at the first call.
            Halted: nothing is left of what is available now but what an operator has stopped.
            Unsupported, UnknownSpace, InvalidOption, HistoryTruncated: mostly at the first call.
        """
        await self.begin(start, finished=True)
        found: CutOffset = await self.loop.call(q.NextCut(start, limits))
        return found

    async def ranges_of(self, cut: CutOffset) -> Ranges:
        """What is to be read for `cut`: after a restart, only what is still this query's.

        Raises:
            Fenced: the leader knows that it is finished.
            StoreUnavailable: no leader answered, or settled whose the streams are.
        """
        if not cut.cut:
            return cut.ranges  # of the first batch of a query that had nothing to read yet
        await self.begin(cut, finished=False)
        found: Ranges = await self.loop.call(q.ReadAgain(cut))
        return found

    def by_slot(self, ranges: Ranges) -> dict[int, Ranges]:
        """What each slot reads of a cut, in the order of the slots; from any thread."""
        return self.machine.cuts.by_slot(ranges, self.options.slots)

    async def vouched(self, cut: CutOffset) -> Vouched | None:
        """The boundary at which a cut of whole epochs ends, for who reads it to see that it is still there.

        None: the cut is of an earlier process, and reads what is there now.
        """
        number = self.machine.boundary_of(cut.cut)
        return None if number is None else self.finder.vouched(number)

    async def prepare_available_now(self, *, in_one_cut: bool = False) -> None:
        """From now on, offer nothing beyond what is there now."""
        self.loop.begin_log()
        self.loop.step(q.TargetsKnown(await self.finder.ends(), in_one_cut))

    async def prepare_once(self) -> None:
        """The same, but there will be one cut only, so it holds all of that."""
        if self.machine.available.targets is None:
            await self.prepare_available_now(in_one_cut=True)

    async def report(self) -> dict[str, Any]:
        """What ``StreamingQueryProgress`` shows as the latest offset: lag, and what the query holds."""
        self.loop.begin_log()
        self.loop.step(q.Moment())
        return self.machine.report()

    async def stop(self) -> None:
        """Give all streams back, unless a cut is open, and close what is open. A second call does nothing."""
        if self.machine.state is not QueryState.ENDED:
            metrics.forget(self.loop)
            await self.loop.call(q.StopQuery())
        await self.loop.close()
        await self.finder.close()
