"""Leader hosts and their leaders, driven by the rules of hosts/host.py and leader/runner.py.

One commit is outstanding; a message leaves after every record before it is durable; a write without an answer
is repeated as long as the term can be held; whatever is fenced ends.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamlease.leader.core.events import (
    DeadLetter,
    DeadLetterRefused,
    DeadLetterWritten,
    Effect,
    Event,
    Persist,
    Received,
    Recovered,
    Send,
    StepDownWanted,
    Stop,
    StreamsListed,
    Tick,
)
from streamlease.leader.core.machine import Leader
from streamlease.leader.core.records import encode_records
from streamlease.protocol.errors import Fenced, Indefinite, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import LEAST_LEAP, LONGEST_LEAP
from streamlease.protocol.messages import (
    Command,
    CommandAstray,
    Disconnect,
    FinishCut,
    FixCut,
    LeaderWanted,
    Message,
    MessageFailed,
    NotLeader,
    Ping,
    ResumeCut,
    RevokeFinished,
    UpdateProgress,
)
from streamlease.registry.leadership import Candidacy, LineageChanged
from tests.simulation.kernel import Process, Routine, Task
from tests.simulation.net import Postbox
from tests.simulation.store import replayed

if TYPE_CHECKING:
    from tests.simulation.world import World

SNAPSHOT_EVERY = 40
CANDIDACY_MS = 20_000
WATCH_MS = 100
RETRY_MS = 100
DEAD_LETTER_MS = 400
TICK_MS = 100
STREAMS_MS = 1000
GONE = (StoreUnavailable, Indefinite)
"""What `Net` raises for the faults that it injects, and nothing else does: who catches it lives with them."""


class TailLost(Exception):
    """See `streamlease.leader.journal.TailLost`."""


class SimHost:
    """One leader host; `registered` as in `HostConfig`."""

    def __init__(self, world: World, process: Process, *, registered: bool = True) -> None:
        self.world = world
        self.process = process
        self.registered = registered
        self.id = f"{process.name}-{world.kernel.token()[:4]}"
        self.draining = False
        self.runner: SimRunner | None = None
        self.floor = 0
        """The highest term that this host has seen."""
        self._standing: Task | None = None
        self._outgoing: deque[tuple[str, Message]] = deque()
        self._sending = False
        self._box = Postbox(world.net, process, self.id, self._deliver)
        world.boxes[self.id] = self._box
        process.start(self._open())

    def _call(self, act: Callable[[Any], Any], *, fatal: bool = False) -> Any:
        return self.world.net.call(self.process, act, fatal=fatal)

    def _open(self) -> Routine:
        """Open the mailbox and show that the host is there, for ever."""
        while True:
            try:
                yield self._call(lambda store: store.open_box(self.id))
                if self.registered and not self.draining:
                    yield self._call(lambda store: store.beat(self.id))
            except GONE:
                yield 200
                continue
            self._box.look()
            yield 2000

    # ------------------------------------------------------------ candidates

    def lead(self, above: int = 0) -> None:
        """Become a candidate, unless the host leads or is one already."""
        self.floor = max(self.floor, above)
        if self.draining or self.runner is not None or self._standing is not None:
            return
        self.world.judge.candidate(self.id, +1)
        self._standing = self.process.start(self._stand(), self._stood)

    def _stood(self, value: Any, error: BaseException | None) -> None:
        self._standing = None
        self.world.judge.candidate(self.id, -1)
        if error is not None:
            raise error

    def _stand(self) -> Routine:
        clock = self.process.clock
        candidacy = Candidacy("g", self.id, self.id, self.world.leadership, floor=self.floor)
        give_up = clock() + CANDIDACY_MS
        first_seen = None
        while clock() < give_up:
            try:
                record = yield self._call(lambda store: store.read_leader())
                self.floor = max(self.floor, record.term)
                ready = candidacy.observe(record, clock())
                if record.held and record.host != self.id:
                    first_seen = first_seen or record
                    if record.renewed_at != first_seen.renewed_at:
                        return
                if ready:
                    leap = self.world.random.randrange(LEAST_LEAP, LONGEST_LEAP)
                    candidacy.floor = self.floor
                    done, term, lineage = yield self._call(
                        lambda store, leap=leap: attempt(store, candidacy, self.id, leap), fatal=True
                    )
                    if done:
                        self._begin(term, lineage)
                        return
            except GONE:
                pass  # injected by `Faults`: the next round asks again
            yield WATCH_MS

    def _begin(self, term: int, lineage: int) -> None:
        self.floor = max(self.floor, term)
        self.runner = SimRunner(self, term, lineage)
        self.runner.start()

    def ended(self, runner: SimRunner) -> None:
        """The leader is over."""
        if self.runner is runner:
            self.runner = None
            if runner.leaves_lineage:
                self.lead()

    # ------------------------------------------------------------ letters

    def post(self, receiver: str, message: Message) -> None:
        """Put a letter on its way, in order."""
        self.world.kernel.note(self.id, "->", receiver, Brief(message))
        self._outgoing.append((receiver, message))
        if not self._sending:
            self._sending = True
            self.process.start(self._send())

    def _send(self) -> Routine:
        while self._outgoing:
            letters = list(self._outgoing)
            self._outgoing.clear()
            try:
                yield self._call(lambda store, letters=letters: self.world.net.post(store, self.id, letters))
            except GONE:
                self.world.kernel.note(self.id, "lost", len(letters), "letters")
        self._sending = False

    def _deliver(self, sender: str, message: Message) -> None:
        runner = self.runner
        match message:
            case Command() if runner is None:
                reply = CommandAstray(group=message.group, request=message.request)
                self.post(sender, reply)
            case LeaderWanted() | Ping() | UpdateProgress() | RevokeFinished() | MessageFailed() if (
                runner is None
            ):
                self.post(sender, NotLeader(group=message.group, borrower=message.borrower, term=self.floor))
            case (
                LeaderWanted()
                | Ping()
                | UpdateProgress()
                | RevokeFinished()
                | MessageFailed()
                | Disconnect()
                | FixCut()
                | FinishCut()
                | ResumeCut()
                | Command()
            ):
                if runner is not None:
                    runner.post(Received(sender, message))

    def drain(self) -> None:
        """Step down in good order, then end."""
        self.draining = True
        if self._standing is not None:
            self._standing.cancel()
            self._stood(None, None)
        self.process.start(self._drain())

    def _drain(self) -> Routine:
        if self.registered:
            with contextlib.suppress(*GONE):  # injected by `Faults`: silence shows the same, later
                yield self._call(lambda store: store.leave(self.id))
        if self.runner is not None:
            self.runner.post(StepDownWanted())
        for _ in range(50):
            if self.runner is None and not self._sending:
                break
            yield 100
        self.world.end(self.process)


def attempt(store: Any, candidacy: Candidacy, host: str, leap: int) -> tuple[bool, int, int]:
    """What `Candidacy.attempt` does at the store."""
    ttl = candidacy.config.ttl
    if candidacy.watched.held:
        return store.take_over(host, ttl, candidacy.floor, candidacy.watched, leap)
    return store.claim(host, ttl, candidacy.floor, leap)


class SimRunner:
    """One leader in one term."""

    def __init__(self, host: SimHost, term: int, lineage: int) -> None:
        self.host = host
        self.lineage = lineage
        self.leaves_lineage = False
        self.world = host.world
        self.term = term
        self.machine: Leader | None = None
        self.inbox: deque[Event] = deque()
        self.over = False
        self.number = 0
        self.since_snapshot = 0
        self.last_id = (0, 0)
        self.renewed_at = 0
        self._ticking = False
        self._asleep: Task | None = None
        self._tasks: list[Task] = []

    def start(self) -> None:
        """Begin to lead."""
        self.renewed_at = self._clock()
        self.world.kernel.note(self.host.id, "leads in term", self.term)
        self._tasks.append(self.host.process.start(self._renew(), self._ended))
        self._tasks.append(self.host.process.start(self._lead(), self._ended))

    def post(self, event: Event) -> None:
        """Hand an event to the machine; it is taken in order."""
        self.inbox.append(event)
        if self._asleep is not None:
            task, self._asleep = self._asleep, None
            self.host.process.after(0, task.resume)

    def _clock(self) -> int:
        return self.host.process.clock()

    def _ended(self, reason: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StreamleaseError):
            raise error
        if self.over:
            return
        self.over = True
        for task in self._tasks:
            task.cancel()
        self.world.kernel.note(self.host.id, "ends in term", self.term, reason or error)
        if isinstance(error, Fenced):
            self.world.sometimes["a leader is fenced"] += 1
        self.host.process.start(self._resign())

    def _resign(self) -> Routine:
        with contextlib.suppress(*GONE):  # injected by `Faults`: the term runs out by itself
            yield self.host._call(lambda store: store.resign(self.host.id, self.term), fatal=True)
        self.host.ended(self)

    def _lead(self) -> Routine:
        kept, entries = yield from self._recover()
        state = replayed(kept, entries)
        if state.term >= self.term:
            self.leaves_lineage = yield self.host._call(lambda store: store.witness(state.term + 1))
            return f"the journal is of term {state.term} already"
        self.last_id = entries[-1].id if entries else kept[0] if kept else (0, 0)
        options = self.world.poison.options
        machine = Leader(
            "g", self.host.id, self.term, self.world.config, state, options, lineage=str(self.lineage)
        )
        self.machine = machine
        self.world.judge.recovered(self)
        reason = yield from self._carry_out(self._step(machine, Recovered()))
        if reason is not None:
            return reason
        for routine in (self._tick(), self._list_streams()):
            self._tasks.append(self.host.process.start(routine))
        while True:
            if not self.inbox:
                yield self._sleep
            effects: list[Effect] = []
            while self.inbox:
                event = self.inbox.popleft()
                if isinstance(event, Tick):
                    self._ticking = False
                effects.extend(self._step(machine, event))
            reason = yield from self._carry_out(effects)
            if reason is None and self.leaves_lineage:
                reason = yield from self._give_up_term()
            if reason is not None:
                return reason
            if self.since_snapshot >= SNAPSHOT_EVERY:
                yield from self._written(lambda: self._snapshot(machine))

    def _recover(self) -> Routine:
        """What `streamlease.leader.journal.recover` reads."""
        kept = yield self.host._call(lambda store: store.kept)
        while True:
            behind = kept[0] if kept else (0, 0)
            entries = yield self.host._call(lambda store, behind=behind: store.journal_after(behind))
            newest = yield self.host._call(lambda store: store.kept)
            if (newest and newest[0]) == (kept and kept[0]):
                return kept, entries
            self.world.sometimes["a snapshot comes amid a recovery"] += 1
            kept = newest

    def _sleep(self, task: Task) -> None:
        self._asleep = task

    def _step(self, machine: Leader, event: Event) -> list[Effect]:
        return self.world.judge.step_leader(self, machine, event, self._clock())

    def _carry_out(self, effects: list[Effect]) -> Routine:
        records = [record for effect in effects if isinstance(effect, Persist) for record in effect.records]
        if records:
            self.number += 1
            number, payload = self.number, encode_records(records)
            self.world.kernel.note(self.host.id, "writes", number, payload.decode())
            try:
                yield from self._written(lambda: self._append(number, payload))
            except LineageChanged:
                return (yield from self._give_up_term())
            self.world.judge.written(self)
        for effect in effects:
            if isinstance(effect, Send):
                self.world.judge.said(self, effect.message)
                self.host.post(effect.mailbox, effect.message)
            elif isinstance(effect, DeadLetter):
                self._tasks.append(self.host.process.start(self._dead_letter(effect)))
            elif isinstance(effect, Stop):
                return effect.reason
        return None

    def _dead_letter(self, effect: DeadLetter) -> Routine:
        stream, offset = effect.stream, effect.offset
        while True:
            try:
                at = yield self.host._call(lambda store: store.write_dead_letter(stream, offset))
                break
            except GONE:
                self.post(DeadLetterRefused(stream, offset, "the store does not answer"))
                yield DEAD_LETTER_MS
        self.post(DeadLetterWritten(stream, offset, "dead.0.0", at))

    def _written(self, write: Callable[[], Routine]) -> Routine:
        try:
            yield from self._until_answered(write)
        except TailLost:
            self.world.sometimes["a leader puts a snapshot in place of a lost tail"] += 1
            yield from self._until_answered(self._heal)

    def _give_up_term(self) -> Routine:
        """See `Runner._give_up_term`."""
        assert self.machine is not None
        self.leaves_lineage = True
        self.world.sometimes["a leader gives up a term of another lineage"] += 1
        yield from self._until_answered(self._heal)
        for effect in self._step(self.machine, StepDownWanted()):
            if isinstance(effect, Send):
                self.host.post(effect.mailbox, effect.message)
        return "the store has another lineage"

    def _append(self, number: int, payload: bytes) -> Routine:
        after = self.last_id
        outcome, result = yield self.host._call(
            lambda store: store.journal_append(self.host.id, self.term, number, payload, after, self.lineage),
            fatal=True,
        )
        self._judge(outcome, result)
        self.last_id = result
        self.since_snapshot += 1

    def _snapshot(self, machine: Leader, *, mark: bool = False) -> Routine:
        state = machine.durable.snapshot()
        id, number = self.last_id, self.number
        outcome, result = yield self.host._call(
            lambda store: store.journal_snapshot(self.host.id, self.term, id, state, number, mark), fatal=True
        )
        self._judge(outcome, result)
        self.last_id = result
        self.since_snapshot = 0

    def _heal(self) -> Routine:
        assert self.machine is not None
        self.last_id = yield self.host._call(lambda store: store.journal_end())
        yield from self._snapshot(self.machine, mark=True)

    def _judge(self, outcome: int, result: Any) -> None:
        if outcome == 0:
            raise Fenced(f"term {self.term} was followed by {result}")
        if outcome == 2:
            raise TailLost
        if outcome == 3:
            raise LineageChanged("the store was restarted or replaced")

    def _until_answered(self, write: Callable[[], Routine]) -> Routine:
        while True:
            try:
                yield from write()
                return
            except GONE:
                if self._clock() - self.renewed_at >= self.world.leadership.ttl:
                    raise
            yield RETRY_MS

    def _renew(self) -> Routine:
        while True:
            yield self.world.leadership.renew_interval
            began = self._clock()
            try:
                done, other = yield self.host._call(
                    lambda store: store.renew(self.host.id, self.term, self.lineage), fatal=True
                )
                if not done:
                    raise Fenced(f"term {self.term} was followed by {other}")
                if done == 2:
                    self.leaves_lineage = True
                else:
                    self.renewed_at = began
            except GONE:
                if self._clock() - self.renewed_at >= self.world.leadership.ttl:
                    raise Fenced("could not renew in time") from None

    def _tick(self) -> Routine:
        while True:
            yield TICK_MS
            if not self._ticking:
                self._ticking = True
                self.post(Tick())

    def _list_streams(self) -> Routine:
        known: StreamsListed | None = None
        while True:
            try:
                listed = yield self.host._call(lambda store: store.space.listing())
                if listed != known:
                    self.post(listed)
                    known = listed
            except GONE:
                pass  # injected by `Faults`: the next round asks again
            yield STREAMS_MS


class Brief:
    """A message in one short line, written only if somebody reads the transcript."""

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = message

    def __str__(self) -> str:
        hidden = ("group", "type", "host")
        parts = [f"{name}={value}" for name, value in self._message.__dict__.items() if name not in hidden]
        return f"{self._message.type}({' '.join(parts)})"
