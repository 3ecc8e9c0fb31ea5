"""What all rows have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from streamlease.admin.output import iso_microseconds

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)$")]
"""ISO-8601 in UTC."""

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
StreamName = Annotated[str, Field(pattern=r"^.+\.\d+\.\d+$")]


class FactRow(BaseModel):
    """One JSON object: these fields and no other. One with a default is left out where it has it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return self.model_dump(by_alias=True, exclude_defaults=True)


MANY = ConfigDict(extra="forbid", strict=True)
"""Of a row of which an answer has thousands: a plain dataclass, described in the schema like the others, but
not validated when it is built. What it is made of was validated where it was read."""


class DamagedRow(FactRow):
    """What cannot be read; told only where there is such a thing."""

    name: str
    why: str


def moment(milliseconds: int | None) -> str | None:
    """A moment as it stands in a row, from milliseconds since 1970."""
    return None if milliseconds is None else iso_microseconds(milliseconds * 1000)


def lag_of(next: int | None, committed: int) -> int | None:
    """How many messages wait in a stream that ends at `next`; None if nobody knows.

    So after a failover that lost writes: then the log may end below what was committed.
    """
    return next - committed if next is not None and next >= committed else None


def total(lags: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is unknown."""
    sum = 0
    for lag in lags:
        if lag is None:
            return None
        sum += lag
    return sum
