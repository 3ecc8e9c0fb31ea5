"""Media types: which form of an answer a client wants, and what it sends. Pure."""

from __future__ import annotations

from collections.abc import Sequence

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"


def media_type(header: str | None) -> str:
    """The type in a ``Content-Type`` header, in lower case and without parameters; empty if there is none."""
    return (header or "").partition(";")[0].strip().lower()


def chosen(accept: str | None, offered: Sequence[str]) -> str | None:
    """The type of `offered` (the best first) that an ``Accept`` header prefers; None if it wants none."""
    if accept is None or not accept.strip():
        return offered[0]
    best, best_quality = None, 0.0
    wanted = [_range(one) for one in accept.split(",")]
    for type in offered:
        matching = [(specific, quality) for specific, quality, pattern in wanted if _fits(pattern, type)]
        _, quality = max(matching, default=(0, 0.0))
        if quality > best_quality:
            best, best_quality = type, quality
    return best


def _range(text: str) -> tuple[int, float, str]:
    pattern, *parameters = (part.strip().lower() for part in text.split(";"))
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            digits = value.strip()
            whole = digits.replace(".", "", 1)
            quality = min(1.0, float(digits)) if whole.isascii() and whole.isdigit() else 0.0
    specific = 0 if pattern == "*/*" else 1 if pattern.endswith("/*") else 2
    return specific, quality, pattern


def _fits(pattern: str, type: str) -> bool:
    return pattern in ("*/*", type) or (pattern.endswith("/*") and type.startswith(pattern[:-1]))
