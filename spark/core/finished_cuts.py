"""Which of a query's cuts went through the sink, and whether its leader knows: a part of the query's machine.

====================================  ==============================================
a cut that went through               and the leader
====================================  ==============================================
was open in this process              has yet to confirm it, or one behind it
was fixed by an earlier process       said itself that it is finished
====================================  ==============================================

A leader that had given the query up has the ends of its last cut pinned in streams that nobody else had.
There the query says that just this went through already, and the rows are not read again. It says so as well
of a stream that it is granted again only when the cut has gone through, and the leader does not know yet.
"""

from __future__ import annotations

from streamlease.borrower.book import Held
from streamlease.protocol.cuts import CutRange
from streamlease.protocol.errors import Fenced
from streamlease.spark.core.checkpoint import CutOffset


class FinishedCuts:
    """The cuts up to the newest one that went through the sink."""

    def __init__(self) -> None:
        self.newest = 0
        """The number of that cut."""
        self.last: CutOffset | None = None
        """The last one that is known, as far as it was read here."""
        self.unconfirmed = False
        """Whether the leader has yet to confirm that it is finished."""
        self._own = False
        """Whether `last` was open in this process."""
        self._parts: dict[str, CutRange] | None = None
        """The ranges of the last one by stream, once one was asked for."""

    def add(self, cut: CutOffset, *, told: bool) -> None:
        """This one went through, and all before it did.

        Args:
            told: the leader knows.
        """
        self.newest, self.last, self._own = cut.cut, cut, not told
        self.unconfirmed = self.unconfirmed or not told
        self._parts = None

    def begin_behind(self, cut: int) -> None:
        """All cuts up to this one went through."""
        self.newest = max(self.newest, cut)

    def confirm(self, finished: int) -> None:
        """The leader knows that all cuts up to `finished` are."""
        if finished >= self.newest:
            self.unconfirmed = False

    def attested(self, held: Held) -> int | None:
        """How far a stream is, if what comes next, or is pinned in it, went through already."""
        unheard = self._own and self.unconfirmed
        if self.last is None or not (unheard or held.pinned_end is not None):
            return None
        if self._parts is None:
            self._parts = {part.stream: part for part in self.last.ranges}
        part = self._parts.get(held.stream)
        if part is None or held.limbo:
            return None
        # Granted once its cut was finished, which the leader has yet to hear; nobody else had it since.
        again = held.since <= part.lease_epoch and part.start <= held.committed < part.end
        return part.end if (unheard and again) or is_pinned_to(held, part) else None


def is_pinned_to(held: Held, part: CutRange) -> bool:
    """Whether the next cut must be what `part` was, and nobody had the stream since.

    A batch that is read in part leaves out only streams that were leased again, so the next lease epoch
    proves that `part` was not left out.
    """
    return (
        not held.limbo
        and held.follows == part.lease_epoch
        and (held.committed, held.pinned_end) == (part.start, part.end)
    )


def older_checkpoint(session: str, cut: int, finished: int) -> Fenced:
    """The error of a query whose checkpoint does not know cut `cut`, although all up to `finished` are."""
    return Fenced(
        f"cut {cut} of query {session} was finished already, by cut {finished}: its checkpoint is older than "
        f"its progress; use the newest checkpoint, or a new one"
    )
