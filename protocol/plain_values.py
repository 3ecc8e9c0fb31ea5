"""Values as JSON can hold them."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime
from typing import Any


def iso(time: datetime) -> str:
    """ISO-8601 in UTC with microseconds: ``2026-01-31T12:00:00.000000Z``."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: times as ISO-8601, bytes as base64, what is not finite as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
