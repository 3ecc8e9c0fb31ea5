"""What a subscriber that comes late may see, so that it sees all messages of an epoch or none.

It reads from several sources, each of which tells it, at the moment at which it joins, its two frontiers, and
from then on its messages and the changes of its lower frontier. An epoch at or below an element of *any*
source's upper frontier may have had messages before: it is left out at all sources (Strymon's "Subscriber
Logic"; what its "Design" says, only what is strictly above, loses atomicity where epochs are no total order).

An element of that filter goes once no element of the *merged* lower frontier is at or below it: then nothing
at or below it comes any more. One source's frontier does not do, and an empty frontier clears it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

from streamlease.protocol.epochs.antichains import Antichain, is_open, is_seen, maximal
from streamlease.protocol.epochs.counting import CountedFrontier
from streamlease.protocol.epochs.order import Epoch

T = TypeVar("T")


class EpochFilter(Generic[T]):
    """What of several sources passes. Until all have told their frontiers nothing does: it is kept.

    Args:
        sources: the names of all of them.
    """

    def __init__(self, sources: Collection[str]) -> None:
        self._awaited = set(sources)
        self._kept: list[tuple[Epoch, T]] = []
        self._lower = CountedFrontier()
        self._upper: Antichain = ()

    @property
    def ready(self) -> bool:
        """Whether all sources have told their frontiers."""
        return not self._awaited

    @property
    def lower(self) -> Antichain:
        """The lower frontier, merged over the sources."""
        return self._lower.frontier

    @property
    def upper(self) -> Antichain:
        """What is at or below an element of it is left out; empty once nothing is."""
        return self._upper

    def joined(self, source: str, lower: Antichain, upper: Antichain) -> list[tuple[Epoch, T]]:
        """A source tells its frontiers, once, ahead of everything else that it tells.

        Returns:
            What was kept and passes, in the order in which it came: something with the last source only.

        Raises:
            ValueError: it is no source, or told them before.
        """
        if source not in self._awaited:
            raise ValueError(f"{source} is no source, or has told its frontiers already")
        self._awaited.discard(source)
        self._upper = maximal([*self._upper, *upper])
        self._lower.update((epoch, 1) for epoch in lower)
        if not self.ready:
            return []
        # What was kept is judged before anything changes: its epochs may be completed by the next change.
        kept, self._kept = self._kept, []
        passed = [(epoch, item) for epoch, item in kept if self._passes(epoch)]
        self._prune()
        return passed

    def changed(self, source: str, steps: Iterable[tuple[Epoch, int]]) -> dict[Epoch, int]:
        """The lower frontier of a source changes; the net changes of the merged one.

        Raises:
            ValueError: the source has not told its frontiers, or an epoch goes that was not there.
        """
        self._check_joined(source)
        net = self._lower.update(steps)
        if self.ready:
            self._prune()
        return net

    def came(self, source: str, epoch: Epoch, item: T) -> list[tuple[Epoch, T]]:
        """A message of a source; what passes.

        Raises:
            ValueError: the source has not told its frontiers.
        """
        self._check_joined(source)
        if self.ready:
            return [(epoch, item)] if self._passes(epoch) else []
        self._kept.append((epoch, item))
        return []

    def _check_joined(self, source: str) -> None:
        if source in self._awaited:
            raise ValueError(f"{source} has not told its frontiers yet")

    def _passes(self, epoch: Epoch) -> bool:
        return not is_seen(self._upper, epoch)

    def _prune(self) -> None:
        # What is open below an element can still come; without such, the element has done its work.
        self._upper = tuple(one for one in self._upper if is_open(self.lower, one))
