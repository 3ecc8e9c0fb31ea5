"""The loop around a query's machine: it delivers, and decides nothing.

Everything happens on the event loop in which its methods are called, so pings, grants and revocations are
answered while Spark is busy with a micro-batch. What the machine wants to know is found out by tasks of their
own; the clock is that of the event loop, so on one of virtual time it runs as it does in production.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, assert_never

from streamlease.agent.membership import metrics
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import InvalidInput, StreamleaseError
from streamlease.spark.core import query_events as q
from streamlease.spark.core.query_machine import QueryMachine
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.borrowing import Borrowing
from streamlease.spark.query.finding import Finder
from streamlease.streams.tasks import Supervisor, task_failed

log = logging.getLogger(__name__)


class QueryLoop:
    """Steps the machine of one query, and carries its effects out."""

    def __init__(self, options: SourceOptions, machine: QueryMachine, finder: Finder) -> None:
        self.machine = machine
        self.subscription = str(options.subscription)
        self.borrowing: Borrowing | None = None
        """None until the query has begun."""
        self._options = options
        self._finder = finder
        self._callers: deque[asyncio.Future[Any]] = deque()
        """Who waits for an answer, the oldest first: one call of Spark's, and one that stops the query."""
        self._events: deque[q.Event] = deque()
        self._is_stepping = False
        self._around = q.Surroundings()
        self._due: asyncio.TimerHandle | None = None
        self._tasks = Supervisor(f"query of {self.subscription}", lambda _, error: self._broken(error))

    async def call(self, call: q.Call) -> Any:
        """Wait for the answer to a call; Spark makes one at a time, and may stop in the middle of one."""
        if self._callers and not isinstance(call, q.StopQuery):
            raise InvalidInput("the query was asked while it had not answered: wait for the answer")
        self.begin_log()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._callers.append(answer)
        try:
            self.step(call)
            return await answer
        except asyncio.CancelledError:
            if answer in self._callers:
                self.step(q.GivenUp())
            raise
        finally:
            if answer in self._callers:
                self._callers.remove(answer)

    def begin_log(self) -> None:
        """What is logged in this task from now on is about this query."""
        logs.begin(group=self.machine.config.group, borrower=self.machine.cuts.who.session)

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
        self._ring_at(self.machine.due)

    def surely(self, event: q.Event) -> None:
        """The same, and it raises nothing: a defect ends this query, and nothing else of the process."""
        try:
            self.step(event)
        except Exception as error:
            log.exception("%s: %s", self.subscription, type(event).__name__)
            self._broken(task_failed(self.subscription, type(event).__name__, error))

    async def close(self) -> None:
        """Stop what goes on by itself."""
        self._ring_at(None)
        if self.borrowing is not None:
            self.borrowing.close()
        await self._tasks.close()

    def holding(self) -> tuple[int | None, int | None]:
        """Streams held, and messages of them that no cut took through the sink; from any thread."""
        return self.machine.holding()

    def _ring_at(self, when: float | None) -> None:
        """Let the machine take a moment at this time (s) of the loop's clock only; None: at none."""
        if self._due is not None and self._due.when() != when:
            self._due.cancel()
            self._due = None
        if self._due is None and when is not None:
            self._due = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        self._due = None
        self.surely(q.Moment())

    def _step(self, event: q.Event) -> None:
        for effect in self.machine.step(event, asyncio.get_running_loop().time()):
            self._carry_out(effect)

    def _look_around(self) -> None:
        """Tell the machine what is seen of the leader and of Redis, if that is not what it knows."""
        around = self._around if self.borrowing is None else self.borrowing.around()
        if around != self._around:
            self._around = around
            self._step(around)

    def _broken(self, error: StreamleaseError) -> None:
        """Something of the query ended by a defect, and the query with it."""
        if self.borrowing is not None and not self.borrowing.session.over:
            self.borrowing.session.end(error)
        else:
            self.step(q.SessionOver(error))

    def _carry_out(self, effect: q.Effect) -> None:
        match effect:
            case q.Reply():
                if not (waiting := self._callers.popleft()).done():
                    waiting.set_result(effect.answer)
            case q.Refuse():
                if not (waiting := self._callers.popleft()).done():
                    waiting.set_exception(effect.error)
            case q.Find():
                self._tasks.start("finding out", self._find_out(effect))
            case q.OpenSession():
                self._open(effect)
            case q.Tell():
                self._borrowing.session.post(effect.message)
            case q.ReportProgress():
                self._borrowing.session.slots[effect.slot].step(effect.progress)
            case q.Attest():
                self._borrowing.attest(effect)
            case q.WatchEnds():
                self._borrowing.watch_ends()
            case q.GoBehind():
                self._tasks.start("looking for lost messages", self._go_behind(effect))
            case q.Say():
                about = {"stream": effect.stream} if effect.stream else None
                log.log(effect.level, "%s", effect.text, extra=about)
            case q.CountMessages():
                metrics.READ.labels(self.subscription).inc(effect.read)
                metrics.COMMITTED.labels(self.subscription).inc(effect.committed)
            case q.LeaveGroup():
                if self._borrowing.session.over:
                    self.step(q.SessionOver())
                else:
                    self._borrowing.session.disconnect()
            case q.EventRefused():
                log.debug("%s: %s came while it is %s", self.subscription, effect.event, effect.state)
            case _:
                assert_never(effect)

    @property
    def _borrowing(self) -> Borrowing:
        assert self.borrowing is not None
        return self.borrowing

    def _open(self, effect: q.OpenSession) -> None:
        client, agent = self._finder.client, self._finder.agent
        assert client is not None
        assert agent is not None
        held = self.machine.cuts.held
        self.borrowing = Borrowing(client, agent, self._options, effect, held, self.step, self.surely)
        metrics.watch(self)
        self.borrowing.start()

    async def _find_out(self, find: q.Find) -> None:
        try:
            answer = await self._finder.found(find.what)
        except StreamleaseError as error:
            self.step(q.NotFoundOut(find.number, error))
        else:
            self.step(q.FoundOut(find.number, answer))

    async def _go_behind(self, effect: q.GoBehind) -> None:
        try:
            await self._finder.go_behind(effect.stream, effect.read)
        except StreamleaseError as error:
            self.step(q.WentBehind(effect.stream, error))
        else:
            self.step(q.WentBehind(effect.stream))
