"""What a query's machine is stepped with, and what it answers with.

Spark asks one thing at a time: a *call*, which is answered by `Reply` or `Refuse`, in the same step or a
later one. What the machine must know for that, and only Redis knows, it wants by `Find`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamlease.borrower.events import Progressed, StreamGone, StreamGranted, StreamRevoking
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.messages import CutRead, LeaderToSession, SessionToLeader
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits

# ---------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True)
class BeginQuery:
    """Begin to borrow under the identity in the checkpoint's newest cut. Replied by nothing."""

    cut: CutOffset
    finished: bool
    """Whether that cut went through the sink."""


@dataclass(frozen=True, slots=True)
class NextCut:
    """What follows `start`, which went through the sink? Replied by a cut, or `start` if there is none."""

    start: CutOffset
    limits: Limits


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """What of `cut`, which may be of an earlier process, is to be read? Replied by its ranges."""

    cut: CutOffset


@dataclass(frozen=True, slots=True)
class StopQuery:
    """Leave. Replied by nothing; whoever waits for another call is refused."""


Call = BeginQuery | NextCut | ReadAgain | StopQuery

# ---------------------------------------------------------------- what the machine wants to know


@dataclass(frozen=True, slots=True)
class Arrival:
    """Connect, declare the group if nobody has, and arrive in it: the number of the arrival."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group as its leader describes it; None if it does not answer."""


@dataclass(frozen=True, slots=True)
class MeanSizes:
    """Bytes of a message of each of these streams."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WrittenLate:
    """Whether it was noted that this query's checkpoint is behind its progress."""


@dataclass(frozen=True, slots=True)
class Floors:
    """The oldest offset of each of these streams."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Untold:
    """Those of these losses (stream -> offset) of which no process of the query failed; they are noted."""

    gone: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EpochBounds:
    """The next boundaries of the space, as `epoch_ends.BoundsFound`."""

    positions: Mapping[str, int]
    """How far the query is in each stream that it holds."""
    anew: bool
    """Whether those are wanted that are behind some of these positions; else the ones behind the last."""


Wanted = Arrival | GroupView | MeanSizes | WrittenLate | Floors | Untold | EpochBounds

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Spark waits for its call no more."""


@dataclass(frozen=True, slots=True)
class FoundOut:
    """The answer to the `Find` of that number."""

    number: int
    answer: Any


@dataclass(frozen=True, slots=True)
class NotFoundOut:
    """There is no answer to it."""

    number: int
    error: StreamleaseError


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is seen of the leader and of Redis."""

    connected: bool = False
    """Whether every slot's borrower is connected to a leader."""
    term: int = 0
    """That of the leader."""
    trouble: str = ""
    """What keeps the query from its leader, as far as it shows."""
    store_error: StreamleaseError | None = None
    """How the last question to Redis went."""


@dataclass(frozen=True, slots=True)
class StreamCame:
    """The borrower of a slot was granted a stream."""

    slot: int
    grant: StreamGranted


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer about cuts, or the report of a task."""

    message: LeaderToSession | CutRead


@dataclass(frozen=True, slots=True)
class EndMoved:
    """The next message of the stream will get that offset; None: that is not known any more."""

    stream: str
    next: int | None


@dataclass(frozen=True, slots=True)
class EndsWatched:
    """The ends of just the streams that are held are watched from now on."""


@dataclass(frozen=True, slots=True)
class TargetsKnown:
    """From now on, nothing beyond these ends is to be read."""

    targets: Mapping[str, int]
    in_one_cut: bool
    """Whether there will be one cut only, so it holds all of that."""


@dataclass(frozen=True, slots=True)
class WentBehind:
    """A stream that ended below what was read goes on behind that, or cannot be told to (yet)."""

    stream: str
    error: StreamleaseError | None = None


@dataclass(frozen=True, slots=True)
class SessionOver:
    """The session has ended: by an error, or because it was to leave."""

    error: StreamleaseError | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """Time has passed."""

    lowered: frozenset[str] = frozenset()
    """Streams that end below where they ended before."""


Event = (
    Call
    | GivenUp
    | FoundOut
    | NotFoundOut
    | Surroundings
    | StreamCame
    | StreamRevoking
    | StreamGone
    | Heard
    | EndMoved
    | EndsWatched
    | TargetsKnown
    | WentBehind
    | SessionOver
    | Moment
)

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to Spark's call."""

    answer: Any = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Spark's call ends with this error."""

    error: StreamleaseError


@dataclass(frozen=True, slots=True)
class Find:
    """Find out what is wanted; answered by `FoundOut` or `NotFoundOut` with that number."""

    number: int
    what: Wanted


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Begin to borrow, and to watch the ends of what is held."""

    session: str
    arrival: int
    term: int
    """One that is known to have been issued."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message about cuts to the leader, if there is a connection to it."""

    message: SessionToLeader


@dataclass(frozen=True, slots=True)
class ReportProgress:
    """Tell the borrower of a slot how far a stream is."""

    slot: int
    progress: Progressed


@dataclass(frozen=True, slots=True)
class Attest:
    """Keep for a leader that has lost it how far the streams of a cut are consumed."""

    ranges: Ranges
    finished: bool
    """Whether that is up to the ends of the ranges, or only to their starts."""


@dataclass(frozen=True, slots=True)
class WatchEnds:
    """Watch the ends of the streams that are held now; answered by `EndsWatched`."""


@dataclass(frozen=True, slots=True)
class GoBehind:
    """Have the stream give out no offset below `read` again; answered by `WentBehind`."""

    stream: str
    read: int


@dataclass(frozen=True, slots=True)
class Say:
    """Write a line to the log, at a level of Python's."""

    level: int
    text: str
    stream: str = ""


@dataclass(frozen=True, slots=True)
class CountMessages:
    """Count messages that were read by tasks, or are committed."""

    read: int = 0
    committed: int = 0


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Leave at once, with the progress reported so far; answered by `SessionOver`."""


@dataclass(frozen=True, slots=True)
class EventRefused:
    """No transition allows that event: nothing else happened."""

    event: str
    state: str


Effect = (
    Reply
    | Refuse
    | Find
    | OpenSession
    | Tell
    | ReportProgress
    | Attest
    | WatchEnds
    | GoBehind
    | Say
    | CountMessages
    | LeaveGroup
    | EventRefused
)
