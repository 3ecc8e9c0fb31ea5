"""Boundaries: up to where the streams of a space have whole epochs, each with the frontier behind it. Pure.

Boundary 0 is the beginning: nothing is completed, and all streams are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import InvalidInput, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.core.lines import Ranges, epoch_of, frontier_of


class MovedPart(NamedTuple):
    """How many messages of one publisher and one epoch a stream got at a boundary, in this order."""

    epoch: Epoch
    name: str
    inc: int
    stream: StreamId
    rows: int
    lost: int = 0
    """So many more were staged, and Redis lost them."""
    ranges: Ranges = ()
    """Where they stood in the staged log: who has seen some of them there knows which are missing."""


class DroppedOpen(NamedTuple):
    """What an incarnation of a publisher staged at or above an element of `frontier` was dropped."""

    name: str
    inc: int
    frontier: Antichain


@dataclass(frozen=True, slots=True)
class Boundary:
    """One boundary of a space."""

    number: int
    upto: int
    """The line up to which it folds."""
    term: int
    """That of the keeper which recorded it."""
    lower: Antichain
    """What is not at or above an element of it is completed, and whole in the streams; empty: everything."""
    upper: Antichain
    """The maximal epochs of which something was given up so far."""
    ends: Mapping[StreamId, int] = field(default_factory=dict)
    """The ends of the streams that changed: the offset behind the last message of the boundary."""
    moved: tuple[MovedPart, ...] = ()
    dropped: tuple[DroppedOpen, ...] = ()
    """Of publishers that were given up, or came back."""
    at: int = 0
    """When it was recorded, in milliseconds of the Redis clock."""
    gaps: Mapping[StreamId, Ranges] = field(default_factory=dict)
    """Offsets before and between its messages that have none: somebody had read there what Redis lost since,
    and took them out of use."""

    @property
    def lost(self) -> int:
        """How many messages of completed epochs Redis lost."""
        return sum(one.lost for one in self.moved)

    def dump(self) -> str:
        """The document of the boundary."""
        document = {
            "upto": self.upto,
            "term": self.term,
            "lower": self.lower,
            "upper": self.upper,
            "ends": {str(stream): end for stream, end in self.ends.items()},
            "parts": [[*one[:3], str(one.stream), *one[4:]] for one in self.moved],
            "dropped": self.dropped,
        }
        if self.gaps:
            document["gaps"] = {str(stream): gaps for stream, gaps in self.gaps.items()}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def parse(cls, number: int, text: bytes | str, at: int = 0) -> Boundary:
        """The boundary that a document says.

        Raises:
            Unsupported: it is damaged, or of another version.
        """
        try:
            it = json.loads(text)
            return cls(
                number,
                int(it["upto"]),
                int(it["term"]),
                frontier_of(it["lower"]),
                frontier_of(it["upper"]),
                {StreamId.parse(stream): int(end) for stream, end in it["ends"].items()},
                tuple(
                    MovedPart(
                        epoch_of(epoch),
                        str(name),
                        int(inc),
                        StreamId.parse(stream),
                        int(rows),
                        int(lost),
                        _ranges(ranges),
                    )
                    for epoch, name, inc, stream, rows, lost, ranges in it["parts"]
                ),
                tuple(
                    DroppedOpen(str(name), int(inc), frontier_of(held)) for name, inc, held in it["dropped"]
                ),
                at,
                {StreamId.parse(stream): _ranges(gaps) for stream, gaps in it.get("gaps", {}).items()},
            )
        except (KeyError, TypeError, ValueError, InvalidInput) as error:
            raise Unsupported(
                f"boundary {number} cannot be read ({type(error).__name__}): "
                f"all processes must run the same version"
            ) from None


def _ranges(pairs: Iterable[Iterable[int]]) -> Ranges:
    return tuple((int(first), int(to)) for first, to in pairs)
