"""The commands on streams, as Redis 7 does them. Approximate trimming is exact here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from streamlease.testing.memory.keyspace import LAST_ID, Id, Keyspace, Stream

MOST = 2**64 - 1
BAD_ID = "ERR Invalid stream ID specified as stream command argument"
SMALLER = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
SYNTAX = "ERR syntax error"

Args = Sequence[bytes]


def written(id: Id) -> bytes:
    """An id as Redis shows it."""
    return b"%d-%d" % id


def parsed(text: bytes, sequence: int) -> Id:
    """An id; `sequence` is meant where it has none.

    Raises:
        ResponseError: it is none.
    """
    first, dash, second = text.partition(b"-")
    if not first.isdigit() or (dash and not second.isdigit()):
        raise ResponseError(BAD_ID)
    found = int(first), int(second) if dash else sequence
    if found > LAST_ID or found[1] > MOST:
        raise ResponseError(BAD_ID)
    return found


def after(id: Id) -> Id:
    """The next one."""
    return (id[0], id[1] + 1) if id[1] < MOST else (id[0] + 1, 0)


def before(id: Id) -> Id:
    """The one before."""
    return (id[0], id[1] - 1) if id[1] else (id[0] - 1, MOST)


def _border(text: bytes, *, first: bool) -> Id:
    if text == b"-":
        return (0, 0)
    if text == b"+":
        return LAST_ID
    if text.startswith(b"("):
        id = parsed(text[1:], 0 if first else MOST)
        return after(id) if first else before(id)
    return parsed(text, 0 if first else MOST)


def _trimming(args: Args, place: int) -> tuple[tuple[bytes, bytes] | None, int]:
    """What ``MAXLEN`` or ``MINID`` at `place` says, and where the arguments go on."""
    if place >= len(args) or args[place].upper() not in (b"MAXLEN", b"MINID"):
        return None, place
    kind = args[place].upper()
    place += 1
    if args[place] in (b"~", b"="):
        place += 1
    border = args[place]
    place += 1
    if place + 1 < len(args) and args[place].upper() == b"LIMIT":
        place += 2
    return (kind, border), place


def _trim(stream: Stream, how: tuple[bytes, bytes]) -> int:
    kind, border = how
    if kind == b"MAXLEN":
        return stream.drop(len(stream) - int(border))
    return stream.drop(stream.between((0, 0), before(parsed(border, 0))).stop if border != b"0" else 0)


def xadd(keys: Keyspace, args: Args) -> bytes | None:
    """XADD key [NOMKSTREAM] [MAXLEN|MINID [=|~] border] id field value ..."""
    key, place = args[0], 1
    make = args[place].upper() != b"NOMKSTREAM"
    trim, place = _trimming(args, place if make else place + 1)
    wanted, fields = args[place], list(args[place + 1 :])
    if not fields or len(fields) % 2:
        raise ResponseError("ERR wrong number of arguments for 'xadd' command")
    known = keys.of(key, Stream)
    if known is None and not make:
        return None
    last = known.last if known is not None else (0, 0)
    id = _next_id(wanted, last, keys.now())
    stream = keys.made(key, Stream)
    stream.add(id, fields)
    if trim is not None:
        _trim(stream, trim)
    return written(id)


def _next_id(wanted: bytes, last: Id, now: int) -> Id:
    if wanted == b"*":
        if last == LAST_ID:
            raise ResponseError("ERR The stream has exhausted the last possible ID, unable to add more items")
        return (now, 0) if now > last[0] else after(last)
    if wanted.endswith(b"-*"):
        milliseconds = parsed(wanted[:-2], 0)[0]
        if milliseconds < last[0] or last == LAST_ID:
            raise ResponseError(SMALLER)
        return (milliseconds, 0) if milliseconds > last[0] else after(last)
    id = parsed(wanted, 0)
    if id == (0, 0):
        raise ResponseError("ERR The ID specified in XADD must be greater than 0-0")
    if id <= last:
        raise ResponseError(SMALLER)
    return id


def _entries(stream: Stream, places: Sequence[int]) -> list[Any]:
    return [[written(stream.ids[place]), list(stream.fields[place])] for place in places]


def _count(args: Args, place: int) -> int | None:
    if len(args) <= place:
        return None
    if args[place].upper() != b"COUNT":
        raise ResponseError(SYNTAX)
    return int(args[place + 1])


def xrange(keys: Keyspace, args: Args) -> list[Any]:
    """XRANGE key first last [COUNT n]"""
    stream, count = keys.of(args[0], Stream), _count(args, 3)
    first, last = _border(args[1], first=True), _border(args[2], first=False)
    return [] if stream is None else _entries(stream, stream.between(first, last)[:count])


def xrevrange(keys: Keyspace, args: Args) -> list[Any]:
    """XREVRANGE key last first [COUNT n]"""
    stream, count = keys.of(args[0], Stream), _count(args, 3)
    first, last = _border(args[2], first=True), _border(args[1], first=False)
    return [] if stream is None else _entries(stream, stream.between(first, last)[::-1][:count])


def xlen(keys: Keyspace, args: Args) -> int:
    """XLEN key"""
    stream = keys.of(args[0], Stream)
    return 0 if stream is None else len(stream)


def xtrim(keys: Keyspace, args: Args) -> int:
    """XTRIM key MAXLEN|MINID [=|~] border"""
    how, _ = _trimming(args, 1)
    if how is None:
        raise ResponseError(SYNTAX)
    stream = keys.of(args[0], Stream)
    return 0 if stream is None else _trim(stream, how)


def xdel(keys: Keyspace, args: Args) -> int:
    """XDEL key id ..."""
    stream, deleted = keys.of(args[0], Stream), 0
    if stream is None:
        return 0
    for id in [parsed(text, 0) for text in args[1:]]:
        for place in stream.between(id, id):
            del stream.ids[place], stream.fields[place]
            deleted += 1
    return deleted


class StreamRead:
    """An XREAD: what it asks for. ``$`` is settled when it is made."""

    def __init__(self, keys: Keyspace, args: Args) -> None:
        self._keys = keys
        self._most: int | None = None
        self.block: int | None = None
        """For how many ms it waits; 0: for ever; None: not at all."""
        place = 0
        while args[place].upper() != b"STREAMS":
            name, value = args[place].upper(), int(args[place + 1])
            if name == b"COUNT":
                self._most = value
            elif name == b"BLOCK":
                self.block = value
            else:
                raise ResponseError(SYNTAX)
            place += 2
        half = (len(args) - place - 1) // 2
        self.names = list(args[place + 1 : place + 1 + half])
        asked = args[place + 1 + half :]
        if len(asked) != len(self.names):
            raise ResponseError(SYNTAX)
        self._from = [self._begin(key, id) for key, id in zip(self.names, asked, strict=True)]

    def _begin(self, key: bytes, id: bytes) -> Id:
        if id != b"$":
            return after(parsed(id, 0))
        stream = self._keys.of(key, Stream)
        return after(stream.last) if stream is not None else (0, 1)

    def reply(self) -> list[Any] | None:
        """What is there now; None if nothing is."""
        found = []
        for key, first in zip(self.names, self._from, strict=True):
            stream = self._keys.of(key, Stream)
            places = stream.between(first, LAST_ID)[: self._most] if stream is not None else range(0)
            if stream is not None and places:
                found.append([key, _entries(stream, places)])
        return found or None
