"""Cursors: points of collections as text, which another process understands."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from functools import cached_property
from typing import Any

from streamlease.protocol.errors import InvalidInput

LONGEST_CURSOR = 1 << 20


class CatalogCursor:
    """A point of a collection; its text is made when somebody wants it."""

    def __init__(self, collection: str, point: Any) -> None:
        self.collection = collection
        self.point = point
        """To be kept as JSON."""

    @cached_property
    def text(self) -> str:
        """As it is handed out."""
        text = json.dumps([self.collection, self.point], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(zlib.compress(text)).rstrip(b"=").decode()


def point_of(collection: str, cursor: str) -> Any:
    """The point that a cursor is.

    Raises:
        InvalidInput: it is none of `collection`.
    """
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        text = zlib.decompressobj().decompress(raw, LONGEST_CURSOR)
        name, at = json.loads(text)
    except (binascii.Error, zlib.error, ValueError, TypeError):
        raise no_cursor(collection) from None
    if name != collection:
        raise no_cursor(collection)
    return at


def no_cursor(collection: str) -> InvalidInput:
    """The error of a cursor that was not told by a follower of `collection`."""
    return InvalidInput(f"the cursor is none of {collection}: use 'at' of an answer, as it is")
