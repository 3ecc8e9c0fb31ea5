"""The lower frontier of a multiset of epochs.

Many hold the same epoch, and it is open as long as one of them does: so they are counted. What is told of the
frontier is its *net* changes, and nothing if there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from streamlease.protocol.epochs.antichains import Antichain, changes, is_open, minimal
from streamlease.protocol.epochs.order import Epoch, at_most


class CountedFrontier:
    """Counts epochs; `frontier` has the minimal ones of those that are counted.

    A change costs by the number of different epochs that are counted, and that only if a minimal one goes.
    """

    def __init__(self, epochs: Iterable[Epoch] = ()) -> None:
        self._counts = Counter(epochs)
        self.frontier: Antichain = minimal(self._counts)

    def count(self, epoch: Epoch) -> int:
        """How many hold just this epoch."""
        return self._counts[epoch]

    def update(self, steps: Iterable[tuple[Epoch, int]]) -> dict[Epoch, int]:
        """Count so many more (or fewer) of each epoch; all at once.

        Returns:
            The net changes of the frontier: -1 for what goes, +1 for what comes.

        Raises:
            ValueError: more of an epoch would go than are there. Nothing was changed.
        """
        by: Counter[Epoch] = Counter()
        for epoch, step in steps:
            by[epoch] += step
        for epoch, step in by.items():
            if self._counts[epoch] + step < 0:
                raise ValueError(f"{-step} of epoch {epoch} go, and only {self._counts[epoch]} are there")
        before = self.frontier
        gone = []
        for epoch, step in by.items():
            left = self._counts[epoch] + step
            if left:
                self._counts[epoch] = left
            else:
                del self._counts[epoch]
                gone.append(epoch)
        came = [epoch for epoch, step in by.items() if step > 0 and epoch in self._counts]
        self.frontier = self._after(before, [one for one in gone if one in before], came)
        return changes(before, self.frontier)

    def _after(self, before: Antichain, gone: list[Epoch], came: list[Epoch]) -> Antichain:
        """The frontier, now that of its elements `gone` are away and `came` are counted."""
        stay = [one for one in before if one not in gone]
        uncovered = [
            one for one in (self._counts if gone else ()) if any(at_most(former, one) for former in gone)
        ]
        new = minimal(one for one in [*uncovered, *came] if not is_open(stay, one))
        return tuple(sorted([*(one for one in stay if not is_open(new, one)), *new]))
