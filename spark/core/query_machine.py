"""The machine of a query beside Spark's driver: events in, effects out; no clock, no randomness, no I/O.

A micro-batch is one cut, which the leader fixes durably before Spark hears of it. The rules:

* Being asked for what follows cut n proves that cut n went through the sink: it is finished then. (Spark's
  own ``commit`` comes later or, for a quiet source, never.) The leader is told so until it confirms.
* A stream that is being revoked leaves once no open or proposed cut holds it. A restarted query asks first
  whether the process before it had a cut fixed that its checkpoint does not name: that one comes next.
* A restarted query takes up its unfinished cut. Of one that went through the sink it attests that, for
  streams in which a leader that had given the query up still has it pinned.
* Where Spark tracks progress asynchronously, the checkpoint is behind what went through the sink. That is
  noted, and a restarted query goes on behind the cuts that the leader knows to be finished. Otherwise a
  checkpoint that lacks one is an old copy, and refused.

Where the query is, and every legal move of it, is in `query_states`. It has parts that own their state:
`QueryCuts` with the consumer's book; `Calls` and the conversations with Spark and the leader, `NextCuts`
(with `Finishing`), `Resuming` and `Stopping`, which share a `Desk`; `Losses`, `AvailableNow`, `Outage` and
`QueryReport`. This module says which part an event is for. Times are seconds of any clock that does not run
backwards.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, assert_never

from streamlease.borrower.events import Progressed, StreamGone, StreamRevoking
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.messages import CutFinished, CutFixed, CutRead, CutResumed, LeaderToSession
from streamlease.spark.core import query_events as q
from streamlease.spark.core.available import AvailableNow
from streamlease.spark.core.conversations.calls import Calls
from streamlease.spark.core.conversations.epoch_cut import EpochCut
from streamlease.spark.core.conversations.finishing import Finishing
from streamlease.spark.core.conversations.next_cut import NextCuts
from streamlease.spark.core.conversations.query_desk import Desk
from streamlease.spark.core.conversations.resuming import Resuming
from streamlease.spark.core.conversations.stopping import Stopping
from streamlease.spark.core.losses import Losses
from streamlease.spark.core.outage import Leaderless, Outage
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.query_report import QueryReport
from streamlease.spark.core.query_states import CALLED, QueryState

_S = QueryState


@dataclass(frozen=True, slots=True)
class QueryConfig:
    """What a query is."""

    group: str
    subscription: str
    """What it consumes, for people."""
    fresh: str
    """The session of a query that begins without a checkpoint, if that is this process."""
    slots: int = 2
    session_timeout_ms: int = 10_000
    redis_timeout: float = 60.0
    """How long (s) Redis may be away."""
    fail_on_data_loss: bool = True
    whole_epochs: bool = False
    """Whether each cut is to be whole epochs."""


class QueryMachine:
    """One query; only `step` changes it."""

    def __init__(self, config: QueryConfig) -> None:
        self.config = config
        self.cuts = QueryCuts(config.group, self._report_progress, whole=config.whole_epochs)
        self.available = AvailableNow(config.subscription, config.session_timeout_ms, self.cuts)
        self.refused = 0
        """Events that no transition allows, and late answers."""
        self._desk = Desk()
        self._losses = Losses(self.cuts)
        self._finishing = Finishing(self._desk, self.cuts, self._losses, fresh=config.fresh)
        self._stopping = Stopping(self._desk, self.cuts)
        self._outage = Outage(config.redis_timeout)
        self._epochs = epochs = EpochCut(self._desk, self.cuts) if config.whole_epochs else None
        self._calls = Calls(
            self._desk,
            self.cuts,
            self._losses,
            self._outage,
            NextCuts(
                self._desk,
                self.cuts,
                self._losses,
                self.available,
                self._finishing,
                fresh=config.fresh,
                fail_on_data_loss=config.fail_on_data_loss,
                epochs=epochs,
            ),
            Resuming(
                self._desk, self.cuts, self._losses, config.subscription, whole_epochs=config.whole_epochs
            ),
            config.subscription,
        )
        self._leaderless = Leaderless(config.subscription)
        self._report = QueryReport(self._desk, self.cuts, self._leaderless, epochs)
        self._attempts: dict[tuple[int, int], int] = {}
        """Cut and slot -> the newest attempt whose report was counted."""

    # ------------------------------------------------------------ what is asked of it

    @property
    def state(self) -> QueryState:
        """Where it is."""
        return self._desk.state

    @property
    def is_led(self) -> bool:
        """Whether a leader says what the query holds."""
        return self._desk.around.connected

    @property
    def due(self) -> float | None:
        """When (s) the next `Moment` is needed at the latest; None: whenever."""
        desk, times = self._desk, list[float]()
        if desk.question is not None:
            times += [desk.question.again_at, desk.question.give_up]
        elif desk.state in (_S.LOOKING, _S.REGAINING, _S.LOSING, _S.CONFIRMING) and not desk.is_finding:
            times.append(desk.until if desk.news_at is None else desk.news_at)
        again_at = self._finishing.again_at
        if again_at is not None and desk.state not in (_S.FAILED, _S.ENDED):
            times.append(again_at)
        return min(times, default=None)

    def step(self, event: q.Event, now: float) -> list[q.Effect]:
        """Take one event at time `now` (s) and return what is to be done, in order."""
        desk = self._desk
        desk.now = max(now, desk.now)
        try:
            if not self._take(event):
                self.refused += 1
                desk.do(q.EventRefused(type(event).__name__, desk.state.value))
            if desk.state is _S.CONFIRMING:
                self._stopping.go_on()
            self._calls.go_on()
        except StreamleaseError as error:
            desk.refuse(error)
        return desk.taken()

    def report(self) -> dict[str, Any]:
        """What ``StreamingQueryProgress`` shows: ends, streams held, lag, rebalances, and what is wrong."""
        return self._report.shown()

    def boundary_of(self, cut: int) -> int | None:
        """The number of the boundary at which a cut of whole epochs ends; None: that is not known."""
        return None if self._epochs is None else self._epochs.boundary_of(cut)

    def holding(self) -> tuple[int | None, int | None]:
        """Streams held, and messages of them that no cut took through the sink; from any thread."""
        return self._report.holding()

    # ------------------------------------------------------------ events: False is "refused"

    def _take(self, event: q.Event) -> bool:
        if not isinstance(event, q.Moment | q.Surroundings):
            self._report.changed()
        match event:
            case q.BeginQuery() | q.NextCut() | q.ReadAgain():
                return self._calls.begin(event)
            case q.StopQuery():
                return self._stopping.begin(event)
            case q.GivenUp():
                return self._calls.given_up()
            case q.FoundOut():
                return self._calls.found(event)
            case q.NotFoundOut():
                if self._desk.found(event.number) is None:
                    return False
                raise event.error
            case q.Surroundings():
                self._desk.around = event
                self._outage.look(event.store_error, self._desk.now)
                return True
            case q.TargetsKnown():
                return self._targets_known(event)
            case q.SessionOver():
                return self._stopping.session_over() or self._calls.session_failed(event.error)
            case q.Moment():
                return self._moment(event)
            case _:
                if self.state in (_S.NEW, _S.STARTING, _S.ENDED) or not self._of_session(event):
                    return False
                if self._desk.news_at is None:
                    self._desk.news_at = self._desk.now
                return True

    def _of_session(
        self,
        event: q.StreamCame
        | StreamRevoking
        | StreamGone
        | q.Heard
        | q.EndMoved
        | q.EndsWatched
        | q.WentBehind,
    ) -> bool:
        match event:
            case q.StreamCame():
                passed = self.cuts.granted(event.slot, event.grant)
                self._losses.granted(event.grant)
                if passed is not None:
                    self._losses.went_on({event.grant.stream: passed})
                self._desk.do(q.WatchEnds())
            case StreamRevoking():
                return self.cuts.revoking(event)
            case StreamGone():
                if not self.cuts.gone(event):
                    return False
                self._desk.do(q.WatchEnds())
            case q.Heard():
                return self._heard(event.message)
            case q.EndMoved():
                self.cuts.unread.ends_at(event.stream, event.next)
            case q.EndsWatched():
                self.cuts.unread.forget_ends()
            case q.WentBehind():
                self._losses.went_behind(event.stream, done=event.error is None)
                if event.error is not None:
                    self._desk.say(logging.WARNING, str(event.error), event.stream)
            case _:
                assert_never(event)
        return True

    def _heard(self, message: LeaderToSession | CutRead) -> bool:
        match message:
            case CutRead():
                self._count(message)
                return True
            case CutFixed():
                self.cuts.finished.confirm(message.finished)
                if self.cuts.proposed.is_meant(message):
                    self._losses.went_on(self.cuts.believe(message.progress))
            case CutFinished():
                self.cuts.finished.confirm(message.finished)
                self._losses.went_on(self.cuts.believe(message.progress))
            case CutResumed():
                pass
        # One that confirms counts in any case; all else that nobody has asked for is late.
        return self._calls.answered(message) or isinstance(message, CutFinished)

    def _count(self, message: CutRead) -> None:
        """Count what a task has read, but not the late report of an attempt that another one followed."""
        if any(cut < message.cut for cut, _ in self._attempts):
            self._attempts = {key: one for key, one in self._attempts.items() if key[0] >= message.cut}
        key = (message.cut, message.slot)
        if message.attempt >= self._attempts.get(key, -1):
            self._attempts[key] = message.attempt
            self._desk.do(q.CountMessages(read=message.messages))

    def _targets_known(self, event: q.TargetsKnown) -> bool:
        if self.state not in (_S.NEW, _S.SERVING):
            return False
        self.available.targets = event.targets
        if event.in_one_cut:
            self.available.has_one_cut = True
            self._desk.say(logging.WARNING, self.available.cost_of_once())
        return True

    def _moment(self, moment: q.Moment) -> bool:
        self._desk.news_at = None
        self._losses.suspect(moment.lowered)
        if self.state not in (_S.SERVING, _S.CONFIRMING, *CALLED):
            return True
        desk = self._desk
        for stream, read in self._losses.found().items():
            desk.do(q.GoBehind(stream, read))
        said = self._leaderless.look(None if self.is_led else desk.around.trouble, desk.now)
        if said is not None:
            desk.say(logging.WARNING, said)
        self._finishing.tell_again()
        return True

    def _report_progress(self, slot: int, progress: Progressed) -> None:
        self._desk.do(q.ReportProgress(slot, progress))
