"""Drives one leader machine: feeds it events, writes its records, lets its messages out.

One group commit is outstanding at a time; events that arrive meanwhile make the next one. A message leaves
only after every record made before it is durable under the term. Whatever goes wrong with durability ends
the leader; what it had not written is forgotten with it, and the next leader begins from the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from streamlease.leader import metrics, traces
from streamlease.leader.core.events import (
    DeadLetter,
    Describe,
    Effect,
    Event,
    LeasesWritten,
    Persist,
    Received,
    Recovered,
    Send,
    StepDownWanted,
    Stop,
    StreamsListed,
    Tick,
)
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.leader.core.planning.strategies import strategy
from streamlease.leader.core.state.records import Record
from streamlease.leader.describing import Describer
from streamlease.leader.journal import Journal, TailLost, recover
from streamlease.leader.letters import LetterWriter
from streamlease.leader.stream_watch import StreamWatch
from streamlease.leader.waiting import Waiting
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import (
    Fenced,
    Indefinite,
    InvalidOption,
    NotDurable,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    Unsupported,
)
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import Message, Ping
from streamlease.protocol.seldom import Seldom
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.registry.groups import Declaration, Groups
from streamlease.registry.leadership import LeadershipConfig, LineageChanged
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.publish.traces import active_tracer
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import Known
from streamlease.streams.tasks import Supervisor, stop

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1

T = TypeVar("T")

Outbox = Callable[[str, Message], None]
"""Puts a message on its way to a mailbox; in order, without waiting."""


@dataclass(slots=True)
class Runner:
    """One leader, from the moment it holds the term to its end."""

    redis: AsyncRedis
    group: str
    host: str
    term: int
    outbox: Outbox
    config: LeaderConfig
    leadership: LeadershipConfig
    ready: Callable[[str], None] = lambda _: None
    """Called with its group once it knows the journal, and is to be told which streams there are."""
    lineage: str = ""
    """Of the data in which the term was issued."""
    groups: Groups | None = None
    """Those of the whole host; None: its own."""
    deaf: int = 0
    """For how long (ms) no leader had heard anybody when the term began."""
    over: bool = False
    """Whether the term is of another lineage than the data: then the next one may be claimed at once."""
    waiting: Waiting = field(init=False)
    """What it takes next."""
    renewed_at: int = 0
    declaration: Declaration | None = None
    ticking: bool = False
    """Whether a tick waits; one is enough."""
    lively: bool = True
    """Whether it needs ticks often: something is under way, or was at the last tick."""
    missing: bool = False
    """Whether a borrower is about to have been silent for too long, as of the last tick."""
    reason: str = ""
    damage: str = ""
    """What could not be read, if the term ended because of that."""
    _turn_since: int | None = None
    """When it began what it is at (ms), be it its recovery; None between two turns."""
    _fenced: asyncio.Future[str] | None = None
    _leading: _Leading | None = None
    _tracer: Tracer | None = field(default_factory=active_tracer)
    _describer: Describer = field(init=False)
    _letters: LetterWriter = field(init=False)
    _supervisor: Supervisor = field(init=False)
    _seldom: Seldom = field(default_factory=lambda: Seldom(log))

    def __post_init__(self) -> None:
        self.waiting = Waiting(self.group)
        self._supervisor = Supervisor(f"leader of {self.group}", lambda _, error: self.end(str(error)))
        self._describer = Describer(self.group, self.outbox, now_ms, self._supervisor)
        self._letters = LetterWriter(self.redis, self.host, self.post, self._supervisor)

    def post(self, event: Event) -> None:
        """Hand an event to the machine; it is taken in order, unless a later one takes its place."""
        self.waiting.put(event)

    def step_down(self) -> None:
        """Give leadership up in good order."""
        self.post(StepDownWanted())

    def tick(self, wall: int | None, heard: int | None) -> None:
        """Let time pass.

        Args:
            wall: the time of day in milliseconds since 1970, if known.
            heard: up to when (ms) all that was sent to this leader has been handed to `post`.
        """
        if self._leading is not None and not self.ticking:
            self.ticking = True
            self.post(Tick(wall, heard))

    def leave_lineage(self) -> None:
        """The data have another lineage than the term: the leader is to give it up."""
        self.over = True
        self.post(Tick())

    def end(self, reason: str) -> None:
        """Stop acting at once: the term is not held any more."""
        if self._fenced is not None and not self._fenced.done():
            self._fenced.set_result(reason)

    def facts(self) -> metrics.LedFacts | None:
        """What metrics show of what only a leader knows; None before it knows the group's declaration."""
        if self.declaration is None:
            return None
        machine = self._leading.machine if self._leading is not None else None
        return metrics.LedFacts(
            subscription=str(self.declaration.shared),
            term=self.term,
            moves=machine.durable.moves if machine is not None else None,
            rebalances=machine.plans.rebalances if machine is not None else None,
            inbox=len(self.waiting),
            turn_seconds=0.0 if self._turn_since is None else (now_ms() - self._turn_since) / 1000,
        )

    def to_measure(self) -> list[str]:
        """The streams whose ends the machine wants to know now and then; none for most strategies."""
        return self._leading.machine.plans.to_measure() if self._leading is not None else []

    async def run(self) -> str:
        """Lead until fenced, idle or told to stop; why it ended. The term must be held already."""
        logs.begin(group=self.group, term=self.term)
        self.renewed_at = now_ms()
        self._fenced = asyncio.get_running_loop().create_future()
        main: asyncio.Task[str] | None = None
        try:
            main = asyncio.create_task(self._lead(self.groups or Groups(self.redis)))
            await asyncio.wait([main, self._fenced], return_when=asyncio.FIRST_COMPLETED)
            if not main.done():
                metrics.FENCED.inc()
            self.reason = await (main if main.done() else self._fenced)
        except StreamleaseError as error:
            metrics.FENCED.inc(isinstance(error, Fenced))
            self.reason = str(error)
            self.damage = self.reason if isinstance(error, Unsupported) else ""
        finally:
            self._leading = None
            await stop([main] if main is not None else [])
            await self._supervisor.close()
            with contextlib.suppress(StreamleaseError):
                # Without an answer the record simply expires.
                await leadership.resign(self.redis, self.group, self.host, self.term)
        log.info("leader of %s ended in term %d: %s", self.group, self.term, self.reason)
        return self.reason

    async def _lead(self, groups: Groups) -> str:
        self._turn_since = now_ms()
        self.declaration = declaration = await groups.get(_subscription(self.group))
        if await groups.enlist(declaration.shared):
            log.warning("group %s was missing in the set of groups: retention did not see it", self.group)
        recovery = await recover(self.redis, self.group)
        journal = Journal(
            self.redis,
            self.group,
            self.host,
            self.term,
            recovery.last_id,
            await groups.durability(declaration.shared),
            self.lineage,
        )
        if recovery.state.term >= self.term:
            # The record was removed or lost, and the journal was not.
            self.over = await leadership.witness(self.redis, self.group, recovery.state.term + 1)
            return f"the journal is of term {recovery.state.term} already"
        machine = Leader(
            self.group,
            self.host,
            self.term,
            self.config,
            recovery.state,
            known_options(declaration),
            lineage=self.lineage,
        )
        log.info(
            "leader of %s began term %d with %d streams", self.group, self.term, len(machine.durable.streams)
        )
        # Before everything that waits: a borrower may have been faster than the recovery.
        reason = await self._carry_out(machine.step(Recovered(self.deaf), now_ms()), machine, journal)
        if reason is not None:
            return reason
        self._leading = _Leading(
            declaration, journal, machine, StreamWatch(self.redis, groups, declaration, journal)
        )
        self.ready(self.group)
        while True:
            self._turn_since = None
            events = await self.waiting.take()
            self._turn_since = now_ms()
            effects: list[Effect] = []
            ticked = stirred = False
            for left, event in zip(range(len(events) - 1, -1, -1), events, strict=True):
                ticked |= isinstance(event, Tick)
                stirred |= not (isinstance(event, Received) and isinstance(event.message, Ping))
                new = len(event.starts) if isinstance(event, StreamsListed) else 0
                with collector_at_rest(max(new, len(machine.durable.streams))):
                    effects.extend(machine.step(event, now_ms(), more=left > 0))
            reason = await self._carry_out(effects, machine, journal)
            if reason is None and self.over:
                reason = await self._give_up_term(machine, journal)
            if reason is not None:
                return reason
            if ticked:
                self.ticking = False
                self.missing = machine.peers.missed
            self.lively = machine.moving if ticked else self.lively or (stirred and bool(effects))
            if journal.wants_snapshot and (reason := await self._snapshot(machine, journal)) is not None:
                return reason

    async def _carry_out(self, effects: list[Effect], machine: Leader, journal: Journal) -> str | None:
        records: list[Record] = []
        for effect in effects:
            if isinstance(effect, Persist):
                records.extend(effect.records)
        further: dict[str, int] = {}
        if records:
            try:
                further = await self._persist(records, machine, journal)
            except LineageChanged:
                return await self._give_up_term(machine, journal)
        for effect in effects:
            match effect:
                case Send():
                    self.outbox(effect.mailbox, effect.message)
                case Describe():
                    self._describer.answer(effect, machine)
                case DeadLetter():
                    assert self.declaration is not None
                    self._letters.begin(effect, self.declaration)
                case Stop():
                    return effect.reason
                case Persist():
                    continue
        if further or machine.leases.begun.unwritten:
            written = LeasesWritten(further)
            return await self._carry_out(machine.step(written, now_ms()), machine, journal)
        return None

    async def _persist(self, records: list[Record], machine: Leader, journal: Journal) -> dict[str, int]:
        """Write one group commit; see `Journal.write`."""
        commit = journal.next_commit(records, machine.ledger.mirror.take(machine.durable))
        began = time.time_ns() if self._tracer is not None else 0
        further = await self._written(machine, journal, lambda: journal.write(commit))
        metrics.count_commit(records, len(commit.payload))
        if self._tracer is not None:
            traces.committed(self._tracer, self.group, self.term, records, began)
        return further

    async def _snapshot(self, machine: Leader, journal: Journal) -> str | None:
        async def write() -> dict[str, int]:
            await journal.snapshot(machine.durable.snapshot())
            return {}

        try:
            await self._written(machine, journal, write)
        except LineageChanged:
            return await self._give_up_term(machine, journal)
        return None

    async def _written(
        self, machine: Leader, journal: Journal, write: Callable[[], Awaitable[dict[str, int]]]
    ) -> dict[str, int]:
        """Do a fenced write. If Redis lost former ones, the machine's whole state takes their place."""
        while True:
            try:
                return await self._until_answered(write)
            except TailLost as error:
                log.warning("leader of %s heals its journal: %s", self.group, error)
                await self._until_answered(lambda: journal.heal(machine.durable.snapshot()))
                machine.ledger.mirror.lose()  # it lost its newest as well
                commit = journal.next_commit([], machine.ledger.mirror.take(machine.durable))
                write = partial(journal.write, commit)

    async def _give_up_term(self, machine: Leader, journal: Journal) -> str:
        """The data have another lineage: leave all that is known for the next term, and let it begin."""
        self.over = True
        log.warning("leader of %s gives up term %d: Redis was restarted or replaced", self.group, self.term)
        await self._until_answered(lambda: journal.heal(machine.durable.snapshot()))
        for effect in machine.step(StepDownWanted(), now_ms()):
            if isinstance(effect, Send):
                self.outbox(effect.mailbox, effect.message)
        return "Redis was restarted or replaced"

    async def _until_answered(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeat a fenced write until it is answered, as long as the term can still be held."""
        while True:
            try:
                return await write()
            except (StoreUnavailable, StoreRefused, NotDurable, Indefinite) as error:
                if now_ms() - self.renewed_at >= self.leadership.ttl:
                    raise
                self._seldom.warning("leader of %s: %s", self.group, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def look(self, known: Known, passed: int) -> None:
        """Tell the machine which streams there are, if that may have changed; see `StreamWatch.look`."""
        leading = self._leading
        if leading is not None and (listed := await leading.streams.look(known, passed)) is not None:
            self.post(listed)


@dataclass(slots=True)
class _Leading:
    """What a leader has once it is recovered."""

    declaration: Declaration
    journal: Journal
    machine: Leader
    streams: StreamWatch


def known_options(declaration: Declaration) -> GroupOptions:
    """How the group was declared, as far as this host can do it."""
    options = declaration.options
    try:
        if options.strategy is not None:
            strategy(options.strategy)
    except InvalidOption as error:
        log.warning(
            "group %s: %s; its streams are assigned as the host does", declaration.subscription, error
        )
        return options.model_copy(update={"strategy": None})
    return options


def _subscription(group: str) -> SharedSubscription:
    name, _, filter = group.partition("/")
    return SharedSubscription(name, filter)
