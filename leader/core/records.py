"""The durable state of a shared subscription, and the journal records that alone change it.

The leader never writes into `GroupState` directly: it makes records, `apply` turns them into state, and the
same records, read back from the journal, give the same state to the next leader. One group commit holds
whole records only, so an act that is one record is visible wholly or not at all (invariant 9).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from streamlease.leader.core.operated import Acted, BorrowerLeft, Operated
from streamlease.protocol.cuts import OpenRanges, OpenRangesField, RangesField, opened
from streamlease.protocol.ids import LEAST_LEAP

Fate = Literal["retry", "dead_letter", "stop"]
"""What becomes of a failed message: it is tried again, becomes a dead letter, or stops its stream."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TermStarted(_Record):
    """A leader began to act."""

    type: Literal["term"] = "term"
    term: int
    host: str
    lineage: str = ""
    """Of the data in which the term was issued (`registry/leadership.py`)."""


class StreamsAdded(_Record):
    """Streams now belong to the subscription, to be consumed from these offsets on."""

    type: Literal["streams"] = "streams"
    starts: dict[str, int]
    waiting: tuple[str, ...] = ()
    """Those that may not be read before the streams that they follow are finished."""


class StreamsAdvanced(_Record):
    """Sealed streams are consumed to their end and nobody's; those that followed just them may be read."""

    type: Literal["advanced"] = "advanced"
    finished: tuple[str, ...]
    released: tuple[str, ...]


class StreamsForgotten(_Record):
    """Streams do not exist any more."""

    type: Literal["forgotten"] = "forgotten"
    streams: tuple[str, ...]


class Leased(_Record):
    """A stream is leased to the borrower name `name` of `session`."""

    type: Literal["leased"] = "leased"
    stream: str
    lease_epoch: int
    name: str
    session: str
    session_timeout_ms: int = 10_000


class Released(_Record):
    """That lease is over. An open cut of its session keeps its end for the next owner."""

    type: Literal["released"] = "released"
    stream: str
    lease_epoch: int


class Committed(_Record):
    """Everything below these offsets is consumed."""

    type: Literal["committed"] = "committed"
    offsets: dict[str, int]


class Attested(_Record):
    """What others have seen and the journal has lost: of each stream a lease epoch, and what is committed."""

    type: Literal["attested"] = "attested"
    streams: dict[str, tuple[int, int]]


class CutOpened(_Record):
    """A session's cut: it is the only one open, and all before it are finished."""

    type: Literal["cut_opened"] = "cut_opened"
    session: str
    cut: int
    ranges: RangesField


class CutClosed(_Record):
    """A session's cut went through its sink: its ranges are committed."""

    type: Literal["cut_closed"] = "cut_closed"
    session: str
    cut: int


class SessionForgotten(_Record):
    """A session is gone. Its open cut pins the ends of its ranges for the next owners."""

    type: Literal["session_forgotten"] = "session_forgotten"
    session: str


class HandedOver(_Record):
    """A stream reached its next owner. `clean`: the former one was alive and gave it up."""

    type: Literal["handed_over"] = "handed_over"
    stream: str
    milliseconds: int
    """From the `Revoke`, or from the last sign of life of a lost owner, to the new owner's first word."""
    clean: bool


class Expired(_Record):
    """The group was idle for so long that retention need not wait for it any more."""

    type: Literal["expired"] = "expired"
    at: int
    """Milliseconds of the Redis clock."""
    idle_ms: int
    host: str


class Returned(_Record):
    """An expired group is consumed again, and holds data again."""

    type: Literal["returned"] = "returned"


class Truncated(_Record):
    """Retention removed, or Redis lost, what was not consumed: these streams go on from these offsets."""

    type: Literal["truncated"] = "truncated"
    floors: dict[str, int]


class Failed(_Record):
    """A message could not be processed, and this is what becomes of it."""

    type: Literal["failed"] = "failed"
    stream: str
    offset: int
    lease_epoch: int
    failure: str
    """Identity of this failure."""
    borrower: str
    cause: str
    fate: Fate


class DeadLettered(_Record):
    """A failed message stands durably among the dead letters: it is consumed."""

    type: Literal["dead_lettered"] = "dead_lettered"
    stream: str
    offset: int
    into: str
    """The stream that holds the dead letter."""
    at: int
    """Its offset there."""


Record = (
    TermStarted
    | StreamsAdded
    | StreamsAdvanced
    | StreamsForgotten
    | Leased
    | Released
    | Committed
    | Attested
    | CutOpened
    | CutClosed
    | SessionForgotten
    | HandedOver
    | Expired
    | Returned
    | Truncated
    | Failed
    | DeadLettered
    | Acted
    | BorrowerLeft
)

_RECORDS: TypeAdapter[list[Record]] = TypeAdapter(list[Annotated[Record, Field(discriminator="type")]])


def encode_records(records: Iterable[Record]) -> bytes:
    """Records as one JSON array: the payload of one group commit."""
    return b"[" + b",".join(record.model_dump_json().encode() for record in records) + b"]"


def decode_records(data: bytes) -> list[Record]:
    """The records of one group commit.

    Raises:
        pydantic.ValidationError: the data is not of this form.
    """
    return _RECORDS.validate_json(data)


class Failure(BaseModel):
    """The message at which a stream is, and how often it failed."""

    model_config = ConfigDict(extra="forbid")

    offset: int
    failures: tuple[str, ...]
    """Identities of the failures that were counted."""
    lease_epoch: int
    """That of the newest failure, like the fields below."""
    borrower: str
    cause: str
    fate: Fate


@dataclass(slots=True)
class StreamProgress:
    """What is durable about one stream. A group may have 100,000, so it is small."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    committed: int
    lease_epoch: int = 0
    """The newest lease epoch that is known."""
    lost_from: int | None = None
    """Leases from this lease epoch up to the term of the lineage may be unknown; None: all are known."""
    owner: str | None = None
    """Name of the borrower that holds the lease."""
    session: str | None = None
    held_since: int = 0
    """The lease epoch since which `session` has held the stream: nobody else had it in between."""
    follows: int | None = None
    """The lease epoch before the newest one; None: not known."""
    last_session: str | None = None
    """The session of the newest lease, even after its end."""
    truncated: int = 0
    """How many messages retention removed, or Redis lost, before they were consumed."""
    pinned_end: int | None = None
    """A former owner's cut was open up to here; the next cut must end here, to hold the same rows."""
    waiting: bool = False
    """Streams that it follows are not finished: nobody may read it yet."""
    finished: bool = False
    """It is sealed and consumed to its end: nobody gets it again."""
    failure: Failure | None = None
    """The message at `committed` failed so far."""
    dead_letters: int = 0
    """How many of its messages are dead letters."""
    session_timeout_ms: int = 10_000
    """After so long a silence its owner is gone."""

    @property
    def blocked(self) -> bool:
        """Whether nobody may process what is next: it becomes a dead letter, or the stream is stopped."""
        return self.failure is not None and self.failure.fate != "retry"


class SessionCuts(BaseModel):
    """What is durable about one session's cuts."""

    model_config = ConfigDict(extra="forbid")

    finished: int = 0
    cut: int = 0
    """Number of the open cut; 0 if none is open."""
    ranges: OpenRangesField = Field(default_factory=dict)


class GroupState(BaseModel):
    """All that a new leader must know."""

    model_config = ConfigDict(extra="forbid")

    term: int = 0
    lineage: str = ""
    """Of the data in which the newest term was issued."""
    lineage_term: int = 0
    """The first term of that lineage that is known."""
    lease_epoch_floor: int = 0
    """Lease epochs are issued above this one."""
    lost_from: int | None = None
    """As of `StreamProgress`, for streams that are new to the group."""
    streams: dict[str, StreamProgress] = Field(default_factory=dict)
    sessions: dict[str, SessionCuts] = Field(default_factory=dict)
    expired_at: int | None = None
    """Since when (ms of the Redis clock) the group holds no data, because it was idle for too long."""
    moves: int = 0
    """How often a stream went from one session to another."""
    longest_hand_over_ms: int = 0
    """Longest clean hand-over between live borrowers."""
    operated: Operated = Field(default_factory=Operated)
    """What operators have set, and their newest acts."""
    longest_take_over_ms: int = 0
    """Longest time from a lost owner's last sign of life to its successor's first word."""

    def apply(self, record: Record) -> None:
        """Change the state as the record says. Records of a journal apply in its order."""
        match record:
            case TermStarted():
                self._begin_term(record)
            case StreamsAdded() | StreamsAdvanced() | StreamsForgotten():
                self._list(record)
            case Leased():
                self._lease(record)
            case Released():
                self._let_go(record.stream)
            case Committed():
                for stream, offset in record.offsets.items():
                    self._commit(stream, offset)
            case Attested():
                for stream, (lease_epoch, offset) in record.streams.items():
                    self._attest(stream, lease_epoch, offset)
            case CutOpened():
                cuts = self.sessions.setdefault(record.session, SessionCuts())
                cuts.cut = record.cut
                cuts.finished = max(cuts.finished, record.cut - 1)
                cuts.ranges = opened(record.ranges)
            case CutClosed():
                self._close(record)
            case SessionForgotten():
                for stream, (_, _, end) in self._open_ranges(record.session).items():
                    self._pin_to(stream, end)
                self.sessions.pop(record.session, None)
            case HandedOver():
                longest = "longest_hand_over_ms" if record.clean else "longest_take_over_ms"
                setattr(self, longest, max(getattr(self, longest), record.milliseconds))
            case Expired():
                self.expired_at = record.at
                self.operated.remember(
                    Acted(
                        act="expire",
                        who=record.host,
                        at=record.at,
                        what=f"idle for {record.idle_ms // 1000} s",
                    )
                )
            case Returned():
                self.expired_at = None
            case Truncated():
                for stream, floor in record.floors.items():
                    self.streams[stream].truncated += max(0, floor - self.streams[stream].committed)
                    self._commit(stream, floor)
            case Failed() | DeadLettered():
                self._fail(record)
            case Acted() | BorrowerLeft():
                self.operated.apply(record)
                if isinstance(record, Acted) and not record.error:
                    self._act(record)
            case _:
                assert_never(record)

    def _act(self, record: Acted) -> None:
        match record.act:
            case "reset":
                for stream, offset in record.offsets.items():
                    self._reset(stream, offset)
                for stream in record.behind:
                    self._let_go(stream)
                    self.streams[stream].waiting = True
            case "release" if record.stream is not None:
                self._let_go(record.stream)
            case "retry" | "dead_letter" if record.stream is not None:
                self._decided(record.stream, dead_letter=record.act == "dead_letter")
            case "expire":
                self.expired_at = record.at
            case _:
                pass

    def _reset(self, stream: str, offset: int) -> None:
        """A new line of progress. The lease epoch rises: nothing said or read before can count for it."""
        progress = self.streams[stream]
        self._open_ranges(progress.session).pop(stream, None)
        progress.committed = offset
        progress.lease_epoch = max(progress.lease_epoch, self.lease_epoch_floor) + 1
        progress.lost_from = None
        progress.owner = progress.session = progress.pinned_end = None
        progress.finished = False
        progress.failure = None

    def _decided(self, stream: str, *, dead_letter: bool) -> None:
        """An operator's word about a stopped stream: its message is a dead letter, or is tried anew."""
        progress = self.streams[stream]
        if dead_letter and progress.failure is not None:
            progress.failure = progress.failure.model_copy(update={"fate": "dead_letter"})
        else:
            progress.failure = None

    def _let_go(self, stream: str) -> None:
        """The lease is over. An open cut of its session keeps its end for the next owner."""
        self._pin(stream)
        progress = self.streams[stream]
        progress.owner = progress.session = None

    def _begin_term(self, record: TermStarted) -> None:
        """In another lineage than before, what the journal does not say may have happened all the same."""
        began = self.term == 0 and record.term < LEAST_LEAP
        if record.lineage != self.lineage:
            self.lineage, self.lineage_term = record.lineage, record.term
            if not began:
                self.lost_from = self.lease_epoch_floor + 1
                self.lease_epoch_floor = max(self.lease_epoch_floor, record.term)
                for progress in self.streams.values():
                    progress.lost_from = progress.lease_epoch
        self.term = record.term

    def _lease(self, record: Leased) -> None:
        progress = self.streams[record.stream]
        if progress.session != record.session:
            self._pin(record.stream)
            progress.held_since = record.lease_epoch
        progress.follows = progress.lease_epoch
        progress.lease_epoch = record.lease_epoch
        progress.owner = record.name
        progress.session = record.session
        progress.session_timeout_ms = record.session_timeout_ms
        self.moves += progress.last_session not in (None, record.session)
        progress.last_session = record.session

    def _attest(self, stream: str, lease_epoch: int, offset: int) -> None:
        progress = self.streams[stream]
        if lease_epoch > progress.lease_epoch:
            progress.lease_epoch = progress.follows = lease_epoch
        self._commit(stream, offset)

    def _list(self, record: StreamsAdded | StreamsAdvanced | StreamsForgotten) -> None:
        match record:
            case StreamsAdded():
                for stream, start in record.starts.items():
                    waiting = stream in record.waiting
                    new = StreamProgress(committed=start, waiting=waiting, lost_from=self.lost_from)
                    self.streams.setdefault(stream, new)
            case StreamsAdvanced():
                for stream in record.released:
                    self.streams[stream].waiting = False
                for stream in record.finished:
                    self.streams[stream].finished = True
                self.operated.forget_streams(record.finished)
            case StreamsForgotten():
                for stream in record.streams:
                    gone = self.streams.pop(stream, None)
                    self.lease_epoch_floor = max(
                        self.lease_epoch_floor, gone.lease_epoch if gone is not None else 0
                    )
                    for cuts in self.sessions.values():
                        cuts.ranges.pop(stream, None)
                self.operated.forget_streams(record.streams)
                if self.lost_from is not None:
                    self.lost_from = self.lease_epoch_floor + 1
            case _:
                assert_never(record)

    def _fail(self, record: Failed | DeadLettered) -> None:
        progress = self.streams[record.stream]
        match record:
            case Failed():
                counted = progress.failure.failures if progress.failure is not None else ()
                progress.failure = Failure(
                    offset=record.offset,
                    failures=(*counted, record.failure),
                    lease_epoch=record.lease_epoch,
                    borrower=record.borrower,
                    cause=record.cause,
                    fate=record.fate,
                )
            case DeadLettered():
                progress.dead_letters += 1
                self._commit(record.stream, record.offset + 1)
            case _:
                assert_never(record)

    def moved_by(self, record: Record) -> Iterable[str]:
        """The streams whose progress `record` changes, ``@expired`` or ``@paused``; asked before."""
        match record:
            case StreamsAdded():
                return record.starts
            case Attested():
                return record.streams
            case Committed():
                return record.offsets
            case Truncated():
                return record.floors
            case Acted(act="reset", error=""):
                return record.offsets
            case Acted(act="expire", error="") | Expired() | Returned():
                return ("@expired",)
            case Acted(act="pause" | "resume", error=""):
                return ("@paused",)
            case StreamsForgotten():
                return record.streams
            case DeadLettered():
                return (record.stream,)
            case CutClosed():
                cuts = self.sessions.get(record.session)
                return list(cuts.ranges) if cuts is not None and cuts.cut == record.cut else ()
            case _:
                return ()

    def _close(self, record: CutClosed) -> None:
        cuts = self.sessions.setdefault(record.session, SessionCuts())
        if cuts.cut == record.cut:
            for stream, (_, _, end) in cuts.ranges.items():
                self._commit(stream, end)
            cuts.cut = 0
            cuts.ranges = {}
        cuts.finished = max(cuts.finished, record.cut)

    def _commit(self, stream: str, offset: int) -> None:
        progress = self.streams[stream]
        progress.committed = max(progress.committed, offset)
        if progress.pinned_end is not None and progress.committed >= progress.pinned_end:
            progress.pinned_end = None
        if progress.failure is not None and progress.failure.offset < progress.committed:
            progress.failure = None

    def is_in_cut(self, stream: str) -> bool:
        """Whether an open cut of the session that holds the stream has a part of it."""
        return stream in self._open_ranges(self.streams[stream].session)

    def _open_ranges(self, session: str | None) -> OpenRanges:
        cuts = self.sessions.get(session) if session is not None else None
        return cuts.ranges if cuts is not None else {}

    def _pin(self, stream: str) -> None:
        """The owner loses `stream`: take it out of its open cut, and remember where that cut ended."""
        part = self._open_ranges(self.streams[stream].session).pop(stream, None)
        if part is not None:
            self._pin_to(stream, part[2])

    def _pin_to(self, stream: str, end: int) -> None:
        progress = self.streams.get(stream)
        if progress is not None and end > progress.committed:
            progress.pinned_end = end

    def snapshot(self) -> bytes:
        """The whole state as one JSON document."""
        return self.model_dump_json().encode()

    @classmethod
    def restore(cls, data: bytes) -> GroupState:
        """The state that `snapshot` wrote."""
        return cls.model_validate(json.loads(data))
