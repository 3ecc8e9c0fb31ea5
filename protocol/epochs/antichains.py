"""Frontiers as sets: what is open, what is behind, and where they go next.

An antichain is a sorted tuple, so that two of the same elements are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamlease.protocol.epochs.order import Epoch, at_most, checked_epoch, join
from streamlease.protocol.errors import InvalidEpoch

Antichain = tuple[Epoch, ...]
"""Epochs of which no two are comparable, sorted."""


def minimal(epochs: Iterable[Epoch]) -> Antichain:
    """Those of `epochs` that are at or above no other one: a lower frontier."""
    found: list[Epoch] = []
    for one in sorted(set(epochs)):  # what is at most another stands before it
        if len(one) == 1:
            return (one,)
        if (
            len(one) == 2
        ):  # all found before are at most it in the first, and the last one is least in the second
            if not found or one[1] < found[-1][1]:
                found.append(one)
        elif not any(at_most(other, one) for other in found):
            found.append(one)
    return tuple(found)


def maximal(epochs: Iterable[Epoch]) -> Antichain:
    """Those of `epochs` that are at or below no other one: an upper frontier."""
    found: list[Epoch] = []
    for one in sorted(set(epochs), reverse=True):
        if not any(at_most(one, other) for other in found):
            found.append(one)
    return tuple(reversed(found))


def is_open(lower: Iterable[Epoch], epoch: Epoch) -> bool:
    """Whether messages of `epoch` may still come: it is at or above an element of the lower frontier."""
    return any(at_most(one, epoch) for one in lower)


def is_seen(upper: Iterable[Epoch], epoch: Epoch) -> bool:
    """Whether messages of `epoch` may have come: it is at or below an element of the upper frontier."""
    return any(at_most(epoch, one) for one in upper)


def goes_on(before: Iterable[Epoch], after: Iterable[Epoch]) -> bool:
    """Whether the lower frontier `after` opens nothing that `before` had closed."""
    held = tuple(before)
    return all(is_open(held, one) for one in after)


def behind(lower: Antichain, completed: Iterable[Epoch]) -> Antichain:
    """The lower frontier of what `lower` has open, without what is at or below an element of `completed`."""
    for done in completed:
        steps = [
            tuple(done[d] + 1 if d == dimension else 0 for d in range(len(done)))
            for dimension in range(len(done))
        ]
        lower = minimal(join(one, step) for one in lower for step in steps)
    return lower


def changes(before: Iterable[Epoch], after: Iterable[Epoch]) -> dict[Epoch, int]:
    """What makes the antichain `after` of `before`: -1 for each epoch that goes, +1 for each that comes."""
    old, new = set(before), set(after)
    return dict.fromkeys(sorted(old - new), -1) | dict.fromkeys(sorted(new - old), 1)


def newly_completed(epochs: Iterable[Epoch], before: Antichain, after: Antichain) -> list[Epoch]:
    """Those of `epochs` that complete as the frontier goes from `before` to `after`, in a linear order."""
    return sorted(one for one in set(epochs) if is_open(before, one) and not is_open(after, one))


def checked_frontier(value: object, dimensions: int) -> Antichain:
    """A lower frontier from outside: epochs of which none is at most another.

    Raises:
        InvalidEpoch: it is none.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise InvalidEpoch(f"frontier {ascii(value)[:80]}: give a list of at least one epoch")
    epochs = [checked_epoch(one, dimensions) for one in value]
    frontier = minimal(epochs)
    if len(frontier) != len(epochs):
        raise InvalidEpoch(
            f"frontier {ascii(value)[:80]}: one of its epochs is at most another; give only {list(frontier)}"
        )
    return frontier
