"""A query's session, beside the stream reader on Spark's driver: cuts, leases, progress.

Spark calls from its own thread; everything else happens on a private event loop, so that pings, grants and
revocations are answered while Spark is busy with a micro-batch. The rules:

* A micro-batch is one cut. `next_cut` has the leader fix it durably before Spark hears of it.
* Being asked for what follows cut n proves that cut n went through the sink: it is finished then. (Spark's
  own ``commit`` comes later or, for a quiet source, never.)
  The leader is told so until it confirms.
* A stream that is being revoked leaves once no open or proposed cut holds it. A restarted query asks first
  whether the process before it had a cut fixed that its checkpoint does not name: that one comes next.
* A restarted query takes up its unfinished cut: see `spark.resuming`. Of one that went through the sink it
  attests that, for streams in which a leader that had given the query up still has it pinned.
* A query that stops while a cut is open falls silent instead of giving its streams back: only its checkpoint
  knows what became of the cut, so it has until its session timeout to return.
* Where Spark tracks progress asynchronously, the checkpoint is behind what went through the sink. That is
  seen (`StreamReader.commit`) and noted, and a restarted query goes on behind the cuts that the leader knows
  to be finished. Otherwise a checkpoint that lacks one is an old copy, and refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from streamlease.agent import metrics
from streamlease.agent.agent import Agent
from streamlease.agent.client import Client
from streamlease.agent.loop import LoopThread
from streamlease.agent.session import Session, SessionConfig
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.life import BorrowerConfig
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId, random_token
from streamlease.protocol.messages import (
    CutFinished,
    CutFixed,
    CutRead,
    CutResumed,
    LeaderToSession,
)
from streamlease.registry.runs import is_late, note_late
from streamlease.spark.core.checkpoint import CutOffset, SlotRanges
from streamlease.spark.core.cuts import QueryCuts, older_checkpoint
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_progress import report
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.available import AvailableNow
from streamlease.spark.query.losses import Losses
from streamlease.spark.query.outage import Leaderless, Outage, unled
from streamlease.spark.query.questions import ANSWER_SECONDS, RESEND_SECONDS, Questions
from streamlease.spark.query.resuming import RESUME_SECONDS, Resuming
from streamlease.spark.query.starting import declare
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.tails import Tails

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.005
NEWS_SECONDS = 0.05
"""How long `next_cut` waits for news when there is none."""

LEAVE_SECONDS = 5.0
"""How long a query that stops waits until its last cut is confirmed: longer than a leader's ttl."""

_Result = TypeVar("_Result")


class QuerySession:
    """The handler of a query's session; public methods are called from Spark's thread and wait."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.session_id = ""
        self._begun = ""
        """The session that this process has begun: what goes on from a checkpoint is another one."""
        self._thread = LoopThread("streamlease-query")
        self._client: Client | None = None
        self._session: Session | None = None
        self._tails: Tails | None = None
        self._losses: Losses | None = None
        self._agent_id = ""
        self.cuts = QueryCuts(options.subscription.id, self._progressed)
        self._confirm_at = 0.0
        self._confirmed = asyncio.Event()
        self._questions: Questions | None = None
        self._news = asyncio.Event()
        self._watching = False
        """Whether the set of streams that are watched is about to be made anew."""
        self._state = 0
        """Goes up with all that may change what waits and what is reported: idle calls cost nothing."""
        self._idle_at = -1
        """The state in which nothing waited."""
        self._reported: tuple[tuple[int, bool, str | None], dict[str, Any]] = ((-1, False, None), {})
        self._available = AvailableNow(options, self.cuts, self._view, self._unled_because)
        self._is_late = False
        """Whether it is noted that the checkpoint is behind the query's progress."""
        self._error: StreamleaseError | None = None
        self._left = asyncio.Event()
        self._agent: Agent | None = None
        self._leaderless = Leaderless(self.subscription)
        self._outage = Outage(options.redis_timeout_ms / 1000)
        self._fixed_at = -math.inf
        """When the last cut was fixed, by the clock of the loop."""
        self._rows_read = 0
        self._attempts: dict[tuple[int, int], int] = {}

    # ------------------------------------------------------------ from Spark's thread

    def initial(self) -> CutOffset:
        """The offset of a query that has no checkpoint; the same at every call."""
        if not self._begun:
            self._begun = f"q-{random_token()}"
        return CutOffset(self.options.subscription.id, self._begun, 0)

    def next_cut(self, start: CutOffset, limits: Limits) -> CutOffset:
        """The cut that follows `start`, fixed durably, or `start` itself if there is nothing new.

        Raises:
            Fenced: another process runs the same query.
            StoreUnavailable: Redis did not answer for ``redis.timeout``, or not at all at the first call.
            Unsupported, UnknownSpace, InvalidOption, HistoryTruncated: at the first call.
        """
        return self._call(self._next_cut(start, limits))

    def ranges_of(self, cut: CutOffset) -> SlotRanges:
        """What is to be read for `cut`: after a restart, only what is still this query's."""
        return self._call(self._ranges_of(cut))

    def prepare_available_now(self) -> None:
        """From now on, offer nothing beyond what is there now."""
        self._call(self._prepare_available_now())

    def prepare_once(self) -> None:
        """The same, but there will be one cut only, so it holds all of that."""
        if self._available.targets is None:
            self._available.warn()
            self.prepare_available_now()
            self._available.has_one_cut = True

    def note_late(self) -> None:
        """Spark writes the checkpoint later than micro-batches end, so a restart may find an older one.

        Raises:
            StoreUnavailable, StoreRefused: that could not be noted.
        """
        if not self._is_late:
            self._call(self._note_late())

    def report(self) -> dict[str, Any]:
        """What `StreamingQueryProgress` shows as the latest offset: lag, and what the query holds."""
        return self._call(self._report())

    def stop(self) -> None:
        """Give all streams back, unless a cut is open, and end the loop. A second call does nothing."""
        metrics.forget(self)
        if self._client is not None:
            self._call(self._leave())
            self._client = None
        self._thread.stop()

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do `work` on the loop; what is logged meanwhile is about this query."""

        async def known() -> _Result:
            logs.begin(group=self.options.subscription.id, borrower=self.session_id)
            return await work

        return self._thread.call(known())

    @property
    def subscription(self) -> str:
        """What the query consumes."""
        return str(self.options.subscription)

    def holding(self) -> tuple[int | None, int | None]:
        """Streams held, and messages of them that no cut took through the sink; from any thread.

        None where it is not known: without a leader, what the query has may be another's already.
        """
        return self.cuts.streams.counted() if self._is_led else (None, None)

    @property
    def agent_id(self) -> str:
        """Mailbox of the session's agent, for the reports of tasks."""
        return self._agent_id

    # ------------------------------------------------------------ handler, on the loop

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """Hold the stream; go on if it never left the session."""
        passed = self.cuts.granted(slot, grant)
        if self._losses is not None:
            self._losses.granted(grant)
            if passed is not None:
                self._losses.went_on({grant.stream: passed})
        self._state += 1
        self._watch()

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """Cuts are acknowledged on their own."""

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """A query fails as a whole, by itself: it reports no single message."""

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """Let the stream go as soon as no cut holds it."""
        self.cuts.revoking(revoking)
        self._state += 1

    def gone(self, slot: int, gone: StreamGone) -> None:
        """Forget the stream, or keep it in limbo after its borrower's end."""
        self._state += 1
        if self.cuts.gone(gone):
            self._watch()

    def received(self, message: LeaderToSession | CutRead) -> None:
        """Answers about cuts, and reports of tasks."""
        self._state += 1
        match message:
            case CutFixed():
                self._confirm(message.finished)
                if self.cuts.is_meant(message):
                    went_on = self.cuts.believe(message.progress)
                    if self._losses is not None:
                        self._losses.went_on(went_on)
                    self._answered(message)
            case CutFinished():
                self._confirm(message.finished)
                went_on = self.cuts.believe(message.progress)
                if self._losses is not None:
                    self._losses.went_on(went_on)
                self._answered(message)
            case CutResumed():
                self._answered(message)
            case CutRead():
                self._task_read(message)

    def failed(self, error: StreamleaseError) -> None:
        """The session is over."""
        self._error = error
        self._left.set()
        self._news.set()

    def ended(self) -> None:
        """The session has left."""
        self._left.set()

    # ------------------------------------------------------------ on the loop

    async def _connect(self) -> Client:
        """Connect, and declare the group unless it is declared already."""
        if self._client is None:
            options = self.options
            if options.metrics_port is not None:
                metrics.serve_metrics(options.metrics_port, "0.0.0.0")
            client = Client(options.redis, embedded=options.embedded_leader)
            await client.__aenter__()
            try:
                await declare(client.groups, AsyncLog(client.redis), options)
            except BaseException:
                await client.close()
                raise
            self._client = client
        return self._client

    async def _start(self, cut: CutOffset, *, finished: bool) -> tuple[Session, Questions]:
        """Begin to borrow under the identity in the checkpoint's newest `cut`."""
        if self._session is not None and self._questions is not None:
            return self._session, self._questions
        options = self.options
        client = await self._connect()
        agent = await client.agent()
        self.session_id = session_id = cut.session
        self._agent, self._agent_id = agent, agent.id
        self.cuts.session = session_id
        self.cuts.arrival = await client.groups.arrive(options.subscription)
        self._tails = Tails(client.redis, on_change=self._tail_moved)
        self._losses = Losses(self.cuts, client.redis, self._tails)
        if finished:
            self._losses.begin(cut)
        self._tails.start()
        self._session = Session(
            agent,
            SessionConfig(
                options.subscription,
                session_id,
                tuple(f"{session_id}/{slot}" for slot in range(options.slots)),
                self.cuts.arrival,
                BorrowerConfig(session_timeout=options.session_timeout_ms),
            ),
            self,
        )
        self._questions = Questions(client, options.subscription, self._session, self._raise_error)
        metrics.watch(self)
        self._session.saw_term(cut.term)
        self._attest(self._session, cut, finished=finished)
        self._session.start()
        agent.add_ticker(self._tick)
        return self._session, self._questions

    @staticmethod
    def _attest(session: Session, cut: CutOffset, *, finished: bool) -> None:
        """Keep for a leader that has lost it how far the cut's streams are consumed."""
        session.attested.add_all(
            (slot, stream, epoch, end if finished else start)
            for stream, start, end, epoch, slot in zip(*cut.ranges.columns, strict=True)
        )

    async def _next_cut(self, start: CutOffset, limits: Limits) -> CutOffset:
        available = self._available
        if available.targets is None:
            return await self._try_next_cut(start, limits)
        limits = replace(limits, min_rows=None)  # there will not be more
        seconds, may_have_none = available.ask(fresh=not start.cut and start.session == self._begun)
        while available.waited < seconds:
            cut = await self._try_next_cut(start, limits)
            if cut != start or await available.is_exhausted():
                return cut
        if may_have_none:
            return start
        raise await available.unsettled()

    async def _view(self) -> dict[str, Any] | None:
        """The group as its leader describes it, once all borrowers are connected to it."""
        if self._questions is None or not self._questions.connected:
            await self._wait_for_news()
            return None
        return await self._questions.view()

    async def _try_next_cut(self, start: CutOffset, limits: Limits) -> CutOffset:
        session, questions = await self._start(start, finished=True)
        self._raise_error()
        cuts = self.cuts
        # A process that has come no further than cut 0 may have fixed cut 1, too, or be an old copy.
        if start.cut > cuts.finished or not (cuts.settled or start.session == self._begun):
            if not await self._finish(start, session, questions):
                return start
            if cuts.open is not None:
                return cuts.open
        cuts.settle()
        if cuts.proposed is None and not await self._propose(limits):
            await self._wait_for_news()
            if cuts.proposed is None:
                await self._propose(limits)
        if cuts.proposed is None:
            return start
        answer = await questions.ask(cuts.proposed, CutFixed, ANSWER_SECONDS)
        if answer is None:
            return start
        self._fixed_at = asyncio.get_running_loop().time()
        self._state += 1
        if cuts.is_older(answer):
            went_on = await self._go_on_behind(start, answer.finished, questions)
            return cuts.open if went_on and cuts.open is not None else start
        cut = cuts.fixed(answer) or start
        if self._losses is not None:
            await self._losses.tell(fail=self.options.fail_on_data_loss)
        return cut

    async def _propose(self, limits: Limits) -> bool:
        """Whether there is something to make a cut of; it is proposed then."""
        if self._idle_at == self._state:
            return False
        waiting = self.cuts.streams.waiting(self._available.targets)
        if not waiting and not self.cuts.streams.pinned_ends():
            self._idle_at = self._state
            return False
        if self._available.has_one_cut and not await self._available.is_at_hand():
            return False
        means: dict[str, float] = {}
        if limits.max_bytes is not None and self._client is not None:
            wanted = [StreamId.parse(one) for one in {**waiting, **self.cuts.streams.pinned_ends()}]
            for stream, state in (await AsyncLog(self._client.redis).states(wanted)).items():
                means[str(stream)] = state.mean_bytes
        since = asyncio.get_running_loop().time() - self._fixed_at
        milliseconds = limits.max_delay_ms if since > limits.max_delay_ms / 1000 else int(since * 1000)
        return self.cuts.propose(waiting, limits, milliseconds, means) is not None

    async def _finish(self, done: CutOffset, session: Session, questions: Questions) -> bool:
        """The cut went through the sink; whether all who must know it do."""
        message, following = self.cuts.finish_cut(done, session.term), None
        if self.cuts.is_open(done):
            session.post(message)
            self._confirmed.clear()
            self._confirm_at = asyncio.get_running_loop().time() + RESEND_SECONDS
            metrics.COMMITTED.labels(self.subscription).inc(done.messages)
        else:
            # Fixed by an earlier process: what is committed, and what else it fixed, only the leader knows.
            answer = await questions.ask(message, CutFinished, ANSWER_SECONDS)
            if answer is None:
                return False
            if answer.finished > done.cut:
                return await self._go_on_behind(done, answer.finished, questions)
            following = await questions.ask(self.cuts.ask_for_next(done), CutResumed, ANSWER_SECONDS)
            if following is None:
                return False
        self.cuts.finish(done, following)
        self._state += 1
        self._attest(session, self.cuts.went_through or done, finished=True)
        self._attempts.clear()
        return True

    async def _go_on_behind(self, done: CutOffset, finished: int, questions: Questions) -> bool:
        """The leader knows of finished cuts behind `done`, where the checkpoint ends; whether all is settled.

        They went through the sink. Where Spark writes the checkpoint later, the query goes on behind them.

        Raises:
            Fenced: Spark does not, so the checkpoint is an old copy.
        """
        client = await self._connect()
        if not await is_late(client.redis, self.cuts.group, self.session_id):
            raise older_checkpoint(done.session, done.cut + 1, finished)
        last = CutOffset(self.cuts.group, self.session_id, finished, questions.term)
        following = await questions.ask(self.cuts.ask_for_next(last), CutResumed, ANSWER_SECONDS)
        if following is None:
            return False
        log.info("the checkpoint ends with cut %d: the query goes on behind cut %d", done.cut, finished)
        self.cuts.proposed = None
        self.cuts.finish(last, following)
        if self._losses is not None:
            self._losses.forget()
        self._state += 1
        self._attempts.clear()
        return True

    async def _went_through(self, cut: CutOffset, questions: Questions) -> bool:
        """Whether `cut` is done though the checkpoint does not say so; only where that is written later."""
        client = await self._connect()
        if not await is_late(client.redis, self.cuts.group, self.session_id):
            return False
        before = CutOffset(self.cuts.group, self.session_id, cut.cut - 1)
        question = self.cuts.finish_cut(before, questions.term)
        answer = await questions.ask(question, CutFinished, RESUME_SECONDS)
        if answer is None:
            raise unled(self.subscription, RESUME_SECONDS)
        return answer.finished >= cut.cut

    async def _note_late(self) -> None:
        client = await self._connect()
        give_up = asyncio.get_running_loop().time() + self.options.redis_timeout_ms / 1000
        while not self._is_late:
            try:
                await note_late(client.redis, self.cuts.group, self.session_id)
                self._is_late = True
            except (StoreUnavailable, Indefinite):
                if asyncio.get_running_loop().time() >= give_up:
                    raise
                await self._wait_for_news()

    def _confirm(self, finished: int) -> None:
        """The leader knows that all cuts up to `finished` are."""
        if self.cuts.confirm(finished):
            self._confirmed.set()

    def _tick(self, now: int) -> None:
        """Tell the leader again what it has not confirmed, and look for what Redis has lost."""
        if self._losses is not None:
            self._losses.tick()
        time = asyncio.get_running_loop().time()
        self._leaderless.look(self._unled_because(), time)
        done = self.cuts.went_through
        if self.cuts.unconfirmed and done and self._session is not None and time >= self._confirm_at:
            self._confirm_at = time + RESEND_SECONDS
            self._session.post(self.cuts.finish_cut(done, self._session.term))

    def _suspect(self, streams: Iterable[str]) -> None:
        """See whether these streams end below what was read of them."""
        if self._losses is not None:
            self._losses.suspect(streams)

    def _tail_moved(self, stream: StreamId, next: int | None) -> None:
        self.cuts.streams.ends_at(str(stream), next)
        self._state += 1
        self._news.set()

    def _answered(self, message: LeaderToSession) -> None:
        if self._questions is not None:
            self._questions.answer(message)

    async def _wait_for_news(self) -> None:
        """Wait a moment, or until something has happened."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEWS_SECONDS):
                await self._news.wait()
        self._raise_error()

    async def _ranges_of(self, cut: CutOffset) -> SlotRanges:
        if not cut.cut:
            return cut.ranges  # of the first batch of a query that had nothing to read yet
        if self.cuts.open is not None and self.cuts.is_open(cut):
            return self.cuts.open.ranges
        _, questions = await self._start(cut, finished=False)
        if await self._went_through(cut, questions):
            return SlotRanges.of(())
        resuming = Resuming(self.cuts, questions, self.subscription, self._wait_for_news, self._view)
        ranges = await resuming.ranges_of(cut)
        self._suspect(ranges.streams)
        self._state += 1
        return ranges

    async def _prepare_available_now(self) -> None:
        client = await self._connect()
        ends = await client.next_offsets(await client.groups.streams(self.options.subscription))
        self._available.targets = {str(stream): next for stream, next in ends.items()}
        self._state += 1

    @property
    def _is_led(self) -> bool:
        return self._session is not None and self._session.connected

    def _unled_because(self) -> str | None:
        """Why no leader answers, as far as it is known; None if one does."""
        return None if self._is_led or self._agent is None else self._agent.trouble(self.cuts.group)

    def _error_shown(self) -> str | None:
        if self._tails is not None and self._tails.error is not None:
            return str(self._tails.error)
        cause = self._unled_because()
        return None if cause is None else self._leaderless.error(cause)

    async def _report(self) -> dict[str, Any]:
        state = self._state, self._is_led, self._error_shown()
        if self._reported[0] != state:
            self._reported = state, report(self.cuts, known=state[1], error=state[2])
        return self._reported[1]

    async def _leave(self) -> None:
        assert self._client is not None
        if self._tails is not None and self._losses is not None:
            await self._losses.close()
            await self._tails.close()
        if self._session is not None and not self._session.over and await self._is_settled():
            self._session.disconnect()
            await self._left.wait()
        await self._client.close()

    async def _is_settled(self) -> bool:
        """Whether the leader knows of everything that went through the sink, and nothing else may have."""
        if self.cuts.open is not None or not self.cuts.settled:
            return False
        if self.cuts.unconfirmed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._confirmed.wait()
        return not self.cuts.unconfirmed

    # ------------------------------------------------------------ small parts

    def _progressed(self, slot: int, event: Progressed) -> None:
        if self._session is not None:
            self._session.progressed(slot, event)

    def _watch(self) -> None:
        """Watch the streams held; many grants in a row make one new set of them."""
        if not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_later(WATCH_SECONDS, self._watch_now)
        self._news.set()

    def _watch_now(self) -> None:
        self._watching = False
        if self._tails is not None:
            self._tails.set_streams([StreamId.parse(stream) for stream in self.cuts.held])
            self.cuts.streams.forget_ends()
            self._state += 1
            self._news.set()

    def _task_read(self, message: CutRead) -> None:
        key = (message.cut, message.slot)
        if message.attempt >= self._attempts.get(key, -1):
            self._attempts[key] = message.attempt
            self._rows_read += message.messages
            metrics.READ.labels(self.subscription).inc(message.messages)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        if self._tails is not None:
            self._outage.look(self._tails.error, asyncio.get_running_loop().time())
