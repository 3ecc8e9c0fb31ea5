"""What is left of the ranges of an open cut.

A cut is opened with the ranges of its message, and answered, closed and resumed with them, as they came.
Streams that are lost or revoked leave it one at a time. That is rare, so only then are the ranges put into a
dictionary by their streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from streamlease.protocol.cuts import NO_RANGES, Ranges, read_ranges, write_ranges


class OpenRanges:
    """Ranges that streams may leave."""

    __slots__ = ("_ends", "_ranges")

    def __init__(self, ranges: Ranges = NO_RANGES) -> None:
        self._ranges = ranges
        self._ends: dict[str, int] | None = None
        """The ends of those that are left, by their streams; None: nobody has asked for one of them."""

    @property
    def left(self) -> Ranges:
        """Those that are left."""
        if self._ends is not None and len(self._ends) < len(self._ranges):
            self._ranges = self._ranges.only(self._ends)
        return self._ranges

    def leave(self, stream: str) -> int | None:
        """Take a stream out; where its range ended, None if it has none."""
        return self._by_stream.pop(stream, None)

    @property
    def _by_stream(self) -> dict[str, int]:
        if self._ends is None:
            streams, _, _, ends = self._ranges.columns
            self._ends = dict(zip(streams, ends, strict=True))
        return self._ends

    def __contains__(self, stream: object) -> bool:
        return stream in self._by_stream

    def __iter__(self) -> Iterator[str]:
        return iter(self.left.streams)

    def __len__(self) -> int:
        return len(self._ranges if self._ends is None else self._ends)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenRanges) and self.left == other.left

    __hash__ = None  # type: ignore[assignment]


def _read(value: Any) -> OpenRanges:
    return value if isinstance(value, OpenRanges) else OpenRanges(read_ranges(value))


OpenRangesField = Annotated[
    OpenRanges, PlainValidator(_read), PlainSerializer(lambda open: write_ranges(open.left))
]
"""The same as a field of the state; written as the ranges that are left."""
