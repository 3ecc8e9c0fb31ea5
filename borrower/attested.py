"""What a session can attest of its streams, for a leader that has lost it: pure.

An offset stands for its own lease only: a later lease that began below it was a reset's, or a loss's, and the
leader knows which. See ``docs/decisions/0073-an-offset-stands-for-its-lease.md``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from streamlease.protocol.messages import Progress

MOST_ATTESTED = 4
"""How many leases of one stream are remembered: each but the newest began above where a later one began."""


class Attestations:
    """Per stream, the leases that the session had, and what was committed for certain under each.

    Args:
        slots: how many borrowers the session has.
    """

    def __init__(self, slots: int) -> None:
        self._last = slots - 1
        self._known: dict[str, tuple[int, ...]] = {}
        """Stream -> the slot that had it last; lease epochs, each with an offset. In one flat tuple, so that
        Python's garbage collector need not walk through 10,000 of them."""

    def slot_of(self, stream: str) -> int:
        """The slot that had the stream last, as far as it is known."""
        return self._known.get(stream, (0,))[0]

    def add(self, slot: int, stream: str, lease_epoch: int, offset: int) -> None:
        """The session had that lease, and all below `offset` is done: the leader may have lost it.

        An older word is dropped once a newer lease has come as far.
        """
        self.add_all([(slot, stream, lease_epoch, offset)])

    def add_all(self, entries: Iterable[tuple[int, str, int, int]]) -> None:
        """The same for many: slot, stream, lease epoch and offset of each."""
        known, last = self._known, self._last
        for named, stream, lease_epoch, offset in entries:
            former = known.get(stream)
            slot = named if named <= last else last  # of a checkpoint: there may have been more
            if former is None or (len(former) == 3 and former[1] == lease_epoch and former[2] <= offset):
                known[stream] = (slot, lease_epoch, offset)
            else:
                known[stream] = (slot, *_newest(_leases(former), (lease_epoch, offset)))

    def of(self, slot: int) -> tuple[Progress, ...]:
        """What is attested of the streams that the slot had last."""
        return tuple(
            Progress(stream=stream, lease_epoch=lease_epoch, offset=offset)
            for stream, known in self._known.items()
            if known[0] == slot
            for lease_epoch, offset in _leases(known)
        )


def _leases(known: tuple[int, ...]) -> list[tuple[int, int]]:
    """The lease epochs and offsets of what is attested of one stream."""
    return [*zip(known[1::2], known[2::2], strict=True)]


def _newest(known: list[tuple[int, int]], new: tuple[int, int]) -> Iterator[int]:
    """Lease epochs and offsets with one more, without those that another one makes superfluous."""
    if not any(lease_epoch >= new[0] and offset >= new[1] for lease_epoch, offset in known):
        further = [one for one in known if one[0] > new[0] or one[1] > new[1]]
        known = sorted((*further, new))[-MOST_ATTESTED:]
    return itertools.chain.from_iterable(known)
