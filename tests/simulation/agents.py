"""Agents: what agent/agent.py does, and Python programs that subscribe, with the real reader's decisions."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamlease.agent.session import Session, SessionConfig
from streamlease.agent.subscription import Batch, SharedReader
from streamlease.borrower.book import Held
from streamlease.borrower.events import ProgressAcknowledged, StreamGranted
from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import (
    CutFinished,
    CutFixed,
    CutRead,
    CutResumed,
    FromLeader,
    Message,
)
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.spawn import WINDOW_MS
from tests.simulation import poison
from tests.simulation.hosts import Brief, SimHost
from tests.simulation.kernel import Process, Routine
from tests.simulation.net import Postbox

if TYPE_CHECKING:
    from tests.simulation.world import World

GONE = (StoreUnavailable, Indefinite)
"""What `Net` raises for the faults that it injects, and nothing else does: who catches it lives with them."""
SUBSCRIPTION = SharedSubscription.parse("$shared/g/#")
TICK_MS = 100
NOTHING = pa.record_batch({})
"""What the messages say does not matter here."""

BUFFERED = 4
"""How many batches a reader fetches ahead."""

CHUNK = 4
"""The filter matches all or nothing of so many messages."""


class SimAgent:
    """All control traffic of one process; the surface that a session needs."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.id = f"{process.name}-{world.kernel.token()[:4]}"
        self.where = process.name
        self.host: SimHost | None = None
        self._receivers: dict[str, Callable[[FromLeader | CutRead], None]] = {}
        self._tickers: dict[Callable[[int], None], None] = {}
        self._outgoing: deque[tuple[str, Message]] = deque()
        self._sending = False
        self._finders: list[Callable[[str, int], None]] = []
        self._searching = False
        self._seen = 0
        self._box = Postbox(world.net, process, self.id, self._deliver)
        world.boxes[self.id] = self._box
        for routine in (self._open(), self._tick()):
            process.start(routine)

    def call(self, act: Callable[[Any], Any]) -> Any:
        """To be yielded: `act` on the store."""
        return self.world.net.call(self.process, act)

    def register(self, receiver: str, receive: Callable[[FromLeader | CutRead], None]) -> None:
        """See `Agent`."""
        self._receivers[receiver] = receive

    def unregister(self, receiver: str) -> None:
        """See `Agent`."""
        self._receivers.pop(receiver, None)

    def add_ticker(self, tick: Callable[[int], None]) -> None:
        """See `Agent`."""
        self._tickers[tick] = None

    def remove_ticker(self, tick: Callable[[int], None]) -> None:
        """See `Agent`."""
        self._tickers.pop(tick, None)

    def add_session(self, group: str, end: Callable[[StreamleaseError], None]) -> None:
        """Nothing ends an agent here but its process."""

    def remove_session(self, end: Callable[[StreamleaseError], None]) -> None:
        """See `add_session`."""

    def post(self, receiver: str, message: Any) -> None:
        """See `Agent`."""
        self.world.kernel.note(self.id, "->", receiver, Brief(message))
        self._outgoing.append((receiver, message))
        if not self._sending:
            self._sending = True
            self.process.start(self._send())

    def saw_term(self, group: str, term: int) -> None:
        """See `Agent`."""
        self._seen = max(self._seen, term)

    def find_leader(self, group: str, found: Callable[[str, int], None]) -> None:
        """See `Agent`."""
        self._finders.append(found)
        if not self._searching:
            self._searching = True
            self.process.start(self._search())

    @property
    def idle(self) -> bool:
        """Whether everything was sent."""
        return not self._sending

    def _open(self) -> Routine:
        while True:
            try:
                yield self.call(lambda store: store.open_box(self.id))
            except GONE:
                yield 200
                continue
            self._box.look()
            yield 5000

    def _tick(self) -> Routine:
        while True:
            yield TICK_MS
            now = self.process.clock()
            for tick in list(self._tickers):
                tick(now)

    def _send(self) -> Routine:
        while self._outgoing:
            letters = list(self._outgoing)
            self._outgoing.clear()
            try:
                yield self.call(lambda store, letters=letters: self.world.net.post(store, self.id, letters))
            except GONE:
                self.world.kernel.note(self.id, "lost", len(letters), "letters")
                yield 200
        self._sending = False

    def _deliver(self, sender: str, message: Any) -> None:
        self.saw_term("g", getattr(message, "term", 0))
        match message:
            case CutFixed() | CutFinished() | CutResumed() | CutRead():
                receiver = message.session
            case _:
                receiver = getattr(message, "borrower", "")
        receive = self._receivers.get(receiver)
        if receive is None:
            self.world.sometimes["a late letter of somebody who has ended"] += 1
        else:
            receive(message)

    # ------------------------------------------------------------ finding leaders

    def _search(self) -> Routine:
        try:
            record = yield from self._find()
        except GONE:
            self._searching = False
            self._finders.clear()
            return
        self._searching = False
        finders, self._finders = self._finders, []
        if record.held and not record.expired:
            for finder in finders:
                finder(record.mailbox, record.term)

    def _find(self) -> Routine:
        record = yield self.call(lambda store: store.read_leader())
        if record.term < self._seen:
            self.world.sometimes["a consumer has seen a term that the store has lost"] += 1
            yield self.call(lambda store: store.witness(self._seen))
            record = yield self.call(lambda store: store.read_leader())
        hosts = yield self.call(lambda store: store.alive_hosts())
        live = record.held and not record.expired
        if not live or record.read_at - record.renewed_at >= record.ttl * 0.5:
            yield from self._want(record, hosts)
        for _ in range(0 if live else 4):
            yield 125
            record = yield self.call(lambda store: store.read_leader())
            if record.held and not record.expired:
                break
        return record

    def _want(self, record: Any, hosts: list[str]) -> Routine:
        if hosts:
            job = f"{record.term + 1}-{record.read_at // WINDOW_MS}"
            if (yield self.call(lambda store: store.enqueue(job))):
                self.world.spawn(self._seen)
        elif self.world.embedded:
            if self.host is None:
                self.host = SimHost(self.world, self.process, registered=False)
                self.world.hosts.append(self.host)
                self.world.sometimes["a leader in a consumer's own process"] += 1
            self.host.lead(self._seen)


class Waiter:
    """Stands for the future that a commit waits for."""

    def __init__(self, answer: Callable[[Any], None]) -> None:
        self._answer: Callable[[Any], None] | None = answer

    def done(self) -> bool:
        """Whether it was answered."""
        return self._answer is None

    def set_result(self, value: Any) -> None:
        """The commit is durable, or the failure is answered."""
        self._finish(value)

    def set_exception(self, error: StreamleaseError) -> None:
        """It is not, or not any more ours to know."""
        self._finish(error)

    def _finish(self, result: Any) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        answer(result)


class SimReader(SharedReader):
    """The reader of agent/subscription.py: its handler and bookkeeping, without its asynchronous shell."""

    def __init__(self, program: Program) -> None:
        super().__init__(
            None,
            SUBSCRIPTION,
            max_batch=program.max_batch,
            buffered_batches=BUFFERED,
            clock=lambda: program.process.clock() / 1000,
        )  # type: ignore[arg-type]
        self.program = program
        self.session: Session | None = None

    def begin(self, session: Session) -> None:
        """See `SharedReader.start`."""
        self._settling.session = self.session = session
        session.start()

    @property
    def held(self) -> dict[str, Held]:
        """The streams, also those in limbo."""
        return self.book.streams

    @property
    def waits(self) -> bool:
        """Whether some commit is not answered yet."""
        return self._settling.waits

    @property
    def error(self) -> StreamleaseError | None:
        """Why the session is over."""
        return self._settling.error

    @property
    def has_ended(self) -> bool:
        """Whether the session has left."""
        return self._ended.is_set()

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """See `SharedReader`."""
        self.program.world.judge.believes(self.program.session_id, grant.stream, grant.lease_epoch)
        before = self.book.streams.get(grant.stream)
        turn = before.turn if before is not None else 0
        super().granted(slot, grant)
        if before is not None and self.book.streams[grant.stream] is before:
            if before.turn != turn:
                self.program.world.sometimes["a stream comes back behind what was decided elsewhere"] += 1
                poison.void(self.program.world.judge, self.program.session_id, grant.stream, before.committed)
            self.program.world.sometimes["a consumer goes on where it was"] += 1

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """See `SharedReader`."""
        self.program.world.judge.acknowledged(ack.stream, ack.offset)
        super().acknowledged(slot, ack)

    def _watch(self) -> None:
        """Ends of streams are asked for by and by."""

    def fetch(self, ends: dict[str, int]) -> None:
        """Read up to `ends`; see `Fetching.round` and `Fetching._took`."""
        ready = self._fetching.ready
        for stream, held in list(self.book.streams.items()):
            end = min(ends.get(stream, 0), held.position + self.program.max_batch)
            if len(ready) >= BUFFERED or self._settling.leaving:
                return
            if held.retry_at is not None and self._clock() >= held.retry_at:
                held.retry_at = None
            if not held.is_read:
                continue
            while held.position < end:
                start = held.position
                held.position = min(end, (start // CHUNK + 1) * CHUNK)
                if zlib.crc32(f"{stream}:{start // CHUNK}".encode()) % 7:
                    id = StreamId.parse(stream)
                    ready.append(Batch(self._settling, held, id, start, held.position, NOTHING))
                else:
                    self.program.world.judge.skipped(stream, held.lease_epoch, start, held.position)
                    self._fetching._skip(held, start, held.position)

    def take(self) -> Batch | None:
        """The next batch; see `SharedReader.__anext__`."""
        return self._take()

    def submit(self, held: Held, end: int, answer: Callable[[Exception | None], None]) -> None:
        """See `Settling.commit`."""
        try:
            if not self._settling.enter_commit(held, end, Waiter(answer)):  # type: ignore[arg-type]
                answer(None)
        except StreamleaseError as error:
            answer(error)

    def give_up(self, held: Held, offset: int, answer: Callable[[Any], None]) -> bool:
        """See `Settling.fail`; whether the failure is reported."""
        if held.failing is not None:
            return False
        try:
            self._settling.enter_failure(held, offset, "poison", Waiter(answer))  # type: ignore[arg-type]
        except StreamleaseError:
            return False
        return True

    def leave(self) -> None:
        """See `SharedReader.close`."""
        self._settling.leaving = True
        if self.session is not None and not self.session.over:
            self.session.unsubscribe()


class Program:
    """A Python program: takes batches, works, commits; perhaps late, perhaps several at once."""

    def __init__(self, world: World, process: Process, name: str | None) -> None:
        self.world = world
        self.process = process
        self.name = name
        self.random = world.kernel.random
        self.max_batch = self.random.choice((1, 5, 30))
        self.patience = self.random.choice((20, 150, 600))
        self.lazy = self.random.random() < 0.3
        self.agent = SimAgent(world, process)
        self.reader = SimReader(self)
        self.session_id = f"s{world.kernel.token()[:6]}"
        self.leaving = False
        self.over = False
        self._unanswered: list[tuple[str, Held, int, int]] = []
        process.ends.append(self._gone)
        process.start(self._run())

    @property
    def session(self) -> Session | None:
        """Its session, once it has begun."""
        return self.reader.session

    def _gone(self) -> None:
        self.over = True
        self.world.judge.session_ended(self.session_id)

    def leave(self) -> None:
        """Stop after the present batch, in good order."""
        self.leaving = True

    def _run(self) -> Routine:
        while True:
            try:
                arrival = yield self.agent.call(lambda store: store.arrive())
                break
            except GONE:
                yield 300
        config = SessionConfig(
            SUBSCRIPTION,
            self.session_id,
            (self.name or f"{self.session_id}/0",),
            arrival,
            self.world.borrower,
        )
        session = Session(
            self.agent,
            config,
            self.reader,
            clock=self.process.clock,
            token=self.world.kernel.token,
        )
        self.reader.begin(session)
        self.process.start(self._fetch())
        while not self.leaving and self.reader.error is None:
            batch = self.reader.take()
            if batch is None:
                yield 60
                if self.random.random() < 0.1:
                    self._commit_all()
                continue
            stream, held, start, end = str(batch.stream), batch.held, batch.start, batch.end
            turn = batch.turn
            self.world.judge.delivered(self.session_id, stream, held.lease_epoch, start, end)
            yield self.random.randint(1, 20 if self.world.healing else self.patience)
            bad = self.world.poison.first(stream, start, end)
            if bad is not None:
                if turn == held.turn:
                    self._fail(stream, held, bad)
                continue
            if self.lazy and self.random.random() < 0.6 and len(self._unanswered) < 5:
                self._unanswered.append((stream, held, end, turn))
                continue
            self._unanswered.append((stream, held, end, turn))
            self._commit_all()
        yield from self._leave()

    def _fail(self, stream: str, held: Held, offset: int) -> None:
        def answer(verdict: Any) -> None:
            self.world.sometimes[f"a failure is answered: {verdict or 'the stream was taken away'}"] += 1

        if self.reader.give_up(held, offset, answer):
            self.world.sometimes["a program fails at a message"] += 1
            poison.void(self.world.judge, self.session_id, stream, offset)

    def _commit_all(self) -> None:
        for stream, held, end, turn in self._unanswered:
            if turn == held.turn and held.failing is None:  # else `Batch` refuses: its messages come again
                self._commit(stream, held, end)
        self._unanswered.clear()

    def _commit(self, stream: str, held: Held, end: int) -> None:
        def answer(error: Exception | None) -> None:
            if error is None:
                self.world.judge.acknowledged(stream, end)
            else:
                self.world.sometimes["a commit is refused: the stream was taken away"] += 1

        self.reader.submit(held, end, answer)

    def _leave(self) -> Routine:
        self._commit_all()
        for _ in range(300):
            if self.reader.error is not None or not self.reader.waits:
                break
            yield 100
        for stream, held in self.reader.held.items():
            if held.delivered > held.acknowledged:
                self.world.sometimes["a consumer leaves without an answer to its commit"] += 1
                self.world.judge.broken.setdefault(stream, set()).add(held.lease_epoch)
        if self.reader.error is None:
            self.reader.leave()
            while not self.reader.has_ended:
                yield 50
        else:
            self.world.sometimes["a consumer is replaced by its namesake"] += 1
        for _ in range(20):
            if self.agent.idle:
                break
            yield 100
        self.world.kernel.note(self.process.name, "has left")
        self.world.end(self.process)

    def _look_for_lost(self) -> None:
        """What is given up is answered with an error: the program may have it again, as anybody may."""
        before = dict(self.reader.held)
        self.reader._give_up_lost(self.process.clock() / 1000)
        for stream, held in before.items():
            if stream not in self.reader.held:
                self.world.sometimes["a commit is given up: its stream did not come back"] += 1
                self.world.judge.broken.setdefault(stream, set()).add(held.lease_epoch)

    def _fetch(self) -> Routine:
        while self.reader.error is None and not self.reader.has_ended:
            self._look_for_lost()
            held = sorted(self.reader.held)
            if held:
                try:
                    ends = yield self.agent.call(lambda store, held=held: store.ends(held))
                    self.reader.fetch(ends)
                except GONE:
                    pass  # injected by `Faults`: the next round asks again
            yield self.random.randint(30, 200)
