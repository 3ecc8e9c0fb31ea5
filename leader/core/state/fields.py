"""What a number and the name of a stream may be in a record or a snapshot. Anything else is damage.

Nobody who reads the state has to look again: no count is negative, and every stream has a name that can be
parsed.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streamlease.protocol.ids import MOST_NUMBER

Number = Annotated[int, Field(ge=0, le=MOST_NUMBER)]
"""An offset, a term, a lease epoch, a count, or milliseconds."""

Stream = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.(0|[1-9][0-9]{0,15})){2}$")]
"""As `StreamId.parse` takes it."""
