"""Whose turn it is: the servers of a name one after the other, whoever comes and goes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Rotation:
    """The turns of one name, as one caller keeps them.

    Args:
        last: who had the turn before the first one; a random text spreads many callers.
    """

    def __init__(self, last: str) -> None:
        self._last = last

    def next(self, addresses: Sequence[str]) -> int:
        """The place of the one whose turn it is, in `addresses`, which are sorted and not empty."""
        place = bisect_right(addresses, self._last)
        if place == len(addresses):
            place = 0
        self._last = addresses[place]
        return place
