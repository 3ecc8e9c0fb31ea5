"""What ``submit`` and ``submit_many`` return: futures that are made only when somebody looks at one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, overload

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.publish.parts import Part, Placed, PlacedRange

Bundle = tuple[Part, int, int]
"""A piece of a call, neighbours in one part: that part, the place of the first one, and how many they are."""

BundleFuture = asyncio.Future[list[PlacedRange]]
"""Where the messages of a piece stand: one range, or several if its space got a new generation meanwhile."""


class Receipts(Sequence[BundleFuture]):
    """What becomes of the pieces of a call. Await what is wanted of it, on the event loop, or drop it.

    Args:
        pieces: whose futures there may be.
    """

    __slots__ = ("_futures", "_pieces")

    def __init__(self, pieces: list[Bundle]) -> None:
        self._pieces = pieces
        self._futures: dict[int, BundleFuture] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    @overload
    def __getitem__(self, which: int) -> BundleFuture: ...

    @overload
    def __getitem__(self, which: slice) -> Sequence[BundleFuture]: ...

    def __getitem__(self, which: int | slice) -> BundleFuture | Sequence[BundleFuture]:
        if isinstance(which, slice):
            return [self._future(number) for number in range(len(self._pieces))[which]]
        return self._future(range(len(self._pieces))[which])

    def __add__(self, others: Iterable[BundleFuture]) -> list[BundleFuture]:
        return [*self, *others]

    def _future(self, number: int) -> BundleFuture:
        future = self._futures.get(number)
        if future is None:
            part, place, count = self._pieces[number]
            future = self._futures[number] = part.piece(place, count)
        return future


async def all_places(futures: Sequence[BundleFuture]) -> list[PlacedRange]:
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
