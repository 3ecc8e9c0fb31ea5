"""What messages of every kind are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from streamlease.protocol.cuts import Offset, Text
from streamlease.protocol.topics import MAX_BYTES

Group = Annotated[str, Field(min_length=1, max_length=MAX_BYTES)]


class GroupMessage(BaseModel):
    """A message that is about one group."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: Group
    """Identity of the shared subscription, ``GROUP/FILTER``."""


Hole = tuple[Offset, Offset]
"""The first offset that a stream has not, and the one where it goes on."""


class Progress(BaseModel):
    """How far a borrower has consumed one stream under one lease."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: Text
    lease_epoch: Offset
    offset: Offset
    """The next offset to consume: everything below it is done."""
    final: bool = False
    """Nothing more will come under this lease; answers a Revoke."""
    holes: tuple[Hole, ...] = Field(default=(), exclude_if=lambda holes: not holes)
    """What lies below `offset` and was lost: it was passed over, and counts as truncated."""
