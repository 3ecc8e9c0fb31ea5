"""Where ``streamlease consume`` without a group begins to read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, cast

from streamlease.protocol.errors import InvalidOption

Start = Literal["earliest", "latest"] | int | datetime


def parse_start(text: str) -> Start:
    """``earliest``, ``latest``, an offset, or an ISO-8601 time; without a zone it is of this machine.

    Raises:
        InvalidOption: none of these.
    """
    if text in ("earliest", "latest"):
        return cast("Start", text)
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidOption(
            f"--from {ascii(text)[:80]} is no point in a stream: use earliest, latest, "
            f"an offset such as 1000, or a time such as 2026-01-31T12:00:00Z"
        ) from None
