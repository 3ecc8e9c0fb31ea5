"""How a number of things is said. Pure."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """``1 stream``, ``4 streams``; `many` where it is not `one` with an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
