"""What a publisher has staged and not given up in a line: by epoch and stream, in ranges of offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from streamlease.protocol.epochs.antichains import Antichain, is_open
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.core.lines import StagedPart


class Unsaid:
    """The parts that the next lines of one publisher name."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[Epoch, StreamId], list[tuple[int, int]]] = {}

    def add(self, epoch: Epoch, stream: StreamId, first: int, rows: int) -> None:
        """So many messages of `epoch` are staged for `stream`, from offset `first` of its staged log on.

        Parts of one stream come in the order of their offsets.
        """
        ranges = self._ranges.setdefault((epoch, stream), [])
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], first + rows)
        else:
            ranges.append((first, first + rows))

    def take(self, held: Antichain = ()) -> list[StagedPart]:
        """All of epochs that are not at or above an element of `held`, in order; it is not here any more."""
        said = sorted(one for one in self._ranges if not is_open(held, one[0]))
        return [StagedPart(*one, tuple(self._ranges.pop(one))) for one in said]

    @property
    def epochs(self) -> Iterable[Epoch]:
        """The epochs of what is here."""
        return {epoch for epoch, _ in self._ranges}
