"""The cut that a query proposes, until its leader says what of it is fixed: a part of the query's machine.

============  ==================================================================================
none          `make` shares out what waits, or `fix` says just what is to be fixed: it is proposed
proposed      it is asked for again until it is answered; its streams stay. `make` and `fix`
              put another one in its place; `withdraw` none
answered      `take`: there is none any more
============  ==================================================================================

Each proposal has a number, which its answer repeats: an answer to one that was made before means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamlease.borrower.book import Held
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.messages import CutFixed, FixCut
from streamlease.spark.core.finished_cuts import FinishedCuts
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.unread import UnreadMessages


@dataclass(slots=True)
class QueryIdentity:
    """Who the query is to its leader."""

    group: str
    session: str = ""
    arrival: int = 0


class ProposedCut:
    """What a query asks its leader to fix.

    Args:
        held: the streams of the query.
        unread: what waits in them.
        whole: whether the leader is to fix all of it or nothing.
    """

    def __init__(
        self,
        who: QueryIdentity,
        finished: FinishedCuts,
        held: Mapping[str, Held],
        unread: UnreadMessages,
        *,
        whole: bool = False,
    ) -> None:
        self._who = who
        self._whole = whole
        self._finished = finished
        self._held = held
        self._unread = unread
        self.message: FixCut | None = None
        """What is proposed; None if nothing is."""
        self._number = 0
        self._names: tuple[int, set[str]] = (0, set())
        """The newest proposal of which somebody asked, and its streams."""
        self._passed_over: dict[str, int] = {}
        """In how many cuts in a row a stream with something to read got nothing."""

    def make(
        self,
        waiting: Mapping[str, int],
        limits: Limits,
        milliseconds: int = 0,
        mean_bytes: Mapping[str, float] | None = None,
    ) -> FixCut | None:
        """Propose the cut that can be made of what waits now, or none.

        Args:
            waiting: see :meth:`UnreadMessages.counts`.
            limits: what the cut may hold.
            milliseconds: how long ago the last cut was fixed.
            mean_bytes: size of a message of each stream, where a limit of bytes asks for it.
        """
        # A pinned part is taken whole, so that it is the same part again, and leaves less for the rest.
        pinned, held = self._unread.pinned_ends(), self._held
        sizes: dict[str, int] = {}
        means = mean_bytes or {}
        if pinned or limits.is_worth_a_cut(sum(waiting.values()), milliseconds):
            taken = {stream: end - held[stream].committed for stream, end in pinned.items()}
            left = limits.less(
                sum(taken.values()), sum(rows * means.get(stream, 0.0) for stream, rows in taken.items())
            )
            if left.max_rows != 0 and left.max_bytes != 0:
                sizes = left.sizes(waiting, means, self._passed_over)
        ends = pinned | {stream: held[stream].committed + size for stream, size in sizes.items()}
        if not ends:
            self.message = None
            return None
        over = [one for one in waiting if one not in sizes] if len(sizes) < len(waiting) else ()
        self._passed_over = {stream: self._passed_over.get(stream, 0) + 1 for stream in over}
        return self.fix(ends)

    def fix(self, ends: Mapping[str, int]) -> FixCut:
        """Propose the next cut: each stream from where it is committed to its end."""
        self._number += 1
        held = [self._held[stream] for stream in ends]
        self.message = FixCut(
            group=self._who.group,
            session=self._who.session,
            arrival=self._who.arrival,
            cut=self._finished.newest + 1,
            finished=self._finished.newest,
            ranges=Ranges(
                [*ends],
                [one.lease_epoch for one in held],
                [one.committed for one in held],
                [*ends.values()],
            ),
            proposal=self._number,
            whole=self._whole,
        )
        return self.message

    def withdraw(self) -> None:
        """Nothing is proposed any more."""
        self.message = None

    def holds(self, stream: str) -> bool:
        """Whether a part of the stream is proposed."""
        if self.message is None:
            return False
        if self._names[0] != self.message.proposal:
            self._names = self.message.proposal, set(self.message.ranges.streams)
        return stream in self._names[1]

    # ------------------------------------------------------------ the answer

    def is_meant(self, fixed: CutFixed) -> bool:
        """Whether this is an answer to what is proposed, and not to what was proposed before."""
        return self.message is not None and self.message.proposal == fixed.proposal

    def is_older(self, fixed: CutFixed) -> bool:
        """Whether the leader knows of finished cuts that the checkpoint does not know of."""
        message = self.message
        return message is not None and fixed.finished >= message.cut and not _fixed(message, fixed)

    def take(self, fixed: CutFixed) -> Ranges:
        """The ranges that are fixed, by the answer to what is proposed."""
        message, self.message = self.message, None
        assert message is not None
        return _fixed(message, fixed)


def _fixed(message: FixCut, answer: CutFixed) -> Ranges:
    return answer.ranges if answer.ranges is not None else message.ranges
