"""An unfinished cut of an earlier process: what of it is still the query's own, and is read again.

* The leader is asked which ranges of the cut are still the query's; what another query took over meanwhile is
  read there, and not here again.
* A query that was silent for so long that it was given up finds the cut pinned in the streams that nobody
  took over: there it is fixed again as it was.
* A cut is read in part only once its loss cannot be lost (`docs/decisions/0075-a-cut-read-in-part.md`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from streamlease.protocol.messages import CutFinished, CutFixed, CutResumed
from streamlease.spark.core.checkpoint import CutOffset, SlotRange, SlotRanges
from streamlease.spark.core.cuts import QueryCuts, older_checkpoint
from streamlease.spark.query.outage import unled, unsettled
from streamlease.spark.query.questions import ANSWER_SECONDS, Questions

log = logging.getLogger(__name__)

RESUME_SECONDS = 60.0
REGRANT_SECONDS = 2.0
"""How long a query that was given up waits for the streams of its unfinished cut."""

TAIL_SECONDS = 3.0
"""How long a take-over must have been known before a cut is read without what was taken over: longer than the
tail of writes that a failover loses."""


class Resuming:
    """Takes up one query's unfinished cut.

    Args:
        subscription: what the query consumes, for messages.
        wait_for_news: waits a moment, or until something has happened; raises what ends the query.
        view: the group as its leader describes it, once all borrowers are connected; None: not yet.
    """

    def __init__(
        self,
        cuts: QueryCuts,
        questions: Questions,
        subscription: str,
        wait_for_news: Callable[[], Awaitable[None]],
        view: Callable[[], Awaitable[dict[str, Any] | None]],
    ) -> None:
        self._cuts = cuts
        self._questions = questions
        self._subscription = subscription
        self._wait_for_news = wait_for_news
        self._view = view

    async def ranges_of(self, cut: CutOffset) -> SlotRanges:
        """What is to be read again of `cut`, which is open from now on.

        Raises:
            Fenced: the cut is finished already.
            StoreUnavailable: no leader answered, or settled whose the streams are.
        """
        question = self._cuts.resume_cut(cut)
        while True:
            resumed = await self._questions.ask(question, CutResumed, RESUME_SECONDS)
            if resumed is None:
                raise unled(self._subscription, RESUME_SECONDS)
            mine = set(resumed.ranges.streams)
            if len(mine) < len(cut.ranges):
                await self._refuse_finished(cut, resumed.term)
            if not mine:
                mine = await self._fix_again(cut)
            lost = [part for part in cut.ranges if part.stream not in mine]
            if not lost or await self._is_lost_for_good(resumed.term, lost):
                break
        ranges = self._cuts.resumed(cut, resumed.term, mine)
        if lost:
            log.warning(
                "%d of the %d ranges of cut %d were taken over by others, or reset, and are not read again",
                len(lost),
                len(cut.ranges),
                cut.cut,
            )
        return ranges

    async def _refuse_finished(self, cut: CutOffset, term: int) -> None:
        """Whoever reads a cut that went through the sink would hand on a batch without rows in its place.

        Raises:
            Fenced: the leader knows that `cut` is finished, so the checkpoint is an old copy, or another
                process went on with it meanwhile.
        """
        before = CutOffset(self._cuts.group, self._cuts.session, cut.cut - 1)
        question = self._cuts.finish_cut(before, term)
        answer = await self._questions.ask(question, CutFinished, RESUME_SECONDS)
        if answer is None:
            raise unled(self._subscription, RESUME_SECONDS)
        if answer.finished >= cut.cut:
            raise older_checkpoint(self._cuts.session, cut.cut, answer.finished)

    async def _fix_again(self, cut: CutOffset) -> set[str]:
        """The leader has given the query up: the streams whose part of `cut` nobody took over meanwhile."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + REGRANT_SECONDS
        while True:
            pinned = self._cuts.pinned(cut)
            if len(pinned) == len(cut.ranges) or loop.time() >= give_up:
                break
            await self._wait_for_news()
        if not pinned:
            return set()
        self._cuts.proposed = self._cuts.fix_cut(pinned)
        fixed = await self._questions.ask(self._cuts.proposed, CutFixed, ANSWER_SECONDS)
        if fixed is None:
            raise unled(self._subscription, ANSWER_SECONDS)
        mine = set(self._cuts.ranges_of(fixed).streams)
        self._cuts.proposed = None
        return mine

    async def _is_lost_for_good(self, term: int, lost: list[SlotRange]) -> bool:
        """Wait until the take-over of `lost` is older than what a failover loses; False: begin again.

        A process after this one cannot know that the cut was read in part, and attests all of it. Only a
        leader that knows of the take-over refuses that.
        """
        await self._wait_until_leased_again(lost)
        await asyncio.sleep(TAIL_SECONDS)
        await self._wait_until_leased_again(lost)
        return self._questions.term == term

    async def _wait_until_leased_again(self, lost: list[SlotRange]) -> None:
        """Wait until each stream that was lost is leased again, to whomever; see `Held.is_pinned_to`."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + RESUME_SECONDS
        while lost and loop.time() < give_up:
            view = await self._view()
            if view is not None:
                epochs = {stream["stream"]: stream["lease_epoch"] for stream in view["streams"]}
                lost = [p for p in lost if epochs.get(p.stream, p.lease_epoch + 1) <= p.lease_epoch]
            await self._wait_for_news()
        if lost:
            raise unsettled(self._subscription, RESUME_SECONDS)
