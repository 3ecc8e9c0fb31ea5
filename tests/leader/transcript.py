"""Conversations between one leader and its borrowers, written down as text a person can read.

The network delivers at once and in order; what differs between transcripts is who comes, goes and falls
silent. Lines: ``<`` a message to the leader, ``>`` from it, ``*`` what it journals, ``!`` what happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from streamlease.borrower import events as b
from streamlease.borrower.life import BorrowerConfig
from streamlease.borrower.link import Identity
from streamlease.borrower.machine import Borrower
from streamlease.leader.core import events as e
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import Record
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.messages import Message, Progress, ToLeader
from tests.leader.make import stepped

GROUP = "g/a"


class Conversation:
    """The leader, its borrowers, and the text so far."""

    def __init__(self, *streams: str) -> None:
        self.lines: list[str] = []
        self.now = 0
        self.term = 0
        self.streams = dict.fromkeys(streams, 0)
        self.ends: dict[str, int] = {}
        self.predecessors: dict[str, tuple[str, ...]] = {}
        self.state = GroupState()
        self.leader: Leader | None = None
        self.borrowers: dict[str, Borrower] = {}
        self.silent: set[str] = set()
        self.hold: set[str] = set()
        self.post: deque[tuple[str, Message]] = deque()
        self.begin()

    # ------------------------------------------------------------ what happens

    def say(self, text: str) -> None:
        self.lines.append(f"{self.now:>6} ! {text}")

    def begin(self) -> None:
        """A leader begins, from the journal."""
        self.term += 1
        self.say(f"host-{self.term} leads in term {self.term}")
        self.leader = Leader(GROUP, f"host-{self.term}", self.term, LeaderConfig(), self.state)
        self._lead(e.Recovered())
        self.list_streams()

    def list_streams(self) -> None:
        self._lead(e.StreamsListed(self.streams, {}, self.ends, self.predecessors))
        self._deliver()

    def seal(self, ends: dict[str, int], predecessors: dict[str, tuple[str, ...]]) -> None:
        """The streams of a new generation are listed, and the former ones end."""
        self.say(f"sealed: {_value(ends)}")
        self.ends, self.predecessors = ends, predecessors
        self.streams |= dict.fromkeys(predecessors, 0)
        self.list_streams()

    def crash(self) -> None:
        self.say(f"host-{self.term} is lost")
        assert self.leader is not None
        self.state = self.leader.durable.model_copy(deep=True)
        self.leader = None

    def join(self, id: str, name: str = "", session: str = "", arrival: int = 1, attempt: int = 1) -> None:
        self.say(f"{id} begins")
        name = name or id
        who = Identity(GROUP, id, session or f"session-{name}", name, arrival, attempt, "here")
        self.borrowers[id] = Borrower(who, BorrowerConfig(ping_timeout=3000, session_timeout=10_000))
        self._step(id, b.Started())
        self._deliver()

    def consume(self, id: str, stream: str, offset: int, *, final: bool = False) -> None:
        held = self.borrowers[id].streams[stream]
        self._step(id, b.Progressed(stream, held.lease_epoch, offset, final))
        self._deliver()

    def leave(self, id: str) -> None:
        self.say(f"{id} unsubscribes")
        self._step(id, b.Unsubscribed())
        self._deliver()

    def kill(self, id: str) -> None:
        self.say(f"{id} falls silent")
        self.silent.add(id)

    def ask(self, sender: str, message: ToLeader) -> None:
        self._to_leader(sender, message)
        self._deliver()

    def wait(self, milliseconds: int) -> None:
        """Let time pass, in ticks of 100 ms; pings and their answers are left out."""
        for _ in range(milliseconds // 100):
            self.now += 100
            self._lead(e.Tick())
            self._deliver()
            for id in list(self.borrowers):
                self._step(id, b.Tick())
                self._deliver()

    # ------------------------------------------------------------ inside

    def _step(self, id: str, event: b.Event) -> None:
        if id in self.silent:
            return
        for effect in self.borrowers[id].step(event, self.now):
            match effect:
                case b.FindLeader() if self.leader is not None:
                    self._step(id, b.LeaderFound(self.leader.host, self.leader.term))
                case b.SendToLeader():
                    self._to_leader(id, effect.message)
                case b.StreamGranted() | b.StreamGone() | b.Ended():
                    self.lines.append(f"{self.now:>6}     {id}: {_shown(effect)}")
                case b.StreamRevoking():
                    self.lines.append(f"{self.now:>6}     {id}: {_shown(effect)}")
                    if id not in self.hold:
                        held = self.borrowers[id].streams[effect.stream]
                        done = b.Progressed(effect.stream, effect.lease_epoch, held.told.offset, final=True)
                        self._step(id, done)

    def _to_leader(self, sender: str, message: ToLeader) -> None:
        if message.type != "ping":
            self.lines.append(f"{self.now:>6} < {_written(sender, message)}")
        self.post.append((f"leader {sender}", message))

    def _lead(self, event: e.Event) -> None:
        if self.leader is None:
            return
        for effect in stepped(self.leader, event, self.now):
            match effect:
                case e.Persist():
                    self.lines += [f"{self.now:>6} * {_record(record)}" for record in effect.records]
                case e.Send():
                    if effect.message.type != "ping_response":
                        self.lines.append(f"{self.now:>6} > {_written(effect.mailbox, effect.message)}")
                    self.post.append((effect.mailbox, effect.message))
                case e.Stop():
                    self.say(f"the leader stops: {effect.reason}")

    def _deliver(self) -> None:
        while self.post:
            to, message = self.post.popleft()
            if to.startswith("leader "):
                self._lead(e.Received(to.removeprefix("leader "), message))  # type: ignore[arg-type]
            elif to in self.borrowers:
                self._step(to, b.Received(message))  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def _value(value: object) -> str:
    match value:
        case Progress():
            return f"{value.stream}@{value.lease_epoch}={value.offset}{' final' if value.final else ''}"
        case CutRange():
            return f"{value.stream}@{value.lease_epoch}[{value.start},{value.end})"
        case tuple() | Ranges():
            return "[" + ", ".join(map(_value, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{key}: {_value(one)}" for key, one in value.items()) + "}"
    return str(value)


def _fields(pairs: Iterable[tuple[str, object]], *without: str) -> str:
    hidden = (*without, "lineage", "attested", "follows")
    kept = [
        (name, value)
        for name, value in pairs
        if name not in hidden and value is not None and (name, value) != ("retry_after_ms", 0)
    ]
    return " ".join(f"{name}={_value(value)}" for name, value in kept)


def _written(who: str, message: Message) -> str:
    return f"{who}: {type(message).__name__} {_fields(message, 'group', 'type', 'borrower', 'host')}".rstrip()


def _record(record: Record) -> str:
    return f"{type(record).__name__} {_fields(record, 'type')}"


def _shown(effect: b.Effect) -> str:
    names = [name for name, one in type(effect).__dataclass_fields__.items() if one.compare]
    return f"{type(effect).__name__} {_fields((name, getattr(effect, name)) for name in names)}"
