"""A whole group in one process and one thread: leaders, sessions and a network that misbehaves on purpose.

Everything is decided by one seed. Messages travel through one queue with a time of arrival; while the
network is bad some are lost, some arrive twice and most arrive in another order. Sessions consume, finish
what is revoked, and make a new borrower when one ends, as an agent does. The invariants are looked at after
every single step.
"""

from __future__ import annotations

import copy
import heapq
import random
from dataclasses import dataclass, field

from streamlease.borrower import events as b
from streamlease.borrower.life import BorrowerConfig
from streamlease.borrower.link import Identity
from streamlease.borrower.machine import Borrower
from streamlease.leader.core import events as e
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import decode_records, encode_records
from streamlease.protocol.messages import Message, decode, encode
from tests.leader.make import stepped

GROUP = "g/a"
TICK = 100
COMPARED = 23
"""One of so many steps of a leader is compared with a copy made before it."""

BORROWER = BorrowerConfig(unsubscribe_timeout=2000, session_timeout=5000)
LEADER = LeaderConfig(revocation_timeout=8000, idle_timeout=10**9)


@dataclass
class Network:
    """A queue of messages by time of arrival."""

    random: random.Random
    bad: bool = True
    queue: list[tuple[int, int, str, bytes]] = field(default_factory=list)
    count: int = 0

    def send(self, now: int, to: str, message: Message) -> None:
        copies = 1
        delay = 1
        if self.bad:
            copies = self.random.choices((0, 1, 2), (15, 70, 15))[0]
        for _ in range(copies):
            if self.bad:
                delay = self.random.choice((1, 5, 50, 400, 3000))
            self.count += 1
            heapq.heappush(self.queue, (now + delay, self.count, to, encode([message])))

    @property
    def busy(self) -> bool:
        """Whether more than pings and their answers is under way."""
        under_way = [message for *_, data in self.queue for message in decode(data)[0]]
        return any(message.type not in ("ping", "ping_response") for message in under_way)

    def due(self, now: int) -> tuple[str, Message] | None:
        if not self.queue or self.queue[0][0] > now:
            return None
        _, _, to, data = heapq.heappop(self.queue)
        (message,), bad = decode(data)
        assert bad == 0
        return to, message


@dataclass
class Held:
    """What a session believes to hold."""

    lease_epoch: int
    offset: int
    revoking: bool = False


@dataclass
class Session:
    """One session with one slot."""

    name: str
    arrival: int
    world: World
    borrower: Borrower | None = None
    attempts: int = 0
    streams: dict[str, Held] = field(default_factory=dict)
    closing: bool = False
    over: bool = False

    def make(self) -> None:
        self.attempts += 1
        id = f"{self.name}.{self.arrival}.{self.attempts}"
        session = f"{self.name}-{self.arrival}"
        who = Identity(GROUP, id, session, self.name, self.arrival, self.attempts, "here")
        self.borrower = Borrower(who, BORROWER)
        self.world.borrowers[id] = self
        self.step(b.Started())

    def step(self, event: b.Event) -> None:
        borrower = self.borrower
        if borrower is None:
            return
        for effect in borrower.step(event, self.world.now):
            self.carry_out(borrower, effect)

    def carry_out(self, borrower: Borrower, effect: b.Effect) -> None:
        match effect:
            case b.FindLeader():
                if self.world.leader is not None:
                    self.step(b.LeaderFound(self.world.leader.host, self.world.leader.term))
            case b.SendToLeader():
                self.world.network.send(self.world.now, effect.mailbox, effect.message)
            case b.StreamGranted():
                assert effect.stream not in self.streams, "granted twice without being gone"
                self.streams[effect.stream] = Held(effect.lease_epoch, effect.progress)
            case b.StreamRevoking():
                self.streams[effect.stream].revoking = True
            case b.StreamGone():
                assert self.streams.pop(effect.stream).lease_epoch == effect.lease_epoch
            case b.Ended():
                assert not self.streams
                self.borrower = None
                if effect.again and not self.closing:
                    self.make()
                else:
                    self.over = True
            case b.ProgressAcknowledged():
                assert self.world.durable_offset(effect.stream) >= effect.offset, "acknowledged, not durable"

    def consume(self) -> None:
        """Read a little of each stream, in order, and give back what is wanted back."""
        for stream, held in list(self.streams.items()):
            if self.borrower is None or stream not in self.streams:
                continue
            available = self.world.available(stream)
            step = self.world.random.randint(0, 4)
            target = min(held.offset + step, available)
            final = held.revoking and self.world.random.random() < 0.5
            self.world.reading(stream, range(held.offset, target))
            for offset in range(held.offset, target):
                self.world.seen[stream].add(offset)
            if target <= held.offset and not final:
                continue
            held.offset = max(target, held.offset)
            self.step(b.Progressed(stream, held.lease_epoch, held.offset, final))


class World:
    """All of it. `run` moves time on by ticks."""

    def __init__(self, seed: int, streams: int = 6) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.network = Network(self.random)
        self.journal: list[bytes] = []
        self.streams = {f"s.0.{n}": 0 for n in range(streams)}
        self.delivered_from = dict(self.streams)
        self.seen: dict[str, set[int]] = {stream: set() for stream in self.streams}
        self.length = 0
        self.borrowers: dict[str, Session] = {}
        self.sessions: list[Session] = []
        self.arrivals = 0
        self.leader: Leader | None = None
        self.terms = 0
        self.steps = 0
        self.committed = dict(self.streams)
        self.issued: dict[tuple[str, int], str] = {}

    # ------------------------------------------------------------ what happens

    def join(self, name: str) -> Session:
        self.arrivals += 1
        session = Session(name, self.arrivals, self)
        self.sessions.append(session)
        session.make()
        return session

    def lead(self) -> None:
        """A new leader begins from the journal; the one before, if any, has crashed."""
        self.terms += 1
        self.leader = Leader(GROUP, f"host-{self.terms}", self.terms, LEADER, self.replay())
        self.step_leader(e.Recovered())
        self.step_leader(self.listing())

    def listing(self) -> e.StreamsListed:
        return e.StreamsListed(self.streams)

    def available(self, stream: str) -> int:
        """How many messages the stream has now."""
        return self.length

    def reading(self, stream: str, offsets: range) -> None:
        """A session is about to read these."""

    def to_be_leased(self) -> set[str]:
        """The streams that somebody must hold in the end."""
        return set(self.streams)

    def crash_leader(self) -> None:
        self.leader = None

    def replay(self) -> GroupState:
        state = GroupState()
        for commit in self.journal:
            for record in decode_records(commit):
                state.apply(record)
        return state

    def durable_offset(self, stream: str) -> int:
        return self.committed[stream]

    def step_leader(self, event: e.Event) -> None:
        leader = self.leader
        if leader is None:
            return
        self.steps += 1
        before = copy.deepcopy(leader) if self.steps % COMPARED == 0 else None
        refused = leader.ledger.refused
        effects = stepped(leader, event, self.now)
        if before is not None and leader.ledger.refused > refused and not effects:
            self.assert_unchanged(before, leader)
        for effect in effects:
            if isinstance(effect, e.Persist):
                self.journal.append(encode_records(effect.records))
                if self.network.bad and self.random.random() < 0.003:
                    self.crash_leader()  # between the write and its messages
                    break
            elif isinstance(effect, e.Send):
                self.network.send(self.now, effect.mailbox, effect.message)
        self.check()

    @staticmethod
    def assert_unchanged(before: Leader, after: Leader) -> None:
        """A refused event leaves everything but counters and the time of the last word as it was."""
        one, two = copy.deepcopy(before), copy.deepcopy(after)
        for leader in (one, two):
            leader.ledger.refused = 0
            for peer in leader.peers.values():
                peer.last_seen = 0
        assert one == two

    def deliver(self) -> None:
        while (letter := self.network.due(self.now)) is not None:
            to, message = letter
            if to.startswith("host-"):
                if self.leader is not None and self.leader.host == to:
                    sender = getattr(message, "borrower", "") or getattr(message, "session", "")
                    self.step_leader(e.Received(f"box-{sender}", message))  # type: ignore[arg-type]
            else:
                self.to_borrower(message)
                self.check()

    def to_borrower(self, message: Message) -> None:
        id = getattr(message, "borrower", "")
        session = self.borrowers.get(id)
        if session is None or session.borrower is None or session.borrower.identity.borrower != id:
            return  # late, for a borrower that has ended
        session.step(b.Received(message))  # type: ignore[arg-type]

    def tick(self) -> None:
        self.now += TICK
        self.deliver()
        self.step_leader(e.Tick())
        for session in list(self.sessions):
            session.step(b.Tick())
            session.consume()
            self.check()

    def misbehave(self) -> None:
        """Now and then something happens."""
        self.length += self.random.randint(0, 3)
        chance = self.random.random()
        living = [s for s in self.sessions if not s.over and not s.closing]
        if chance < 0.01:
            self.crash_leader()
        elif chance < 0.02 and len(living) < 5:
            self.join(f"n{self.random.randint(0, 5)}")
        elif chance < 0.03 and living:
            leaver = self.random.choice(living)
            leaver.closing = True
            leaver.step(b.Unsubscribed())
        elif chance < 0.035 and living:
            lost = self.random.choice(living)  # killed: says nothing any more
            lost.borrower, lost.over = None, True
            lost.streams.clear()
        if self.leader is None and self.random.random() < 0.1:
            self.lead()

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        leader = self.leader
        if leader is not None:
            for stream, progress in leader.durable.streams.items():
                assert progress.committed >= self.committed[stream], "committed progress went back"
                self.committed[stream] = progress.committed
                held = leader.leases.get(stream)
                if held is not None:
                    assert held.lease_epoch == progress.lease_epoch
                    owner = self.issued.setdefault((stream, held.lease_epoch), held.name)
                    assert owner == held.name, "a lease epoch was issued twice"
        believers: dict[tuple[str, int], Session] = {}
        for session in self.sessions:
            for stream, mine in session.streams.items():
                key = (stream, mine.lease_epoch)
                assert key not in believers, "two owners under one lease epoch"
                believers[key] = session
        for stream, offset in self.committed.items():
            if offset > self.delivered_from[stream]:
                new = range(self.delivered_from[stream], offset)
                assert self.seen[stream].issuperset(new), "committed, but never delivered"
                self.delivered_from[stream] = offset

    def converged(self) -> bool:
        leader = self.leader
        if leader is None or set(leader.leases) != self.to_be_leased() or self.network.busy:
            return False
        living = {s.borrower.identity.borrower: s for s in self.sessions if s.borrower is not None}
        if set(leader.peers.names) != set(living):
            return False
        if any(lease.state.value != "granted" for lease in leader.leases.values()):
            return False
        loads = []
        for session in living.values():
            assert session.borrower is not None
            name = session.borrower.identity.name
            mine = {s: lease.lease_epoch for s, lease in leader.leases.items() if lease.name == name}
            if mine != {stream: held.lease_epoch for stream, held in session.streams.items()}:
                return False
            loads.append(len(mine))
        return max(loads) - min(loads) <= 1 and all(
            self.committed[stream] == self.available(stream) for stream in self.streams
        )

    def heal(self) -> None:
        """Faults stop; somebody consumes; there is a leader."""
        self.network.bad = False
        if self.leader is None:
            self.lead()
        if all(s.over or s.closing for s in self.sessions):
            self.join("last")
