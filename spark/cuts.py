"""What a query knows of its streams and cuts: pure, without a clock, a session or a leader of its own.

`QuerySession` beside Spark's driver asks and tells; this decides what is proposed, what a finished cut
commits, when a revoked stream may leave, and what of an unfinished cut is still the query's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamlease.borrower.machine import Progressed, StreamGone, StreamGranted, StreamRevoking
from streamlease.protocol.errors import Fenced
from streamlease.protocol.messages import (
    CutFixed,
    CutRange,
    CutResumed,
    FinishCut,
    FixCut,
    Progress,
    ResumeCut,
)
from streamlease.spark.limits import Limits
from streamlease.spark.offsets import CutOffset, SlotRange

Report = Callable[[int, Progressed], None]
"""Tells the borrower of a slot how far a stream is."""


@dataclass(slots=True)
class Held:
    """One stream that the query holds."""

    slot: int
    lease_epoch: int
    committed: int
    pinned_end: int | None
    revoking: bool = False
    follows: int | None = None
    """The epoch of the lease before this one; None: not known."""
    limbo: bool = False
    """The borrower ended; the stream may come back to its successor."""
    since: int = 0
    """The lease epoch since which the query has had the stream without a break."""

    def commit(self, offset: int) -> None:
        """Everything below `offset` is committed."""
        self.committed = offset
        if self.pinned_end is not None and offset >= self.pinned_end:
            self.pinned_end = None

    def is_pinned_to(self, part: SlotRange) -> bool:
        """Whether the next cut must be what `part` was, and nobody had the stream since.

        A batch that is read in part leaves out only streams that were leased again, so the next epoch
        proves that `part` was not left out.
        """
        return (
            not self.limbo
            and self.follows == part.lease_epoch
            and (self.committed, self.pinned_end) == (part.start, part.end)
        )


class QueryCuts:
    """The streams of one query and its cuts."""

    def __init__(self, group: str, report: Report) -> None:
        self.group = group
        self.session = ""
        self.arrival = 0
        self.held: dict[str, Held] = {}
        self.given_back: dict[str, Held] = {}
        """Streams whose final progress was reported; a leader that did not hear it grants them once more."""
        self.finished = 0
        """The newest cut that went through the sink."""
        self.unconfirmed = False
        """Whether the leader has yet to confirm that cut `finished` is finished."""
        self.went_through: CutOffset | None = None
        """The last cut that went through the sink, as far as it was read here."""
        self.attested: dict[str, SlotRange] = {}
        """Ranges of the last cut that went through the sink."""
        self.open: CutOffset | None = None
        self.open_streams: set[str] = set()
        """Streams of the open cut that were not lost since it was fixed."""
        self.proposed: FixCut | None = None
        self.rebalances = 0
        self.settled = False
        """Whether it is known what became of the cut that was open when the query was stopped."""
        self._report = report
        self._passed_over: dict[str, int] = {}
        """In how many cuts in a row a stream with something to read got nothing."""

    # ------------------------------------------------------------ streams

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """Hold the stream; go on if it never left the session."""
        former = self.given_back.pop(grant.stream, None)
        held = self.held.get(grant.stream, former)
        committed = grant.progress
        if grant.resumes is None or (held is not None and held.lease_epoch < grant.resumes):
            self.open_streams.discard(grant.stream)
            self.rebalances += 1
        elif held is not None:
            committed = max(committed, held.committed)
        since = grant.lease_epoch if grant.resumes is None else grant.resumes
        self.held[grant.stream] = Held(
            slot, grant.lease_epoch, committed, grant.pinned_end, since=since, follows=grant.follows
        )
        self._attest(grant.stream)

    def revoking(self, revoking: StreamRevoking) -> None:
        """Let the stream go as soon as no cut holds it."""
        held = self.held.get(revoking.stream)
        if held is not None and held.lease_epoch == revoking.lease_epoch:
            held.revoking = True
            self.release_revoked()

    def gone(self, gone: StreamGone) -> bool:
        """Forget the stream, or keep it in limbo after its borrower's end; False for a late word."""
        held = self.held.get(gone.stream)
        if held is None or held.lease_epoch != gone.lease_epoch:
            return False
        if held.revoking and self.settled and gone.stream not in self._busy():
            self.given_back[gone.stream] = self.held.pop(gone.stream)
        else:
            held.limbo = True
        self.rebalances += 1
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
        if not self.settled:
            return
        busy = self._busy()
        for stream, held in list(self.held.items()):
            if held.revoking and stream not in busy:
                self._report(held.slot, Progressed(stream, held.lease_epoch, held.committed, final=True))

    def _busy(self) -> set[str]:
        """The streams that the open or the proposed cut holds."""
        proposed = self.proposed.ranges if self.proposed is not None else ()
        return self.open_streams | {part.stream for part in proposed}

    def slot_of(self, stream: str) -> int:
        """The slot that reads the stream."""
        held = self.held.get(stream)
        return held.slot if held is not None else 0

    # ------------------------------------------------------------ the next cut

    @property
    def has_pinned(self) -> bool:
        """Whether a stream must be read up to where a former cut ended."""
        return any(
            held.pinned_end is not None and not (held.revoking or held.limbo) for held in self.held.values()
        )

    def waiting(self, end_of: Callable[[str], int]) -> dict[str, int]:
        """How many messages wait in each stream that may be put into a cut, as far as known."""
        return {
            stream: end - held.committed
            for stream, held in self.held.items()
            if not (held.revoking or held.limbo or held.pinned_end is not None)
            and (end := end_of(stream)) > held.committed
        }

    def propose(
        self,
        waiting: Mapping[str, int],
        limits: Limits,
        milliseconds: int = 0,
        mean_bytes: Mapping[str, float] | None = None,
    ) -> FixCut | None:
        """The cut that could be made of what waits now; it is proposed from now on.

        Args:
            waiting: see :meth:`waiting`.
            limits: what the cut may hold.
            milliseconds: how long ago the last cut was fixed.
            mean_bytes: size of a message of each stream, where a limit of bytes asks for it.
        """
        # A pinned part is taken whole, so that it is the same part again, and leaves less for the rest.
        pinned = {
            stream: held.pinned_end
            for stream, held in self.held.items()
            if held.pinned_end is not None and not (held.revoking or held.limbo)
        }
        sizes: dict[str, int] = {}
        means = mean_bytes or {}
        if pinned or limits.is_worth_a_cut(sum(waiting.values()), milliseconds):
            taken = {stream: end - self.held[stream].committed for stream, end in pinned.items()}
            left = limits.less(
                sum(taken.values()), sum(rows * means.get(stream, 0.0) for stream, rows in taken.items())
            )
            if left.max_rows != 0 and left.max_bytes != 0:
                sizes = left.sizes(waiting, means, self._passed_over)
        ends = pinned | {stream: self.held[stream].committed + size for stream, size in sizes.items()}
        if ends:
            self._passed_over = {
                stream: self._passed_over.get(stream, 0) + 1 for stream in waiting if stream not in sizes
            }
        self.proposed = self.fix_cut(ends) if ends else None
        return self.proposed

    def fix_cut(self, ends: Mapping[str, int]) -> FixCut:
        """The next cut: each stream from where it is committed to its end."""
        return FixCut(
            group=self.group,
            session=self.session,
            arrival=self.arrival,
            cut=self.finished + 1,
            finished=self.finished,
            ranges=tuple(
                CutRange(
                    stream=stream,
                    lease_epoch=self.held[stream].lease_epoch,
                    start=self.held[stream].committed,
                    end=end,
                )
                for stream, end in ends.items()
            ),
        )

    def fixed(self, fixed: CutFixed) -> CutOffset | None:
        """The answer to what was proposed: the cut that is open now; None if nothing of it may be read.

        Raises:
            Fenced: the checkpoint is older than the session's progress.
        """
        proposed, self.proposed = self.proposed, None
        assert proposed is not None
        if not fixed.ranges:
            if fixed.finished >= proposed.cut:
                raise Fenced(
                    f"cut {proposed.cut} of query {self.session} was finished already, by cut "
                    f"{fixed.finished}: its checkpoint is older than its progress; "
                    f"use the newest checkpoint, or a new one"
                )
            self.release_revoked()
            return None
        cut = self._cut_of(fixed)
        self.set_open(cut)
        return cut

    def _cut_of(self, answer: CutFixed | CutResumed) -> CutOffset:
        parts = tuple(
            SlotRange(part.stream, part.start, part.end, part.lease_epoch, self.slot_of(part.stream))
            for part in answer.ranges
        )
        return CutOffset(self.group, self.session, answer.cut, answer.term, parts)

    def set_open(self, cut: CutOffset | None) -> None:
        """This cut is open now, or none is."""
        self.settled = True
        self.open = cut
        # A range of before the present lease began, by a late answer, says nothing of the stream's progress.
        self.open_streams = {
            part.stream
            for part in (cut.ranges if cut is not None else ())
            if (held := self.held.get(part.stream)) is None or held.since <= part.lease_epoch
        }
        self.release_revoked()

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
        read = done
        if self.open is not None and self.is_open(done):
            read = self.open
            for part in done.ranges:
                held = self.held.get(part.stream)
                if held is not None and part.stream in self.open_streams:
                    held.commit(max(held.committed, part.end))
            self.unconfirmed = True
        self.finished = done.cut
        self.went_through = read
        self.attested = {part.stream: part for part in read.ranges}
        for stream in self.held:
            self._attest(stream)
        cut = self._cut_of(following) if following is not None and following.ranges else None
        self.set_open(cut)
        return cut

    def ask_for_next(self, done: CutOffset) -> ResumeCut:
        """Asks for the cut behind `done`, of which the leader may know although no checkpoint does.

        A process that ends before its checkpoint names the cut that it has just fixed leaves it open. None of
        it was read; but the next process must not give one of its streams away before it knows of it.
        """
        return ResumeCut(
            group=self.group, session=self.session, arrival=self.arrival, cut=done.cut + 1, ranges=()
        )

    def finish_cut(self, done: CutOffset) -> FinishCut:
        """Says that all cuts up to `done` went through the sink, and what that one was."""
        read = self.open if self.open is not None and self.is_open(done) else done
        return FinishCut(
            group=self.group,
            session=self.session,
            arrival=self.arrival,
            finished=done.cut,
            ranges=_ranges(read),
        )

    def confirm(self, finished: int) -> bool:
        """The leader knows that all cuts up to `finished` are; whether there is nothing left to confirm."""
        if finished >= self.finished:
            self.unconfirmed = False
        return not self.unconfirmed

    def believe(self, progress: tuple[Progress, ...]) -> None:
        """Take over what the leader says is committed, for streams that are in no open cut."""
        for entry in progress:
            held = self.held.get(entry.stream)
            if (
                held is not None
                and held.lease_epoch == entry.lease_epoch
                and entry.stream not in self.open_streams
            ):
                held.commit(entry.offset)

    def _attest(self, stream: str) -> None:
        """Commit what is pinned, if the checkpoint says that just this went through the sink already."""
        held, part = self.held[stream], self.attested.get(stream)
        if part is not None and held.is_pinned_to(part):
            held.committed, held.pinned_end = part.end, None
            self._report(held.slot, Progressed(stream, held.lease_epoch, part.end))

    # ------------------------------------------------------------ an unfinished cut of an earlier process

    def resume_cut(self, cut: CutOffset) -> ResumeCut:
        """Asks what of `cut` is still the query's own; all cuts before it are finished."""
        self.finished = max(self.finished, cut.cut - 1)
        return ResumeCut(
            group=self.group,
            session=self.session,
            arrival=self.arrival,
            cut=cut.cut,
            ranges=_ranges(cut),
        )

    def pinned(self, cut: CutOffset) -> dict[str, int]:
        """The streams whose part of `cut` nobody took over, although the query was given up, and its ends."""
        return {
            part.stream: part.end
            for part in cut.ranges
            if (held := self.held.get(part.stream)) is not None and held.is_pinned_to(part)
        }

    def resumed(self, cut: CutOffset, term: int, mine: set[str]) -> tuple[SlotRange, ...]:
        """Of `cut`, only the streams `mine` are read again; what is to be read."""
        ranges = tuple(part for part in cut.ranges if part.stream in mine)
        self.set_open(CutOffset(cut.group, cut.session, cut.cut, term, ranges))
        return ranges


def _ranges(cut: CutOffset) -> tuple[CutRange, ...]:
    return tuple(
        CutRange(stream=part.stream, lease_epoch=part.lease_epoch, start=part.start, end=part.end)
        for part in cut.ranges
    )
