"""What a session can attest of its streams, for a leader that has lost it: pure.

An offset stands for its own lease only: a later lease that began below it was a reset's, or a loss's, and the
leader knows which. See ``docs/decisions/0073-an-offset-stands-for-its-lease.md``.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence

from streamlease.protocol.messages import Progress

MOST_ATTESTED = 4
"""How many leases of one stream are remembered: each but the newest began above where a later one began."""

_Columns = tuple[Sequence[str], Sequence[int], Sequence[int]]
"""Streams, and the lease epoch and the offset of each."""


class Attestations:
    """Per stream, the leases that the session had, and what was committed for certain under each.

    Args:
        slots: how many borrowers the session has.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._known: dict[str, tuple[int, ...]] = {}
        """Stream -> the slot that had it last; lease epochs, each with an offset. In one flat tuple, so that
        Python's garbage collector need not walk through 10,000 of them."""
        self._cut: _Columns | None = None
        """What the newest cut says, not taken down yet."""

    def slot_of(self, stream: str) -> int:
        """The slot that had the stream last, as far as it is known."""
        self._take_down()
        return self._known.get(stream, (0,))[0]

    def add(self, slot: int, stream: str, lease_epoch: int, offset: int) -> None:
        """The session had that lease, and all below `offset` is done: the leader may have lost it.

        An older word is dropped once a newer lease has come as far.
        """
        self._take_down()
        self._add(slot, stream, lease_epoch, offset)

    def add_cut(self, streams: Sequence[str], lease_epochs: Sequence[int], offsets: Sequence[int]) -> None:
        """The same for the streams of a cut, which stay with the slots that had them last.

        A query says this with every cut, and hardly anybody asks. So a cut is taken down only when somebody
        asks, or when the next one is not of the same leases.
        """
        new = streams, lease_epochs, offsets
        if self._cut is not None and not _covers(new, self._cut):
            self._take_down()
        self._cut = new

    def _take_down(self) -> None:
        cut, self._cut = self._cut, None
        if cut is None:
            return
        slots, known = self._slots, self._known
        for place, (stream, lease_epoch, offset) in enumerate(zip(*cut, strict=True)):
            former = known.get(stream)  # None: of a checkpoint, and not granted yet
            self._add(place % slots if former is None else former[0], stream, lease_epoch, offset)

    def _add(self, slot: int, stream: str, lease_epoch: int, offset: int) -> None:
        former = self._known.get(stream)
        if former is None or (len(former) == 3 and former[1] == lease_epoch and former[2] <= offset):
            self._known[stream] = (slot, lease_epoch, offset)
        else:
            self._known[stream] = (slot, *_newest(_leases(former), (lease_epoch, offset)))

    def of(self, slot: int) -> tuple[Progress, ...]:
        """What is attested of the streams that the slot had last."""
        self._take_down()
        return tuple(
            Progress(stream=stream, lease_epoch=lease_epoch, offset=offset)
            for stream, known in self._known.items()
            if known[0] == slot
            for lease_epoch, offset in _leases(known)
        )


def _covers(new: _Columns, old: _Columns) -> bool:
    """Whether `new` says all that `old` says: it is of the same leases, and nowhere behind."""
    return new[:2] == old[:2] and all(map(operator.le, old[2], new[2]))


def _leases(known: tuple[int, ...]) -> list[tuple[int, int]]:
    """The lease epochs and offsets of what is attested of one stream."""
    return [*zip(known[1::2], known[2::2], strict=True)]


def _newest(known: list[tuple[int, int]], new: tuple[int, int]) -> Iterator[int]:
    """Lease epochs and offsets with one more, without those that another one makes superfluous."""
    if not any(lease_epoch >= new[0] and offset >= new[1] for lease_epoch, offset in known):
        further = [one for one in known if one[0] > new[0] or one[1] > new[1]]
        known = sorted((*further, new))[-MOST_ATTESTED:]
    return itertools.chain.from_iterable(known)
