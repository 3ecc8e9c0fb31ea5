"""What a reader of one or several spaces may see, and their merged lower frontier. Pure.

With several spaces an epoch is complete only once all of them have completed it, and what one of them had
completed before the reader began may be missing there, so it is left out at the others too. So the reader
sees all messages of an epoch, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import Antichain, changes, is_open, is_seen, maximal
from streamlease.protocol.epochs.filtering import EpochFilter
from streamlease.protocol.epochs.order import Epoch


class Stood(NamedTuple):
    """How a space stood where a reader begins."""

    lower: Antichain
    upper: Antichain
    """The maximal epochs that may have had messages."""


class MergedSpaces:
    """The frontiers of the spaces of one reader.

    Args:
        stood: of each space.
        late: leave out every epoch that may have had messages where the reader began; else only those that
            were completed there.
    """

    def __init__(self, stood: Mapping[str, Stood], *, late: bool) -> None:
        self._lowers = {name: one.lower for name, one in stood.items()}
        self._filter: EpochFilter[None] = EpochFilter(stood)
        for name, one in stood.items():
            self._filter.joined(name, one.lower, one.upper if late else ())
        self._began = () if late else tuple(stood.values())
        self.upper = maximal(epoch for one in stood.values() for epoch in one.upper)
        """The maximal epochs that may have had messages where the reader began."""

    @property
    def lower(self) -> Antichain:
        """The lower frontier, merged over the spaces."""
        return self._filter.lower

    def is_held_by(self, space: str) -> bool:
        """Whether that space holds the merged frontier back: only then can it move it."""
        return any(one in self.lower for one in self._lowers[space])

    def is_open(self, space: str, epoch: Epoch) -> bool:
        """Whether messages of `epoch` may still come in that space."""
        return is_open(self._lowers[space], epoch)

    def passes(self, space: str, epoch: Epoch) -> bool:
        """Whether messages of `epoch` may be seen. Ask ahead of the change that completes it."""
        if not self._filter.came(space, epoch, None):
            return False
        return not any(is_seen(one.upper, epoch) and not is_open(one.lower, epoch) for one in self._began)

    def moves_on(self, space: str, lower: Antichain) -> dict[Epoch, int]:
        """The lower frontier of a space; the net changes of the merged one."""
        steps = changes(self._lowers[space], lower)
        self._lowers[space] = lower
        return self._filter.changed(space, steps.items())
