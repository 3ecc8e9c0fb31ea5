"""Appends of single messages as they are sent: what those of one publisher to a stream have in common is
packed once.

The bytes are those of :attr:`Append.call` with the entry of ``encode_message``, for a quarter of the time:
whoever sends one message after the other waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import append_keys, stream_news
from streamlease.streams.redis.scripts import load_script

_ROOM = "streamlease.streams.log"

ARGUMENTS = 13
"""Of the command without the fields of the entry."""


class Stencil:
    """Packs appends of single messages without headers, of one incarnation of a publisher, to one stream."""

    __slots__ = ("_heads", "_middle")

    def __init__(self, stream: StreamId, publisher: str, incarnation: int) -> None:
        digest, keys = load_script(_ROOM, "append").digest, append_keys(stream)
        head = _packed(("EVALSHA", digest, str(len(keys)), *keys, publisher, str(incarnation)))
        self._heads = [b"*%d\r\n%b$" % (ARGUMENTS + fields, head) for fields in (4, 6, 8)]
        """By how many of key and event time there are: all up to the length of the sequence."""
        self._middle = _packed(("1", "0", stream_news(stream))) + b"$"

    def packed(
        self, sequence: int, known: int, topic: str, payload: bytes, key: bytes | None, timestamp: int | None
    ) -> bytes:
        """The append of one message; see ``Append`` for `sequence` and `known`."""
        place, end = b"%d" % sequence, b"%d" % known
        more, tail = 0, b""
        if key is not None:
            more, tail = 1, b"$1\r\nk\r\n$%d\r\n%b\r\n" % (len(key), key)
        if timestamp is not None:
            time = b"%d" % timestamp
            more, tail = more + 1, b"%b$1\r\ne\r\n$%d\r\n%b\r\n" % (tail, len(time), time)
        return b"%b%d\r\n%b\r\n%b%d\r\n%b\r\n%b%d\r\n%b\r\n%b" % (
            self._heads[more],
            len(place),
            place,
            self._middle,
            len(end),
            end,
            _topic(topic),
            len(payload),
            payload,
            tail,
        )


def appended_at(reply: Any) -> int | None:
    """The offset of a single message, if `reply` says that it was appended just now."""
    return reply[1] if type(reply) is list and reply[0] == b"appended" else None


@lru_cache(maxsize=32_768)
def _topic(topic: str) -> bytes:
    """The topic, and what follows it up to the length of the payload."""
    return _packed(("t", topic, "p")) + b"$"


def _packed(texts: Iterable[str]) -> bytes:
    return b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in map(str.encode, texts))
