"""Makes cuts of whole epochs: waits until the query holds what it will hold, and until a boundary is known.

A cut is made only while every stream that the leader counts as the query's own is granted. Else a stream that
moves from one of its slots to another, or comes back after its borrower's end, would bring its part of an
epoch a micro-batch later. The leader is asked for that whenever what is held has changed, and fixes all that
is proposed or nothing: if a stream is asked back just then, the cut is made anew once that is settled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from streamlease.spark.core import query_events as q
from streamlease.spark.core.available import View
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.conversations.query_desk import ANSWER_SECONDS, Desk
from streamlease.spark.core.epoch_ends import Bound, BoundsFound, EpochEnds, shown
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.targets import CUT_SECONDS, holds_all

LOOK_SECONDS = 0.02
"""How often Redis is asked for boundaries while messages wait that are behind the newest one."""


class EpochCut:
    """The next cut of a query that reads whole epochs."""

    def __init__(self, desk: Desk, cuts: QueryCuts) -> None:
        self._desk = desk
        self._cuts = cuts
        self._ends = EpochEnds()
        self._looked_at: float | None = None
        """When Redis said that there is no further boundary."""
        self._whole: dict[str, int] | None = None
        """The leases with which the query had all of its streams; None: that is not known."""
        self._moving_since: float | None = None
        """Since when the streams of the group have been on their way, by the leader's word."""
        self._asked: tuple[Bound | None, int] = None, 0
        """The boundary at which the newest proposal ends, and how many streams it has."""
        self._given: Bound | None = None
        """The boundary of the newest cut."""
        self._cut = 0
        """The number of that."""
        self.wants_view = False
        """Whether the group must be looked at before a cut is made."""

    def propose(self, most: int | None, targets: Mapping[str, int] | None) -> None:
        """Propose the next cut, if that can be done by what is known; else have it found out.

        Args:
            most: how many epochs it may have.
            targets: the ends beyond which nothing is to be read; None: there are none.
        """
        cuts, desk = self._cuts, self._desk
        pinned = cuts.unread.pinned_ends()
        self.wants_view = False
        if not pinned and not cuts.unread.counts(targets):
            return
        if self._leases() != self._whole:
            self.wants_view = True
            return
        positions = {stream: one.committed for stream, one in cuts.held.items() if one.is_granted}
        behind = self._ends.is_behind(positions)
        found = None if behind else self._ends.next(positions, pinned, most, targets)
        if found is not None:
            bound, ends = found
            self._asked = bound, len(ends)
            cuts.proposed.fix(ends)
        elif behind or self._ends.more or self._may_look():
            desk.find(q.EpochBounds(positions, anew=behind))
        elif pinned:  # what a former cut has in them is no epoch's end, or boundaries are gone
            self._asked = self._ends.newest_read, len(pinned)
            cuts.proposed.fix(pinned)

    def _may_look(self) -> bool:
        return self._looked_at is None or self._desk.now >= self._looked_at + LOOK_SECONDS

    def found(self, news: BoundsFound) -> None:
        """The next boundaries."""
        self._ends.found(news)
        self._looked_at = None if news.bounds else self._desk.now

    def viewed(self, view: View | None) -> None:
        """The group as its leader describes it, just now."""
        if view is None or not self._desk.around.connected:
            return
        leases = self._leases()
        if view["state"] == "stable":
            self._moving_since = None
        elif self._moving_since is None:
            self._moving_since = self._desk.now
        waited = 0.0 if self._moving_since is None else self._desk.now - self._moving_since
        if holds_all(view, self._cuts.who.session, leases, patient=waited < CUT_SECONDS):
            self._whole = leases

    def may_wait(self) -> bool:
        """Whether Spark's call is to wait for a look at the group."""
        return self.wants_view and self._desk.now - self._desk.asked_at < ANSWER_SECONDS

    def fixed(self, cut: CutOffset | None) -> None:
        """The leader has fixed what was proposed; or nothing, and streams are on their way."""
        if cut is None:
            self._whole = None
            return
        self._given, asked = self._asked
        self._cut = cut.cut
        if len(cut.ranges) < asked:
            self._desk.say(
                logging.WARNING,
                f"cut {cut.cut}: {asked - len(cut.ranges)} of {asked} streams were taken out of it by force, "
                f"so it lacks their part of its epochs; whoever gets these streams reads it",
            )

    def report(self) -> dict[str, Any] | None:
        """The boundary at which the newest cut ends, and the lower frontier there; None: not known yet."""
        return shown(self._given or self._ends.newest_read)

    def boundary_of(self, cut: int) -> int | None:
        """The number of the boundary at which a cut ends, if it is the newest one and was made here."""
        return self._given.number if self._given is not None and cut == self._cut else None

    def _leases(self) -> dict[str, int]:
        return {stream: one.lease_epoch for stream, one in self._cuts.held.items() if one.is_granted}
