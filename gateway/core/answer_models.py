"""Messages and problems as clients get them, as models. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ShownMessage(BaseModel):
    """A message; its payload is `payload`, `payload_base64` if it is no UTF-8, or `values` by a schema."""

    topic: str
    key: str | None = None
    key_base64: str | None = None
    payload: str | None = None
    payload_base64: str | None = None
    values: dict[str, Any] | None = None
    stream: str
    offset: int
    previous: int | None
    timestamp: str
    headers: list[tuple[str, str | dict[str, str]]]
    epoch: list[int] | None


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    oldest: str | None = None
    """The cursor to go on from, where history was truncated."""
    file: str | None = None
    """The file of an archive that is missing or altered."""
    command: int | None = None
    """The command of a channel that is refused, of a batch of which nothing was done."""
    key: str | None = None
