"""What a query knows of its streams and cuts: a part of the query's machine.

It decides what a finished cut commits, when a revoked stream may leave, and what of an unfinished cut is
still the query's own. What is held is in the consumer's book; a cut is finished as a whole, so of a stream
nothing is ever delivered and not committed. A cut goes from part to part::

    proposed (`ProposedCut`) --> open --> finished (`FinishedCuts`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from streamlease.borrower.book import ConsumerBook
from streamlease.borrower.events import Progressed, StreamGone, StreamGranted, StreamRevoking
from streamlease.protocol.cuts import NO_RANGES, Ranges
from streamlease.protocol.messages import (
    CutFixed,
    CutResumed,
    FinishCut,
    Progress,
    ResumeCut,
)
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.finished_cuts import FinishedCuts, is_pinned_to
from streamlease.spark.core.proposed_cut import ProposedCut, QueryIdentity
from streamlease.spark.core.unread import UnreadMessages

Report = Callable[[int, Progressed], None]
"""Tells the borrower of a slot how far a stream is."""


class QueryCuts:
    """The streams of one query and its cuts.

    Args:
        whole: whether the leader is to fix all of what is proposed or nothing.
    """

    def __init__(self, group: str, report: Report, *, whole: bool = False) -> None:
        self.who = QueryIdentity(group)
        self.book = ConsumerBook()
        self.held = self.book.streams
        self.unread = UnreadMessages(self.held)
        self.finished = FinishedCuts()
        self.proposed = ProposedCut(self.who, self.finished, self.held, self.unread, whole=whole)
        self.open: CutOffset | None = None
        self.open_streams: set[str] = set()
        """Streams of the open cut that were not lost since it was fixed."""
        self.rebalances = 0
        """How many streams came or went since there was a cut: to begin is no rebalance."""
        self._has_begun = False
        self.settled = False
        """Whether it is known what became of the cut that was open when the query was stopped."""
        self._report = report
        self._asked_back: dict[str, None] = {}
        """All streams that are revoking, and some that are not any more."""

    # ------------------------------------------------------------ streams

    def granted(self, slot: int, grant: StreamGranted) -> int | None:
        """Hold the stream; go on if it never left the session.

        Returns:
            how far the query was, if the stream went on without it although nobody else had it.
        """
        stream = grant.stream
        done = self.book.granted(slot, grant)
        if not done.goes_on and (done.former is not None or grant.resumes is None):
            self.open_streams.discard(stream)  # others may have read it, or an operator moved the group
            self.rebalances += self._has_begun
        self.unread.look_at(stream)
        self._attest(stream)
        if done.behind is None:
            return None
        came_to = max(done.behind, self._end_in_open_cut(stream))
        return came_to if came_to < grant.progress else None

    def _end_in_open_cut(self, stream: str) -> int:
        return (
            max((part.end for part in self.open.ranges if part.stream == stream), default=0)
            if self.open
            else 0
        )

    def revoking(self, revoking: StreamRevoking) -> bool:
        """Let the stream go as soon as no cut holds it; False for a late word."""
        if self.book.revoking(revoking) is None:
            return False
        self._asked_back[revoking.stream] = None
        self._release((revoking.stream,))
        return True

    def gone(self, gone: StreamGone) -> bool:
        """Forget the stream, or keep it in limbo after its borrower's end; False for a late word."""
        if self.book.gone(gone, busy=not self.settled or self._is_busy(gone.stream)) is None:
            return False
        self.unread.look_at(gone.stream)
        self.rebalances += self._has_begun
        return True

    def settle(self) -> None:
        """No cut of an earlier process is open: streams may leave."""
        if not self.settled:
            self.settled = True
            self.release_revoked()

    def release_revoked(self) -> None:
        """Report final progress of revoked streams that no open or proposed cut holds.

        Not before it is known what became of the last cut of an earlier process: to give one of its
        streams back would have its rows read again, although they may have gone through the sink.
        """
        self._release(list(self._asked_back))

    def _release(self, streams: Iterable[str]) -> None:
        if not self.settled:
            return
        for stream in streams:
            held = self.held.get(stream)
            if held is None or not held.revoking:
                del self._asked_back[stream]
            elif not self._is_busy(stream):
                self._report(held.slot, held.progress())
                del self._asked_back[stream]

    def _is_busy(self, stream: str) -> bool:
        """Whether the open or the proposed cut holds the stream."""
        return stream in self.open_streams or self.proposed.holds(stream)

    # ------------------------------------------------------------ the open cut

    def fixed(self, fixed: CutFixed) -> CutOffset | None:
        """The answer to what was proposed: the cut that is open now; None if nothing of it may be read."""
        ranges = self.proposed.take(fixed)
        if not ranges:
            self.release_revoked()
            return None
        cut = self._cut_of(fixed, ranges)
        self.set_open(cut)
        return cut

    def _cut_of(self, answer: CutFixed | CutResumed, ranges: Ranges) -> CutOffset:
        return CutOffset(self.who.group, self.who.session, answer.cut, answer.term, ranges)

    def set_open(self, cut: CutOffset | None) -> None:
        """This cut is open now, or none is."""
        self.settled = True
        self._has_begun = self._has_begun or cut is not None
        self.open = cut
        # A range of before the present lease began, by a late answer, says nothing of the stream's progress.
        streams, lease_epochs, _, _ = cut.ranges.columns if cut is not None else NO_RANGES.columns
        self.open_streams = {
            stream
            for stream, lease_epoch in zip(streams, lease_epochs, strict=True)
            if (held := self.held.get(stream)) is None or held.since <= lease_epoch
        }
        self.release_revoked()

    def by_slot(self, ranges: Ranges, slots: int) -> dict[int, Ranges]:
        """What each of so many slots reads; streams that none holds, as after a restart, are spread."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, stream in enumerate(ranges.streams):
            held = self.held.get(stream)
            places[place % slots if held is None else held.slot].append(place)
        return {slot: ranges.at(places[slot]) for slot in sorted(places)}

    # ------------------------------------------------------------ the end of a cut

    def is_open(self, cut: CutOffset) -> bool:
        """Whether `cut` was fixed, or is read again, by this process and is not finished."""
        return self.open is not None and self.open.cut == cut.cut

    def finish(self, done: CutOffset, following: CutResumed | None = None) -> CutOffset | None:
        """The cut went through the sink. One that is not open was fixed by an earlier process.

        Args:
            following: what the leader answered to `ask_for_next`.

        Returns:
            the cut that such a process had fixed besides, and not taken note of: it is open now.
        """
        own = self.open if self.is_open(done) else None
        if own is not None:
            mine, (streams, _, _, ends) = self.open_streams, done.ranges.columns
            for stream, end in zip(streams, ends, strict=True):
                held = self.held.get(stream)
                if held is not None and end > held.committed and stream in mine:
                    held.advance(end)
        self.finished.add(own or done, told=own is None)
        for stream in self.unread.pinned():
            self._attest(stream)
        return self.take_up(following)

    def take_up(self, following: CutResumed | None) -> CutOffset | None:
        """What an earlier process had fixed besides, by the answer to `ask_for_next`, is open now."""
        cut = None
        if following is not None and following.ranges:
            cut = self._cut_of(following, following.ranges)
        self.set_open(cut)
        return cut

    def ask_for_next(self, done: CutOffset) -> ResumeCut:
        """Asks for the cut behind `done`, of which the leader may know although no checkpoint does.

        A process that ends before its checkpoint names the cut that it has just fixed leaves it open. None of
        it was read; but the next process must not give one of its streams away before it knows of it.
        """
        who = self.who
        return ResumeCut(group=who.group, session=who.session, arrival=who.arrival, cut=done.cut + 1)

    def finish_cut(self, done: CutOffset, term: int) -> FinishCut:
        """Says that all cuts up to `done` went through the sink, and what that one was.

        The leader that fixed it for this process need not be told what it was.

        Args:
            term: that of the leader who is told.
        """
        own = self.open if self.is_open(done) else None
        mine, read = own is not None or done is self.finished.last, own or done
        return FinishCut(
            group=self.who.group,
            session=self.who.session,
            arrival=self.who.arrival,
            finished=done.cut,
            ranges=None if mine and read.term == term else read.ranges,
            term=term,
        )

    def believe(self, progress: tuple[Progress, ...]) -> dict[str, int]:
        """Take over what the leader says is committed, for streams that are in no open cut.

        Returns:
            the streams that went on, and where they were.
        """
        were: dict[str, int] = {}
        for entry in progress:
            held = self.held.get(entry.stream)
            if (
                held is not None
                and held.lease_epoch == entry.lease_epoch
                and entry.stream not in self.open_streams
            ):
                if entry.offset > held.committed:
                    were[entry.stream] = held.committed
                held.follow(entry.offset)
                self.unread.look_at(entry.stream)
        return were

    def _attest(self, stream: str) -> None:
        """Commit what is pinned, if the checkpoint says that just this went through the sink already."""
        held = self.held[stream]
        end = self.finished.attested(held)
        if end is not None:
            held.advance(end)
            self._report(held.slot, Progressed(stream, held.lease_epoch, end))

    # ------------------------------------------------------------ an unfinished cut of an earlier process

    def resume_cut(self, cut: CutOffset) -> ResumeCut:
        """Asks what of `cut` is still the query's own; all cuts before it are finished."""
        self.finished.begin_behind(cut.cut - 1)
        return ResumeCut(
            group=self.who.group,
            session=self.who.session,
            arrival=self.who.arrival,
            cut=cut.cut,
            ranges=cut.ranges,
        )

    def pinned(self, cut: CutOffset) -> dict[str, int]:
        """The streams whose part of `cut` nobody took over, although the query was given up, and its ends."""
        return {
            part.stream: part.end
            for part in cut.ranges
            if (held := self.held.get(part.stream)) is not None and is_pinned_to(held, part)
        }

    def resumed(self, cut: CutOffset, term: int, mine: set[str]) -> Ranges:
        """Of `cut`, only the streams `mine` are read again; what is to be read."""
        ranges = cut.ranges.only(mine)
        self.set_open(CutOffset(cut.group, cut.session, cut.cut, term, ranges))
        return ranges
