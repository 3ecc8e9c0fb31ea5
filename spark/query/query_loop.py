"""The loop around a query's machine: it delivers, and decides nothing.

Everything happens on the event loop in which its methods are awaited, so pings, grants and revocations are
answered while Spark is busy with a micro-batch. What the machine wants to know is found out by tasks of their
own; the clock is that of the event loop, so on one of virtual time it runs as it does in production.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, assert_never

from streamlease.agent import metrics
from streamlease.agent.agent import Agent
from streamlease.agent.client import Client
from streamlease.agent.session import Session, SessionConfig
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.life import BorrowerConfig
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.errors import Indefinite, InvalidInput, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId, random_token
from streamlease.protocol.messages import CutRead, LeaderToSession
from streamlease.registry import runs
from streamlease.spark.core import query_events as q
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_machine import QueryConfig, QueryMachine
from streamlease.spark.core.query_states import QueryState
from streamlease.spark.core.questions import ANSWER_SECONDS
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.starting import declare
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.tails import Watch
from streamlease.streams.tasks import Supervisor, task_failed

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.005
"""Many grants in a row make one new set of streams that are watched."""

RETRY_SECONDS = 0.05

Connect = Callable[[], Client]


class QueryLoop:
    """One query: the handler of its session, and whoever carries its machine's effects out.

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
        self.client: Client | None = None
        self.agent_id = ""
        """Mailbox of the session's agent, for the reports of tasks; empty before there is one."""
        self.machine = QueryMachine(
            QueryConfig(
                group=options.subscription.id,
                subscription=str(options.subscription),
                fresh=f"q-{token()}",
                slots=options.slots,
                session_timeout_ms=options.session_timeout_ms,
                redis_timeout=options.redis_timeout_ms / 1000,
                fail_on_data_loss=options.fail_on_data_loss,
            )
        )
        self._connect = connect or self._by_options
        self._agent: Agent | None = None
        self._session: Session | None = None
        self._tails: Watch | None = None
        self._tasks = Supervisor(f"query of {options.subscription}", lambda _, error: self._broken(error))
        self._around = q.Surroundings()
        self._waiters: deque[asyncio.Future[Any]] = deque()
        """Whoever waits for a call, and whoever stops the query meanwhile."""
        self._events: deque[q.Event] = deque()
        self._is_stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._is_late = False
        """Whether it is noted that the checkpoint is behind the query's progress."""

    def _by_options(self) -> Client:
        return Client(self.options.redis, embedded=self.options.embedded_leader)

    # ------------------------------------------------------------ what is asked of it

    def initial(self) -> CutOffset:
        """The offset of a query that has no checkpoint; the same at every call."""
        return CutOffset(self.options.subscription.id, self.machine.config.fresh, 0)

    async def begin(self, cut: CutOffset, *, finished: bool) -> None:
        """Begin to borrow under the identity in the checkpoint's newest cut, unless it has begun."""
        if self.machine.state is QueryState.NEW:
            await self._call(q.BeginQuery(cut, finished))

    async def next_cut(self, start: CutOffset, limits: Limits) -> CutOffset:
        """The cut that follows `start`, fixed durably, or `start` itself if there is nothing new.

        Raises:
            Fenced: another process runs the same query, or its checkpoint is an old copy.
            StoreUnavailable: Redis did not answer for ``redis.timeout``, or not at all at the first call.
            Halted: nothing is left of what is available now but what an operator has stopped.
            Unsupported, UnknownSpace, InvalidOption, HistoryTruncated: mostly at the first call.
        """
        await self.begin(start, finished=True)
        found: CutOffset = await self._call(q.NextCut(start, limits))
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
        found: Ranges = await self._call(q.ReadAgain(cut))
        return found

    async def prepare_available_now(self, *, in_one_cut: bool) -> None:
        """From now on, offer nothing beyond what is there now."""
        client = await self._connected()
        ends = await client.next_offsets(await client.groups.streams(self.options.subscription))
        self.step(q.TargetsKnown({str(stream): next for stream, next in ends.items()}, in_one_cut))

    async def note_late(self) -> None:
        """Note that the checkpoint is behind the query's progress.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: Redis did not take it within ``redis.timeout``.
        """
        clock = asyncio.get_running_loop().time
        client = await self._connected()
        give_up = clock() + self.options.redis_timeout_ms / 1000
        while not self._is_late:
            try:
                await runs.note_late(client.redis, self.machine.cuts.group, self.machine.cuts.session)
                self._is_late = True
            except (StoreUnavailable, Indefinite):
                if clock() >= give_up:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def report(self) -> dict[str, Any]:
        """What ``StreamingQueryProgress`` shows."""
        self.step(q.Moment())
        return self.machine.report()

    async def stop(self) -> None:
        """Give all streams back, unless a cut is open, and close what is open. A second call does nothing."""
        if self.machine.state is not QueryState.ENDED:
            metrics.forget(self)
            await self._call(q.StopQuery())
        for timer in (self._timer, self._watching):
            if timer is not None:
                timer.cancel()
        await self._tasks.close()
        if self._tails is not None:
            self._tails.close()
        if self.client is not None:
            await self.client.close()
            self.client = None

    @property
    def subscription(self) -> str:
        """What the query consumes."""
        return self.machine.config.subscription

    def holding(self) -> tuple[int | None, int | None]:
        """Streams held, and messages of them that no cut took through the sink; from any thread."""
        return self.machine.holding()

    # ------------------------------------------------------------ the machine

    async def _call(self, call: q.Call) -> Any:
        """Wait for the answer to a call; Spark makes one at a time, and may stop in the middle of one."""
        if self._waiters and not isinstance(call, q.StopQuery):
            raise InvalidInput("the query was asked while it had not answered: wait for the answer")
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            self.step(call)
            return await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self.step(q.GivenUp())
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def step(self, event: q.Event) -> None:
        """Have the machine take an event, and do what follows; what comes meanwhile is taken afterwards."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                self._look_around()
                self._step(self._events.popleft())
        finally:
            self._is_stepping = False
        self._set_timer()

    def _step(self, event: q.Event) -> None:
        for effect in self.machine.step(event, asyncio.get_running_loop().time()):
            self._carry_out(effect)

    def _look_around(self) -> None:
        """Tell the machine what is seen of the leader and of Redis, if that is not what it knows."""
        if self._session is None or self._agent is None or self._tails is None:
            return
        led = self._session.connected
        trouble = "" if led else self._agent.trouble(self.machine.config.group)
        around = q.Surroundings(led, self._session.term, trouble, self._tails.error)
        if around != self._around:
            self._around = around
            self._step(around)

    def _set_timer(self) -> None:
        due = self.machine.due
        if self._timer is not None and (due is None or self._timer.when() != due):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._surely(q.Moment())

    def _tick(self, now: int) -> None:
        lowered = frozenset(map(str, self._tails.lowered)) if self._tails is not None else frozenset[str]()
        if lowered and self._tails is not None:
            self._tails.lowered.clear()
        self._surely(q.Moment(lowered))

    def _surely(self, event: q.Event) -> None:
        """What others call raises nothing: a defect ends this query, and nothing else of the process."""
        try:
            self.step(event)
        except Exception as error:
            log.exception("%s: %s", self.subscription, type(event).__name__)
            self._broken(task_failed(self.subscription, type(event).__name__, error))

    def _broken(self, error: StreamleaseError) -> None:
        """Something of the query ended by a defect, and the query with it."""
        if self._session is not None and not self._session.over:
            self._session.end(error)
        else:
            self.step(q.SessionOver(error))

    # ------------------------------------------------------------ effects

    def _carry_out(self, effect: q.Effect) -> None:
        match effect:
            case q.Reply():
                self._answer(lambda waiter: waiter.set_result(effect.answer))
            case q.Refuse():
                self._answer(lambda waiter: waiter.set_exception(effect.error))
            case q.Find():
                self._tasks.start("finding out", self._find_out(effect))
            case q.OpenSession():
                self._open(effect)
            case q.Tell():
                self._its_session.post(effect.message)
            case q.ReportProgress():
                self._its_session.progressed(effect.slot, effect.progress)
            case q.Attest():
                streams, lease_epochs, starts, ends = effect.ranges.columns
                self._its_session.attested.add_cut(streams, lease_epochs, ends if effect.finished else starts)
            case q.WatchEnds():
                if self._watching is None:
                    loop = asyncio.get_running_loop()
                    self._watching = loop.call_later(WATCH_SECONDS, self._watch_now)
            case q.GoBehind():
                self._tasks.start("looking for lost messages", self._go_behind(effect))
            case q.Say():
                log.log(
                    effect.level,
                    "%s",
                    effect.text,
                    extra={"stream": effect.stream} if effect.stream else None,
                )
            case q.CountMessages():
                metrics.READ.labels(self.subscription).inc(effect.read)
                metrics.COMMITTED.labels(self.subscription).inc(effect.committed)
            case q.LeaveGroup():
                self._leave()
            case q.EventRefused():
                log.debug("%s: %s came while it is %s", self.subscription, effect.event, effect.state)
            case _:
                assert_never(effect)

    def _answer(self, tell: Callable[[asyncio.Future[Any]], None]) -> None:
        waiter = self._waiters.popleft()
        if not waiter.done():
            tell(waiter)

    @property
    def _its_session(self) -> Session:
        assert self._session is not None
        return self._session

    def _open(self, effect: q.OpenSession) -> None:
        assert self.client is not None
        assert self._agent is not None
        options = self.options
        self._tails = self.client.tails.watch(self._tail_moved)
        self._session = Session(
            self._agent,
            SessionConfig(
                options.subscription,
                effect.session,
                tuple(f"{effect.session}/{slot}" for slot in range(options.slots)),
                effect.arrival,
                BorrowerConfig(session_timeout=options.session_timeout_ms),
            ),
            self,
        )
        metrics.watch(self)
        self._session.saw_term(effect.term)
        self._session.start()
        self._agent.add_ticker(self._tick)

    def _leave(self) -> None:
        if self._its_session.over:
            self.step(q.SessionOver())
        else:
            self._its_session.disconnect()

    def _watch_now(self) -> None:
        self._watching = None
        if self._tails is not None:
            self._tails.set_streams([StreamId.parse(stream) for stream in self.machine.cuts.held])
            self._surely(q.EndsWatched())

    def _tail_moved(self, stream: StreamId, next: int | None) -> None:
        self._surely(q.EndMoved(str(stream), next))

    # ------------------------------------------------------------ what is found out

    async def _find_out(self, find: q.Find) -> None:
        try:
            answer = await self._found(find.what)
        except StreamleaseError as error:
            self.step(q.NotFoundOut(find.number, error))
        else:
            self.step(q.FoundOut(find.number, answer))

    async def _found(self, what: q.Wanted) -> Any:
        client = await self._connected()
        streams, cuts = AsyncLog(client.redis), self.machine.cuts
        match what:
            case q.Arrival():
                self._agent = await client.agent()
                self.agent_id = self._agent.id
                return await client.groups.arrive(self.options.subscription)
            case q.GroupView():
                return await self._view(client)
            case q.MeanSizes():
                states = await streams.states(map(StreamId.parse, what.streams))
                return {str(stream): state.mean_bytes for stream, state in states.items()}
            case q.WrittenLate():
                return await runs.is_late(client.redis, cuts.group, cuts.session)
            case q.Floors():
                states = await streams.states(map(StreamId.parse, what.streams))
                return {str(stream): state.floor for stream, state in states.items()}
            case q.Untold():
                gone = await runs.untold(client.redis, cuts.group, cuts.session, what.gone)
                await runs.note_told(client.redis, cuts.group, cuts.session, gone)
                return gone
            case _:
                assert_never(what)

    async def _connected(self) -> Client:
        """Connect, and declare the group unless it is declared already."""
        if self.client is None:
            options = self.options
            if options.metrics_port is not None:
                metrics.serve_metrics(options.metrics_port, "0.0.0.0")
            client = self._connect()
            await client.__aenter__()
            try:
                await declare(client.groups, AsyncLog(client.redis), options)
            except BaseException:
                await client.close()
                raise
            self.client = client
        return self.client

    async def _view(self, client: Client) -> dict[str, Any] | None:
        """The group as its leader describes it; None if it does not."""
        try:
            return await client.command(self.options.subscription, DescribeGroup(), seconds=ANSWER_SECONDS)
        except StreamleaseError as error:
            log.warning("%s", error)
            return None

    async def _go_behind(self, effect: q.GoBehind) -> None:
        assert self.client is not None
        try:
            lost = await AsyncLog(self.client.redis).never_again(StreamId.parse(effect.stream), effect.read)
        except StreamleaseError as error:
            self.step(q.WentBehind(effect.stream, error))
            return
        if lost is not None:
            log.warning(
                "stream %s ended at offset %d, but was read up to %d: Redis lost acknowledged messages",
                effect.stream, lost, effect.read, extra={"stream": effect.stream},
            )  # fmt: skip
        self.step(q.WentBehind(effect.stream))

    # ------------------------------------------------------------ handler of the session

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """A stream came."""
        self.step(q.StreamCame(slot, grant))

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """Cuts are acknowledged on their own."""

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """A query fails as a whole, by itself: it reports no single message."""

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """A stream is asked back."""
        self.step(revoking)

    def gone(self, slot: int, gone: StreamGone) -> None:
        """A stream is the borrower's no more."""
        self.step(gone)

    def received(self, message: LeaderToSession | CutRead) -> None:
        """Answers about cuts, and reports of tasks."""
        self.step(q.Heard(message))

    def failed(self, error: StreamleaseError) -> None:
        """The session is over."""
        self.step(q.SessionOver(error))

    def ended(self) -> None:
        """The session has left."""
        self.step(q.SessionOver())
