"""The readers without a group that a client has made, which end with it."""

from __future__ import annotations

from typing import Protocol, TypeVar
from weakref import WeakSet

from streamlease.protocol.errors import InvalidOption, StreamleaseError


class Ending(Protocol):
    """What may be told that it goes no further."""

    def end(self, error: StreamleaseError) -> None:
        """Hand out nothing more: who waits, or else who asks next, gets `error`."""


R = TypeVar("R", bound=Ending)


class OwnReaders:
    """Those that are still there; they are not kept for this."""

    def __init__(self) -> None:
        self._made: WeakSet[Ending] = WeakSet()
        self._closed = False

    def check_open(self) -> None:
        """Whether the client is there to make something.

        Raises:
            InvalidOption: it is closed.
        """
        if self._closed:
            raise InvalidOption("the client is closed: connect again")

    def add(self, reader: R) -> R:
        """The reader, from now on one of them; raises as `check_open`."""
        self.check_open()
        self._made.add(reader)
        return reader

    def close(self) -> None:
        """Tell those that are open that the client is closed."""
        self._closed = True
        for reader in [*self._made]:
            reader.end(InvalidOption("the client is closed: what it read goes no further"))
