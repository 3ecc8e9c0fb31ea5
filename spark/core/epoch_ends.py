"""Where a cut of whole epochs ends: at one boundary of the space, the same for all streams of the query.

All messages of an epoch come into their streams at one boundary, so a cut that ends at boundaries, and begins
where the last one ended, has all of an epoch or nothing of it. A stream that came to the query later may be
further behind than the others: it catches up boundary by boundary, and nothing of the others is taken before.
Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.epochs.order import Epoch


class Bound(NamedTuple):
    """One boundary, as far as a cut is concerned."""

    number: int
    lower: Antichain | None
    """None: not known."""
    ends: Mapping[str, int]
    """Of the streams that changed."""
    parts: frozenset[tuple[Epoch, str]] = frozenset()
    """Epochs that have messages, each with a stream in which they stand."""


class BoundsFound(NamedTuple):
    """The next boundaries of the space."""

    bounds: tuple[Bound, ...]
    more: bool = False
    """Whether there are others behind them already."""
    base: Bound | None = None
    """Where they begin, with the ends of all streams, if that is not behind those that were found before. No
    end is behind what was asked for."""


class EpochEnds:
    """The boundaries ahead of a query."""

    def __init__(self) -> None:
        self._base: Bound | None = None
        """The newest boundary of which nothing is left to read; its ends are in `_ends`."""
        self._ends: dict[str, int] = {}
        self._ahead: deque[Bound] = deque()
        self._more = True

    def found(self, news: BoundsFound) -> None:
        """Take the next boundaries."""
        if news.base is not None:
            self._base, self._ends = news.base, dict(news.base.ends)
            self._ahead.clear()
        self._ahead += news.bounds
        self._more = news.more

    @property
    def newest_read(self) -> Bound | None:
        """The newest boundary of which nothing is left to read; None while that is not known."""
        return self._base

    def is_behind(self, positions: Mapping[str, int]) -> bool:
        """Whether some stream is before all boundaries that are known here, so that others are needed."""
        return self._base is None or any(
            position < self._ends.get(stream, 0) for stream, position in positions.items()
        )

    def next(
        self,
        positions: Mapping[str, int],
        pinned: Mapping[str, int],
        most: int | None,
        targets: Mapping[str, int] | None = None,
    ) -> tuple[Bound, dict[str, int]] | None:
        """The boundary at which the next cut ends, and its end in each stream that has something to read.

        Args:
            positions: where the cut begins in all streams that the query holds; see also `is_behind`.
            pinned: where it must end in streams in which a former cut was not finished.
            most: how many epochs it may have; but it has one boundary at least.
            targets: the ends beyond which nothing is to be read; None: there are none.

        Returns:
            None: nothing of the boundaries known so far is to be read; perhaps there are `more`.
        """
        self._pass(positions)
        ends: dict[str, int] = {}
        epochs: set[Epoch] = set()
        last: Bound | None = None
        for bound in self._ahead:
            changed = {one: end for one, end in bound.ends.items() if end > positions.get(one, end)}
            if targets is not None and any(end > targets.get(one, 0) for one, end in changed.items()):
                break
            epochs |= {epoch for epoch, stream in bound.parts if stream in changed}
            if ends and not pinned and most is not None and len(epochs) > most:
                break
            ends |= changed
            last = bound
            if pinned and all(ends.get(stream, 0) >= end for stream, end in pinned.items()):
                break
        else:
            if self._more and (pinned or most is None or len(epochs) < most):
                return None
        if last is None or not ends:
            return None
        return last, {**ends, **pinned}

    @property
    def more(self) -> bool:
        """Whether there are others behind those that were found."""
        return self._more

    def _pass(self, positions: Mapping[str, int]) -> None:
        """Forget the boundaries of which nothing is left to read."""
        while self._ahead:
            first = self._ahead[0]
            if any(end > positions.get(stream, end) for stream, end in first.ends.items()):
                return
            self._base = first
            self._ends |= first.ends
            self._ahead.popleft()


def shown(bound: Bound | None) -> dict[str, Any] | None:
    """A boundary in a query's progress."""
    if bound is None:
        return None
    lower = None if bound.lower is None else [list(one) for one in bound.lower]
    return {"boundary": bound.number, "lower": lower}
