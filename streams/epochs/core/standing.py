"""Where the lower frontier of a space stands, who holds it there, and who waits for that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import Antichain, is_open
from streamlease.streams.epochs.core.fold import Fold


class Standing(NamedTuple):
    """A space at one moment."""

    lower: Antichain
    publishers: int
    """So many are there."""
    holding_back: Mapping[str, Antichain]
    """Those that hold the lower frontier where it is, and by which of its epochs."""
    held_back: tuple[str, ...]
    """Those that have given up all of its epochs: what they sent there waits for the others."""
    waiting: int
    """Messages that their publishers have given up, and that are not complete."""


def standing(fold: Fold) -> Standing:
    """What the lines come to, for people."""
    lower, holding = fold.lower, fold.holding_back()
    return Standing(
        lower,
        len(fold.present),
        holding,
        tuple(sorted(name for name in fold.present if name not in holding)),
        sum(one.staged.rows for one in fold.waiting if is_open(lower, one.staged.epoch)),
    )
