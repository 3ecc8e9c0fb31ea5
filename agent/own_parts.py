"""What a client has made that ends with it: readers without a group, and publishers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

from streamlease.protocol.errors import InvalidOption, StreamleaseError

if TYPE_CHECKING:
    from streamlease.streams.epochs.epoch_publisher import EpochPublisher
    from streamlease.streams.publish.publisher import Publisher


@contextmanager
def beside(error: BaseException | None) -> Iterator[None]:
    """Around the end of a block that `error` has left: what goes wrong there is a note of it."""
    try:
        yield
    except StreamleaseError as closing:
        if error is None:
            raise
        error.add_note(f"at the end of the block, too: {closing}")


class Ending(Protocol):
    """What may be told that it goes no further."""

    def end(self, error: StreamleaseError) -> None:
        """Hand out nothing more: who waits, or else who asks next, gets `error`."""


R = TypeVar("R", bound=Ending)


class OwnParts:
    """Those that are still there; they are not kept for this."""

    def __init__(self) -> None:
        self._made: WeakSet[Ending] = WeakSet()
        self._publishers: WeakSet[Publisher] = WeakSet()
        self._epoch_publishers: WeakSet[EpochPublisher] = WeakSet()
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

    def publishing(self, publisher: Publisher) -> Publisher:
        """The publisher, from now on one of them; raises as `check_open`."""
        self.check_open()
        self._publishers.add(publisher)
        return publisher

    def publishing_epochs(self, publisher: EpochPublisher) -> EpochPublisher:
        """The publisher, from now on one of them; raises as `check_open`."""
        self.check_open()
        self._epoch_publishers.add(publisher)
        return publisher

    @property
    def ends_of_publishers(self) -> list[Callable[[], Awaitable[None]]]:
        """What ends those that were made and not dropped; to end one that is closed does nothing.

        Which epochs are over is for the program to say: nothing is given up here.
        """
        plain = [one.close for one in self._publishers]
        return [*plain, *(one.abandon for one in self._epoch_publishers)]

    def close(self) -> None:
        """Tell those that are open that the client is closed."""
        self._closed = True
        for reader in [*self._made]:
            reader.end(InvalidOption("the client is closed: what it read goes no further"))
