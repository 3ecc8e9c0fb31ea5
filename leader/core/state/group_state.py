"""The durable state of a shared subscription: what the records of its journal come to.

The leader never writes into `GroupState` directly: it makes records, `apply` turns them into state, and the
same records, read back from the journal, give the same state to the next leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import assert_never

from pydantic import BaseModel, ConfigDict, Field

from streamlease.leader.core.state import outcomes as o
from streamlease.leader.core.state.fields import Number, Stream
from streamlease.leader.core.state.group_cuts import GroupCuts
from streamlease.leader.core.state.operated import Acted, BorrowerLeft, Operated, RefusedAct
from streamlease.leader.core.state.progress import StreamProgress
from streamlease.leader.core.state.records import (
    Attested,
    Committed,
    CutClosed,
    CutOpened,
    DeadLettered,
    Expired,
    Failed,
    HandedOver,
    Leased,
    Record,
    Released,
    Returned,
    SessionForgotten,
    StreamsAdded,
    StreamsAdvanced,
    StreamsForgotten,
    TermStarted,
    Truncated,
)
from streamlease.protocol.ids import LEAST_LEAP

EXPIRED = "@expired"
"""In place of a stream: whether the group holds data."""

PAUSED = "@paused"
"""In place of a stream: whether the group is paused."""


class GroupState(BaseModel):
    """All that a new leader must know."""

    model_config = ConfigDict(extra="forbid")

    term: Number = 0
    lineage: str = ""
    """Of the data in which the newest term was issued."""
    lineage_term: Number = 0
    """The first term of that lineage that is known."""
    lease_epoch_floor: Number = 0
    """Lease epochs are issued above this one."""
    lost_from: Number | None = None
    """As of `StreamProgress`, for streams that are new to the group."""
    streams: dict[Stream, StreamProgress] = Field(default_factory=dict)
    sessions: GroupCuts = Field(default_factory=GroupCuts)
    expired_at: Number | None = None
    """Since when (ms of the Redis clock) the group holds no data, because it was idle for too long."""
    moves: Number = 0
    """How often a stream went from one session to another."""
    longest_hand_over_ms: Number = 0
    """Longest clean hand-over between live borrowers."""
    operated: Operated = Field(default_factory=Operated)
    """What operators have set, and their newest acts."""
    longest_take_over_ms: Number = 0
    """Longest time from a lost owner's last sign of life to its successor's first word."""

    def apply(self, record: Record) -> Iterable[str]:
        """Change the state as the record says. Records of a journal apply in its order.

        Returns:
            the streams whose progress or lease it changes, or `EXPIRED`, or `PAUSED`: for what stands beside
            the journal.
        """
        match record:
            case Committed():
                for stream, offset in record.offsets.items():
                    self.streams[stream].commit(offset)
                return record.offsets
            case CutOpened():
                self.sessions.open(record)
            case CutClosed():
                return self._close(record)
            case Leased():
                self._lease(record)
                return (record.stream,)
            case Released():
                self._let_go(record.stream)
                return (record.stream,)
            case HandedOver():
                self._hand_over(record)
            case SessionForgotten():
                self._forget_session(record.session)
            case StreamsAdded():
                self._add(record)
                return record.starts
            case StreamsAdvanced():
                self._advance(record)
            case StreamsForgotten():
                self._forget(record.streams)
                return record.streams
            case Truncated():
                for stream, floor in record.floors.items():
                    self.streams[stream].truncate(floor)
                return record.floors
            case Attested():
                for stream, (lease_epoch, offset) in record.streams.items():
                    self.streams[stream].attest(lease_epoch, offset)
                return record.streams
            case Failed():
                self.streams[record.stream].fail(record)
            case DeadLettered():
                self.streams[record.stream].dead_letters += 1
                self.streams[record.stream].commit(record.offset + 1)
                return (record.stream,)
            case TermStarted():
                self._begin_term(record)
            case Expired():
                self.expired_at = record.at
                self.operated.remember(record.kept())
                return (EXPIRED,)
            case Returned():
                self.expired_at = None
                return (EXPIRED,)
            case Acted():
                self.operated.remember(record.kept())
                self.operated.set(record)
                return self._act(record)
            case RefusedAct():
                self.operated.remember(record)
            case BorrowerLeft():
                self.operated.forget_borrower(record.name)
            case _:
                assert_never(record)
        return ()

    # ------------------------------------------------------------ terms

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

    # ------------------------------------------------------------ leases

    def next_lease_epoch(self, stream: str) -> int:
        """The lease epoch of the next lease of `stream`."""
        return max(self.streams[stream].lease_epoch, self.lease_epoch_floor) + 1

    def _lease(self, record: Leased) -> None:
        progress = self.streams[record.stream]
        if progress.session is not None and progress.session != record.session:
            self._pin(record.stream)
        if progress.last_session is not None and progress.last_session != record.session:
            self.moves += 1
        progress.lease(record)

    def _let_go(self, stream: str) -> None:
        """The lease is over. An open cut of its session keeps its end for the next owner."""
        self._pin(stream)
        self.streams[stream].free()

    def _hand_over(self, record: HandedOver) -> None:
        if record.clean:
            self.longest_hand_over_ms = max(self.longest_hand_over_ms, record.milliseconds)
        else:
            self.longest_take_over_ms = max(self.longest_take_over_ms, record.milliseconds)

    # ------------------------------------------------------------ cuts

    def _close(self, record: CutClosed) -> Iterable[str]:
        streams, _, _, ends = self.sessions.close(record).columns
        for stream, end in zip(streams, ends, strict=True):
            self.streams[stream].commit(end)
        return streams

    def _forget_session(self, session: str) -> None:
        for part in self.sessions.forget(session):
            if part.stream in self.streams:
                self.streams[part.stream].pin(part.end)

    def is_in_cut(self, stream: str) -> bool:
        """Whether an open cut of the session that holds the stream has a part of it."""
        return self.sessions.has_open(self.streams[stream].session, stream)

    def _pin(self, stream: str) -> None:
        """The owner loses `stream`: take it out of its open cut, and remember where that cut ended."""
        progress = self.streams[stream]
        end = self.sessions.leave(progress.session, stream)
        if end is not None:
            progress.pin(end)

    # ------------------------------------------------------------ which streams there are

    def _add(self, record: StreamsAdded) -> None:
        streams, waiting, lost_from = self.streams, frozenset(record.waiting), self.lost_from
        for stream, start in record.starts.items():
            if stream not in streams:
                streams[stream] = StreamProgress(start, waiting=stream in waiting, lost_from=lost_from)

    def _advance(self, record: StreamsAdvanced) -> None:
        for stream in record.released:
            self.streams[stream].waiting = False
        for stream in record.finished:
            self.streams[stream].finished = True
        self.operated.forget_streams(record.finished)

    def _forget(self, streams: tuple[str, ...]) -> None:
        for stream in streams:
            gone = self.streams.pop(stream, None)
            if gone is not None:
                self.lease_epoch_floor = max(self.lease_epoch_floor, gone.lease_epoch)
            self.sessions.forget_stream(stream)
        self.operated.forget_streams(streams)
        if self.lost_from is not None:
            self.lost_from = self.lease_epoch_floor + 1

    # ------------------------------------------------------------ what is done to it

    def _act(self, record: Acted) -> Iterable[str]:
        """Do to streams what the act does; what it sets is the business of `Operated`."""
        match record.outcome:
            case o.Reset(moves=moves, behind=behind):
                for stream, (_, offset) in moves.items():
                    self.sessions.leave(self.streams[stream].session, stream)
                    self.streams[stream].begin_anew(offset, self.next_lease_epoch(stream))
                for stream in behind:
                    self._let_go(stream)
                    self.streams[stream].waiting = True
                return (*moves, *behind)
            case o.StreamTaken(stream=stream):
                self._let_go(stream)
                return (stream,)
            case o.Retried(stream=stream):
                self.streams[stream].failure = None
            case o.SentToDeadLetters(stream=stream):
                failure = self.streams[stream].failure
                if failure is not None:
                    self.streams[stream].failure = failure.model_copy(update={"fate": "dead_letter"})
            case o.HoldsNothing():
                self.expired_at = record.at
                return (EXPIRED,)
            case o.GroupPaused() | o.Resumed():
                return (PAUSED,)
            case o.Drained() | o.Undrained() | o.Moved() | o.Rebalanced():
                pass
            case o.SteppedDown() | o.Deleted():
                pass
            case _:
                assert_never(record.outcome)
        return ()

    # ------------------------------------------------------------ as it is stored

    def snapshot(self) -> bytes:
        """The whole state as one JSON document."""
        return self.model_dump_json().encode()

    @classmethod
    def restore(cls, data: bytes) -> GroupState:
        """The state that `snapshot` wrote."""
        return cls.model_validate(json.loads(data))
