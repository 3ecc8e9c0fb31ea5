"""Cursors: points in the log that a client keeps, and nobody can forge.

A cursor says of each stream which offset comes next, and whether the stream was read to its sealed end. So it
outlives processes, alterations of a space and moves to another gateway: a stream that it does not name is
younger than it, and is read from its beginning. It does not belong to a filter::

    cursor = base64url( version | body | first 16 bytes of HMAC-SHA256(key, version | body) )
    body   = for each generation: space, generation, number of streams, then of each the gap to the stream
             before it and 2 * next + ended; numbers are LEB128. Deflated where that is shorter (version 2).

All gateways of one Redis have one key (``registry.shared_secrets``). The signature is there because a
position is attested by it: whoever could write cursors could name offsets that never were.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import groupby

from streamlease.protocol.errors import InvalidInput
from streamlease.protocol.ids import MOST_NUMBER, StreamId

PLAIN, DEFLATED = 1, 2
SIGNATURE_BYTES = 16
MARK_LENGTH = 16
LONGEST = 64 * 1024
"""Characters of a cursor, which is part of a URL; 4096 streams with large offsets need half of that."""

MOST_BODY = 1024 * 1024
"""Bytes of a body that was deflated."""

Places = Mapping[StreamId, tuple[int, bool]]
"""Of each stream the next offset, and whether it was read to its sealed end."""


class InvalidCursor(InvalidInput):
    """A text is no cursor of this service."""


class Cursor:
    """A point in the log; equal to another one with the same places."""

    def __init__(self, places: Places) -> None:
        self.places = dict(sorted(places.items()))

    @cached_property
    def body(self) -> bytes:
        """The places as bytes, the same for equal cursors."""
        out = bytearray()
        for (space, generation), some in groupby(self.places.items(), lambda item: item[0][:2]):
            streams = [*some]
            name = space.encode()
            _put(out, len(name))
            out += name
            _put(out, generation)
            _put(out, len(streams))
            before = -1
            for stream, (next, ended) in streams:
                _put(out, stream.shard - before - 1)
                _put(out, 2 * next + ended)
                before = stream.shard
        return bytes(out)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and self.body == other.body

    def __hash__(self) -> int:
        return hash(self.body)

    def __repr__(self) -> str:
        return f"Cursor({ {str(stream): place for stream, place in self.places.items()} })"

    def next_of(self, stream: StreamId) -> int:
        """The offset that comes next; 0 in a stream that it does not name."""
        return self.places.get(stream, (0, False))[0]


class CursorCodec:
    """Makes texts of cursors, and cursors of texts.

    Args:
        key: what all gateways of one Redis share.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def text(self, cursor: Cursor) -> str:
        """`cursor` as the client gets it: letters, digits, ``-`` and ``_``."""
        body = cursor.body
        packed = zlib.compress(body, 6) if len(body) > 128 else body
        head = bytes([DEFLATED]) + packed if len(packed) < len(body) else bytes([PLAIN]) + body
        return base64.urlsafe_b64encode(head + self._sign(head)).rstrip(b"=").decode()

    def parse(self, text: str) -> Cursor:
        """The cursor that :meth:`text` made.

        Raises:
            InvalidCursor: it was not made with this key, or was changed.
        """
        if len(text) > LONGEST:
            raise InvalidCursor(f"a cursor has at most {LONGEST} characters, and this one {len(text)}")
        try:
            raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            raise _unknown(text) from None
        head, signature = raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:]
        if not head or not hmac.compare_digest(self._sign(head), signature):
            raise _unknown(text)
        try:
            body = head[1:] if head[0] == PLAIN else _inflated(head)
            return Cursor(dict(_places(body)))
        except (ValueError, IndexError, zlib.error):  # signed by another version
            raise _unknown(text) from None

    def _sign(self, head: bytes) -> bytes:
        return hmac.new(self._key, head, hashlib.sha256).digest()[:SIGNATURE_BYTES]


def mark(text: str) -> bytes:
    """What stands for the cursor `text` in the field `after` of the event that comes next behind it."""
    return hashlib.sha256(text.encode()).hexdigest()[:MARK_LENGTH].encode()


def _unknown(text: str) -> InvalidCursor:
    return InvalidCursor(
        f"{ascii(text)[:80]} is no cursor of this service: give 'next' of an answer as it was, "
        f"or begin with earliest, latest or a time such as 2026-01-31T12:00:00Z"
    )


def _inflated(head: bytes) -> bytes:
    if head[0] != DEFLATED:
        raise ValueError("version")
    inflating = zlib.decompressobj()
    body = inflating.decompress(head[1:], MOST_BODY)
    if not inflating.eof:
        raise ValueError("length")
    return body


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _places(body: bytes) -> Iterator[tuple[StreamId, tuple[int, bool]]]:
    at = 0

    def take() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = body[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("number")

    while at < len(body):
        length = take()
        space = body[at : at + length].decode()
        at += length
        generation, shard = take(), -1
        for _ in range(take()):
            shard += take() + 1
            next, ended = divmod(take(), 2)
            if next > MOST_NUMBER:
                raise ValueError("offset")
            yield StreamId(space, generation, shard), (next, bool(ended))
