"""The ranges of a cut: rows to whoever looks at them, columns in memory and where they are written.

A cut can have 10,000 ranges, and a query waits while it goes to the leader, into the journal and back.
Columns are parsed and checked several times as fast as a list of objects, take a third of the space, and are
nothing that Python's garbage collector has to walk through::

    {"streams": ["a.0.0", "a.0.1"], "lease_epochs": [1, 3], "starts": [0, 17], "ends": [5, 20]}
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, overload

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from streamlease.protocol.ids import MOST_NUMBER

Offset = Annotated[int, Field(ge=0, le=MOST_NUMBER)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]


class CutRange(NamedTuple):
    """One stream's part of a cut: offsets ``start <= offset < end``, read under one lease."""

    stream: str
    lease_epoch: int
    start: int
    end: int


class Ranges(Sequence[CutRange]):
    """The ranges of a cut, each of another stream; kept as columns. They never change."""

    __slots__ = ("columns",)

    def __init__(
        self, streams: Sequence[str], lease_epochs: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> None:
        self.columns = (streams, lease_epochs, starts, ends)
        """One for each field of a range, all of the same length."""

    @classmethod
    def of(cls, ranges: Iterable[CutRange]) -> Ranges:
        """These ranges, which may have their columns already."""
        if isinstance(ranges, Ranges):
            return ranges
        found: list[Any] = [*zip(*ranges, strict=True)] or [(), (), (), ()]
        return cls(*found)

    @property
    def streams(self) -> Sequence[str]:
        """Their streams."""
        return self.columns[0]

    @property
    def messages(self) -> int:
        """How many messages they hold."""
        _, _, starts, ends = self.columns
        return sum(ends) - sum(starts)

    def only(self, streams: Container[str]) -> Ranges:
        """Those of these streams."""
        return Ranges.of(part for part in self if part.stream in streams)

    def at(self, places: Sequence[int]) -> Ranges:
        """Those at these places."""
        found: list[Any] = [[column[place] for place in places] for column in self.columns]
        return Ranges(*found)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[CutRange]:
        return map(CutRange._make, zip(*self.columns, strict=True))

    @overload
    def __getitem__(self, place: int) -> CutRange: ...
    @overload
    def __getitem__(self, place: slice) -> Ranges: ...
    def __getitem__(self, place: int | slice) -> CutRange | Ranges:
        found: list[Any] = [column[place] for column in self.columns]
        return Ranges(*found) if isinstance(place, slice) else CutRange._make(found)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ranges):
            return self is other or (
                len(self) == len(other)
                and all(
                    list(mine) == list(others)
                    for mine, others in zip(self.columns, other.columns, strict=True)
                )
            )
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


NO_RANGES = Ranges.of(())


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid")

    streams: list[Text]
    lease_epochs: list[Offset]
    starts: list[Offset]
    ends: list[Offset]


def read_ranges(value: Any) -> Ranges:
    """Ranges from their columns, or as they are.

    Raises:
        ValueError: the columns are malformed or of different lengths, or name a stream twice.
    """
    if isinstance(value, Ranges):
        return value
    if isinstance(value, tuple) and all(type(part) is CutRange for part in value):
        return Ranges.of(value)
    found = _Written.model_validate(value)
    columns = (found.streams, found.lease_epochs, found.starts, found.ends)
    if len({len(set(found.streams)), *(len(column) for column in columns)}) > 1:
        raise ValueError("the columns are of different lengths, or a stream has two ranges")
    return Ranges(*columns)


def write_ranges(ranges: Ranges) -> dict[str, list[Any]]:
    """Ranges as they are written: by column."""
    return {name: list(column) for name, column in zip(_Written.model_fields, ranges.columns, strict=True)}


RangesField = Annotated[Ranges, PlainValidator(read_ranges), PlainSerializer(write_ranges)]
"""Ranges as a field of a message or of a record."""
