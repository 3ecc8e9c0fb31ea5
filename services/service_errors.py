"""The errors of services; each is one line.

::

    StreamleaseError
    +-- NoService        nobody serves that name (retriable)
    +-- ServiceBusy      whoever serves it has too much to do; nothing was done (retriable)
    +-- ServiceConflict  others serve that name with other types
    +-- TypeMismatch     what one side writes, the other does not read; nothing was done
    +-- ServiceError     the handler raised an error

``Indefinite``: the server has died, or did not answer in time; the handler has run, or it has not.
``StoreUnavailable``: Redis does not answer; the request was not sent.
"""

from __future__ import annotations

from pydantic import BaseModel

from streamlease.protocol.errors import StreamleaseError


class NoService(StreamleaseError):
    """Nobody serves that name; nothing was done."""

    retriable = True


class ServiceBusy(StreamleaseError):
    """All who serve that name have as many requests as they take; nothing was done."""

    retriable = True


class ServiceConflict(StreamleaseError):
    """Others serve that name, with types that do not agree with these."""


class TypeMismatch(StreamleaseError):
    """The types of caller and server do not agree; the handler did not run."""


class ServiceError(StreamleaseError):
    """The error of a handler. A handler raises it, and the caller gets it.

    Args:
        message: one line for people.
        error: what programs may look at; of the type that `serve` was told in `errors`.
    """

    def __init__(self, message: str, error: BaseModel | None = None) -> None:
        super().__init__(message)
        self.error = error
        """None for a caller that did not name its type."""
        self.kind = "ServiceError"
        """The class of what the handler raised."""
