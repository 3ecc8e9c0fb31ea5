"""Receipts: what ``submit`` returns for each message. A future is made only when somebody waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.publish.parts import Part, Placed, PlacedRange


async def all_places(futures: Sequence[asyncio.Future[list[PlacedRange]]]) -> list[PlacedRange]:
    """What all of them give, in order, once all are done.

    Raises:
        StreamleaseError: the first error among them.
    """
    places: list[PlacedRange] = []
    for result in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        places += result
    return places


class Receipt:
    """What ``submit`` returns for one message. Await it to learn where the message stands, or drop it."""

    __slots__ = ("_part", "_place")

    def __init__(self, part: Part, place: int) -> None:
        self._part = part
        self._place = place

    def __await__(self) -> Generator[Any, None, Placed]:
        return (yield from self._part.future(self._place).__await__())

    def done(self) -> bool:
        """Whether the fate of the message is known."""
        return self._part.outcome(self._place) is not None

    def result(self) -> Placed:
        """Its stream and offset.

        Raises:
            StreamleaseError: why it was not written, as ``send``.
            asyncio.InvalidStateError: it is not known yet.
        """
        outcome = self._known()
        if isinstance(outcome, StreamleaseError):
            raise outcome
        return outcome

    def exception(self) -> StreamleaseError | None:
        """Why the message was not written; None if it was.

        Raises:
            asyncio.InvalidStateError: it is not known yet.
        """
        outcome = self._known()
        return outcome if isinstance(outcome, StreamleaseError) else None

    def add_done_callback(self, callback: Callable[[Receipt], object]) -> None:
        """Call `callback` with this receipt, on the event loop, once it is done."""
        self._part.future(self._place).add_done_callback(lambda _: callback(self))

    def _known(self) -> Placed | StreamleaseError:
        outcome = self._part.outcome(self._place)
        if outcome is None:
            raise asyncio.InvalidStateError("it is not known yet what became of the message: await it")
        return outcome
