"""The state of a leader, and the book that it keeps of what is to be done: records before messages.

What is durable lives in `GroupState` and changes only through `_record`. What is not (who is connected, which
message is to be sent again) is rebuilt by the next leader from what borrowers say.

Effects are ordered "persist before send": a `Persist` that stands before a `Send` must be durable under the
leader's term before the message leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from streamlease.leader.core import generations
from streamlease.leader.core.events import Effect, Persist, Send, Stop
from streamlease.leader.core.planning.strategies import strategy
from streamlease.leader.core.planning.weights import Weights
from streamlease.leader.core.records import GroupState, Record
from streamlease.leader.core.state import Lease, Peer
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import FromLeader, Invalidate, Progress


@dataclass(frozen=True, slots=True)
class LeaderConfig:
    """Timers of a leader, in milliseconds, and its assignment strategy.

    Raises:
        InvalidOption: a value is not positive, or no strategy has that name.
    """

    resend_interval: int = 1000
    rebalance_delay: int = 100
    """Joins and leaves within this time make one plan."""
    revocation_timeout: int = 30_000
    idle_timeout: int = 60_000
    strategy: str = "count"
    weight_interval: int = 30_000
    """So long after a plan that weights alone asked for there is no other one."""

    def __post_init__(self) -> None:
        timers = (
            "resend_interval",
            "rebalance_delay",
            "revocation_timeout",
            "idle_timeout",
            "weight_interval",
        )
        for name in timers:
            if getattr(self, name) <= 0:
                raise InvalidOption(f"{name} is {getattr(self, name)} ms: it must be above 0")
        strategy(self.strategy)


DEAF_AFTER = 2000
"""A leader that has heard nothing for longer (ms), because its Redis or its own process stood still, does not
count that time against its borrowers: they had no chance to be heard."""

RETURN_TIMEOUT = 5000
"""How long (ms) a new leader waits for the former one's borrowers at least, however short their session
timeout is: they miss a leader after their ping timeout (3 s), then look for the next one each half second."""

ABSENT_TIMEOUT = 10_000
"""How long (ms) a name that an operator moved streams to may be away."""

CALM_STREAMS = 1000
"""For each so many streams of a group, what is not answered waits one more ``resend_interval``: a thousand
repetitions a second are bearable, and more would themselves delay the answers."""

MAX_ARRIVALS = 10_000
"""How many names' arrivals are remembered; they only serve to refuse late messages."""

InvalidateReason = Literal["unknown", "replaced", "stale", "revocation_timeout", "stepped_down", "deleted"]


@dataclass(slots=True)
class Book:
    """What one leader knows in one term, and what it has decided but not yet handed out."""

    group: str
    host: str
    term: int
    config: LeaderConfig
    durable: GroupState
    options: GroupOptions = field(default_factory=GroupOptions)
    """How the group was declared."""
    peers: dict[str, Peer] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Borrower id -> name, of connected borrowers."""
    arrivals: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Name -> highest (arrival, attempt) seen."""
    given_up: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Stream -> since when it is on its way to a next owner, and whether cleanly, until that one speaks."""
    retry_at: dict[str, int] = field(default_factory=dict)
    """Stream -> when the message that failed may be tried again. How often it failed is durable and this is
    not: a new leader lets it wait anew."""
    poison_refused: dict[str, str] = field(default_factory=dict)
    """Stream -> why its dead letter could not be written so far."""
    listing: generations.Listing | None = None
    """What the newest listing says of the order of streams; None before the first one."""
    rebalance_at: int | None = None
    plan_due: bool = False
    """Whether a plan is made at the end of this turn."""
    planned_at: int | None = None
    """When the newest plan was made."""
    plans: int = 0
    """How many plans were made, also such that moved nothing."""
    held_back: bool = False
    """Whether the newest plan could not take a stream because its grant is not answered yet."""
    weights: Weights = field(default_factory=Weights)
    """What is measured of the streams, if the strategy wants it."""
    weighed_at: int = 0
    """When weights alone asked for a plan."""
    warm_until: int | None = None
    """Until when streams stay where they are at the latest, because their weights are not known yet."""
    may_take: int | None = None
    """How many streams plans may take from their owners because of weights; None: as many as needed, since
    somebody came or went; 0: the group is at rest."""
    idle_since: int | None = None
    cut_since: dict[str, int] = field(default_factory=dict)
    """Session -> when its newest cut was fixed; those of former terms count from the recovery."""
    away: dict[str, int] = field(default_factory=dict)
    """Name that operators have set something for -> since when no borrower has it."""
    wall_ahead: int | None = None
    """By how much the time of day is ahead of this leader's clock, if known."""
    forced: dict[str, int] = field(default_factory=dict)
    """Stream -> highest lease epoch that an operator ended in this term: its owner may not know it yet."""
    heard: int | None = None
    """Up to when (ms) all that was sent has reached the leader; None before the first tick."""
    stopped: bool = False
    refused: int = 0
    """Events that no transition allows, and late messages: counted, without any other effect."""
    rebalances: int = 0
    """Plans that gave or took streams, in this term."""
    lineage: str = ""
    """Of the data in which the term was issued (`registry/leadership.py`)."""
    attested: dict[tuple[str, int], Progress] = field(default_factory=dict)
    """(Stream, lease epoch) -> what was attested of streams before the first listing named them."""
    moved: dict[str, None] | None = None
    """Streams whose progress changed since `take_moved`; None: all of them, at the beginning."""
    _effects: list[Effect] = field(default_factory=list)
    _records: list[Record] = field(default_factory=list)

    def _resend_at(self, now: int) -> int:
        """When what is said of a lease now is said again."""
        return now + self.config.resend_interval * max(1, len(self.durable.streams) // CALM_STREAMS)

    def take_moved(self) -> dict[str, int | None]:
        """What the mirror of the progress must take over from the records made since the last call."""
        whole, streams = self.moved is None, self.durable.streams
        names = streams if self.moved is None else self.moved
        self.moved = {}
        found: dict[str, int | None] = {
            name: None if (one := streams.get(name)) is None else one.committed
            for name in names
            if name[0] != "@"
        }
        if whole or "@expired" in names:
            found["@expired"] = self.durable.expired_at
        if whole or "@paused" in names:
            paused = self.durable.operated.paused
            found["@paused"] = None if paused is None else paused.at
        return found

    def _record(self, record: Record) -> None:
        if self.moved is not None:
            self.moved.update(dict.fromkeys(self.durable.moved_by(record)))
        self.durable.apply(record)
        self._records.append(record)

    def _send(self, mailbox: str, message: FromLeader) -> None:
        if self._records:
            self._effects.append(Persist(tuple(self._records)))
            self._records = []
        self._effects.append(Send(mailbox, message))

    def _flush(self) -> list[Effect]:
        if self._records:
            self._effects.append(Persist(tuple(self._records)))
            self._records = []
        effects, self._effects = self._effects, []
        return effects

    def _flush_then_stop(self, reason: str) -> None:
        if self._records:
            self._effects.append(Persist(tuple(self._records)))
            self._records = []
        self._effects.append(Stop(reason))
        self.stopped = True

    def _invalidate(self, mailbox: str, borrower: str, reason: InvalidateReason) -> None:
        self._send(mailbox, Invalidate(group=self.group, borrower=borrower, term=self.term, reason=reason))
