"""What travels between callers and servers: frames, each a head and a payload.

::

    request   C ID EXPIRES OWN JUDGED SERVICE NAME     payload: the request, JSON
    cancel    X ID                                     payload: empty
    answer    A ID OWN                                 payload: the answer, JSON
    failure   E ID                                     payload: {"message", "kind", "error"}, of the handler
    refusal   R ID REASON                              payload: why, for people; the handler did not run

ID is the caller's number of the call; EXPIRES is when the caller has given up, in milliseconds of the clock
of Redis. OWN is the fingerprint of the payload's type, JUDGED that of the server's type with which the caller
has found it to agree (`shapes`): a server takes what is its own type, or was judged by it.

Many frames for one process are one entry of its Redis stream: fields ``f`` (who sends) and ``n`` (the number
of this entry, of this sender to this stream), and then a field for each frame. Redis' own framing is read in
C, and no payload is escaped or copied for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

REFUSED_BUSY = "busy"
REFUSED_LEAVING = "leaving"
"""It does not serve that any more, or not yet again."""
REFUSED_TYPE = "type"
REFUSED_BROKEN_OFF = "broken-off"
"""The only one that says that the handler had begun: the server ended in the middle of it."""

_REASONS = frozenset({REFUSED_BUSY, REFUSED_LEAVING, REFUSED_TYPE, REFUSED_BROKEN_OFF})

_LENGTHS = {b"C": 7, b"X": 2, b"A": 3, b"E": 2, b"R": 3}


class RequestFrame(NamedTuple):
    """Somebody wants an answer."""

    call: int
    expires: int
    own: str
    judged: str
    service: str
    name: str
    payload: bytes


class CancelFrame(NamedTuple):
    """Nobody wants that answer any more."""

    call: int


class AnswerFrame(NamedTuple):
    """What the handler returned."""

    call: int
    own: str
    payload: bytes


class FailureFrame(NamedTuple):
    """What the handler raised."""

    call: int
    payload: bytes


class RefusalFrame(NamedTuple):
    """The server says why there is no answer."""

    call: int
    reason: str
    why: str


Frame = RequestFrame | CancelFrame | AnswerFrame | FailureFrame | RefusalFrame


class FrameEntry(NamedTuple):
    """One entry of a stream."""

    sender: str
    number: int
    frames: list[Frame]
    damaged: int
    """How many frames did not parse."""


def request_head(call: int, expires: int, own: str, judged: str, service: str, name: str) -> bytes:
    return f"C {call} {expires} {own} {judged} {service} {name}".encode()


def cancel_head(call: int) -> bytes:
    return b"X %d" % call


def answer_head(call: int, own: str) -> bytes:
    return f"A {call} {own}".encode()


def failure_head(call: int) -> bytes:
    return b"E %d" % call


def refusal_head(call: int, reason: str) -> bytes:
    return f"R {call} {reason}".encode()


def parse_entry(fields: Sequence[bytes]) -> FrameEntry | None:
    """An entry as Redis gives it; None if it is not of this form."""
    if len(fields) < 4 or fields[0] != b"f" or fields[2] != b"n" or not fields[3].isdigit():
        return None
    frames: list[Frame] = []
    damaged = 0
    for place in range(4, len(fields) - 1, 2):
        frame = _parse(fields[place], fields[place + 1])
        if frame is None:
            damaged += 1
        else:
            frames.append(frame)
    return FrameEntry(fields[1].decode("utf-8", "replace"), int(fields[3]), frames, damaged)


def _parse(head: bytes, payload: bytes) -> Frame | None:
    kind = head[:1]
    try:
        words = head.decode().split(" ", 6)
        if len(words) != _LENGTHS.get(kind) or words[0] != kind.decode():
            return None
        call = int(words[1])
        if kind == b"A":
            return AnswerFrame(call, words[2], payload)
        if kind == b"C":
            return RequestFrame(call, int(words[2]), words[3], words[4], words[5], words[6], payload)
        if kind == b"E":
            return FailureFrame(call, payload)
        if kind == b"X":
            return CancelFrame(call)
        if words[2] not in _REASONS:
            return None
        return RefusalFrame(call, words[2], payload.decode("utf-8", "replace"))
    except ValueError:
        return None
