"""Errors of requests that no other room knows; ``gateway.problems`` says how they are answered. Pure."""

from __future__ import annotations

from streamlease.protocol.errors import StreamleaseError


class NotFound(StreamleaseError):
    """There is nothing at that address, or not by that method."""


class NotAcceptable(StreamleaseError):
    """The answer cannot be had in the form that is wanted."""


class BodyTooLarge(StreamleaseError):
    """The body of a request is larger than this gateway takes."""


class GatewayEnds(StreamleaseError):
    """The gateway ends while a request waits: another one goes on."""

    retriable = True


class WrongMethod(StreamleaseError):
    """The address knows other methods."""

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class OtherHost(StreamleaseError):
    """The request was meant for another host, or made by a page of one."""


class TruncatedSince(StreamleaseError):
    """Retention, or a loss, already took what was asked for; `oldest` is the cursor to go on from."""

    def __init__(self, why: str, oldest: str) -> None:
        super().__init__(why)
        self.oldest = oldest


class LostSince(TruncatedSince):
    """Redis lost acknowledged messages that the cursor has passed, or comes to; `oldest` is as above."""


class FileLostSince(TruncatedSince):
    """A file of an archive is missing or altered, and with it what comes next; `file` is its name."""

    def __init__(self, why: str, oldest: str, file: str) -> None:
        super().__init__(why, oldest)
        self.file = file


class MalformedRequest(StreamleaseError):
    """A request is no HTTP, or could be read in two ways."""


class HeadTooLarge(StreamleaseError):
    """Request line and headers are larger than this gateway takes."""


class OtherVersion(StreamleaseError):
    """A request is of a version of HTTP that is not spoken here."""


class OtherCoding(StreamleaseError):
    """A body is coded in a way that is not known here."""


class TooSlow(StreamleaseError):
    """A request did not come whole in time."""
