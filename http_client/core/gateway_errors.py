"""What a gateway, or the way to it, answers with instead of a result, as errors of Python.

::

    StreamleaseError
    +-- GatewayRefused          the gateway says no, in a problem document; `status` and `problem` name it
    |   +-- CursorTruncated     something behind the cursor is not there any more; `oldest` is where to go on
    |   +-- GatewayDefect       the gateway failed at it by a defect; it may have been done
    +-- GatewayUnavailable      there is no connection to it; nothing was done (retriable)
    +-- GatewayGarbled          what answers is no gateway
    +-- WebhookRefused          a callback that is not from the gateway, or for an old subscription

Problems that have an error of their own in ``streamlease.protocol.errors`` become that one: `InvalidTopic`,
`UnknownSpace`, `StoreUnavailable`, `Indefinite` and so on.
"""

from __future__ import annotations

import json
from typing import Any

from streamlease.protocol.errors import (
    Fenced,
    Indefinite,
    InvalidInput,
    InvalidOption,
    InvalidTopic,
    MessageTooLarge,
    NotDurable,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
    Unsupported,
)

TOO_MUCH, DEFECT, STORE_DOWN, LATE = 429, 500, 503, 504
LONGEST_TOLD = 300


class GatewayRefused(StreamleaseError):
    """The gateway says no.

    Attributes:
        status: of HTTP.
        problem: the error's name, such as ``not-allowed``.
        pause: seconds after which to try again, if it named them.
    """

    def __init__(self, why: str, status: int, problem: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.problem = problem
        self.pause = pause
        self.retriable = status in (TOO_MUCH, STORE_DOWN)


class CursorTruncated(GatewayRefused):
    """Something behind the cursor is not there any more: go on with `oldest`, which has all that is left.

    `problem` is ``history-truncated`` if it was retention that took it, ``history-lost`` if Redis lost it,
    ``lost`` if a file of an archive is missing or altered.
    """

    def __init__(self, why: str, oldest: str, problem: str = "history-truncated") -> None:
        super().__init__(why, 410, problem)
        self.oldest = oldest


class GatewayDefect(GatewayRefused):
    """The gateway failed at the request by a defect: it may have been done, and is never tried again."""


class GatewayUnavailable(StreamleaseError):
    """There is no connection to the gateway; nothing was done."""

    retriable = True


class GatewayGarbled(StreamleaseError):
    """What answered does not speak as a gateway does."""


class WebhookRefused(StreamleaseError):
    """A callback was not taken; `status` is what to answer it with."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


KNOWN: dict[str, type[StreamleaseError]] = {
    "invalid-input": InvalidInput,
    "invalid-option": InvalidOption,
    "invalid-topic": InvalidTopic,
    "invalid-cursor": InvalidInput,
    "unknown-space": UnknownSpace,
    "stream-sealed": StreamSealed,
    "fenced": Fenced,
    "message-too-large": MessageTooLarge,
    "schema-mismatch": SchemaMismatch,
    "unsupported": Unsupported,
    "store-unavailable": StoreUnavailable,
    "store-refused": StoreRefused,
    "not-durable": NotDurable,
    "indefinite": Indefinite,
}
"""Errors by the end of the `type` of their problem documents."""


def error_of(status: int, body: bytes, pause: str | None = None) -> StreamleaseError:
    """The error in an answer that is none of success.

    Args:
        pause: the header Retry-After.
    """
    seconds = float(pause) if pause is not None and pause.isdigit() else None
    try:
        document: Any = json.loads(body)
        name = document["type"].rpartition("/")[2]
        why = str(document["detail"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return _without_document(status, body, seconds)
    if status == 410 and isinstance(document.get("oldest"), str):
        return CursorTruncated(why, document["oldest"], name)
    if name in KNOWN:
        return KNOWN[name](why)
    return (GatewayDefect if status == DEFECT else GatewayRefused)(why, status, name, seconds)


def _without_document(status: int, body: bytes, seconds: float | None) -> StreamleaseError:
    """What stands between client and gateway answers so."""
    told = " ".join(body[:LONGEST_TOLD].decode(errors="replace").split())
    why = f"HTTP {status}, which is not from a gateway: {told or 'no body'}"
    if status in (502, LATE):  # a proxy had no answer from the gateway
        return Indefinite(f"{why}; it may have been done")
    return GatewayRefused(why, status, "unknown", seconds)
