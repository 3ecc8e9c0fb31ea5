"""Errors of requests of members; ``gateway.problems`` says how they are answered. Pure."""

from __future__ import annotations

from streamlease.protocol.errors import StreamleaseError


class UnknownMember(StreamleaseError):
    """There is no such member: it never joined, has left, or was silent for too long."""


class NotHeld(StreamleaseError):
    """The member does not have that stream (any more)."""


class NotHandedOut(StreamleaseError):
    """The member speaks of messages that it did not get, or has to get again."""


class NotCommitted(StreamleaseError):
    """The member has been handed out so much that it must commit some first."""


class Misdirected(StreamleaseError):
    """Another gateway passed the request on, and this one does not serve the member."""


class ComingBack(StreamleaseError):
    """The member has just moved to this gateway, and a stream of it is not back yet. Nothing was done."""

    retriable = True
