"""How parts end: whoever waits is told, the buffer has room again, and what came of it is counted.

What is not known for certain is ``Indefinite``: a part of which an attempt may have been written ends so,
whatever the last attempt said. Its lane goes on under another incarnation, so that this attempt is fenced
should it still arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamlease.protocol.errors import (
    Indefinite,
    NotDurable,
    StoreUnavailable,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.publish import metrics
from streamlease.streams.publish.buffer import Buffer
from streamlease.streams.publish.epoch_staging import EpochStaging
from streamlease.streams.publish.lanes import Lane
from streamlease.streams.publish.parts import Part
from streamlease.streams.publish.traces import Traces


class Endings:
    """The ends of a publisher's parts.

    Args:
        misplaced: called when a message was refused because its topic belongs elsewhere now.
        staging: is told of each part that is staged.
    """

    def __init__(
        self,
        buffer: Buffer,
        traces: Traces | None,
        misplaced: Callable[[], None],
        staging: EpochStaging | None = None,
    ) -> None:
        self._staging = staging
        self._buffer = buffer
        self._traces = traces
        self._misplaced = misplaced
        self._loop = asyncio.get_running_loop()
        self._first_error: StreamleaseError | None = None
        self._uncounted: list[tuple[int, int, float]] = []
        """Messages, bytes and seconds of each part that is written since parts were counted."""

    def appended(self, lane: Lane, part: Part, stream: StreamId, first: int) -> None:
        """`part`, which was in flight, is written from offset `first` on."""
        lane.appended(first + part.count)
        if self._staging is not None and part.stamp is not None:
            self._staging.appended(part.stamp, stream, first, part.count)
        part.succeed(stream, first)
        self._buffer.release(part.size)
        seconds = self._loop.time() - part.born
        if self._traces is not None:
            self._traces.sent(part.stream, part, None, seconds)
        # Behind those who were told: they need not wait for it.
        if not self._uncounted:
            self._loop.call_soon(self._count)
        self._uncounted.append((part.count, part.size, seconds))

    def failed(self, lane: Lane, part: Part, error: StreamleaseError) -> None:
        """`part` fails with exactly `error`."""
        if isinstance(error, NotDurable):
            lane.sequence += 1  # it is there
        elif part.maybe:
            lane.renew()
        part.fail(error)
        self._buffer.release(part.size)
        seconds = self._loop.time() - part.born
        if self._traces is not None:
            self._traces.sent(part.stream, part, error, seconds)
        metrics.PUBLISH_SECONDS.observe(seconds)
        metrics.PUBLISH_FAILURES.labels(type(error).__name__).inc(part.count)
        if not part.watched and self._first_error is None:
            self._first_error = error
        if isinstance(error, UnknownSpace | StreamSealed):
            self._misplaced()

    def _count(self) -> None:
        written, self._uncounted = self._uncounted, []
        metrics.count(written)

    def take_error(self) -> StreamleaseError | None:
        """The first error since the last call of a message for which nobody waits."""
        error, self._first_error = self._first_error, None
        return error


def no_answer() -> Indefinite:
    """The error for an append to which no reply came."""
    return Indefinite("no answer came from Redis in time: it was written, or it was not")


def or_indefinite(part: Part, error: StreamleaseError) -> StreamleaseError:
    """The error of which `part` is to fail, when `error` is that of its last attempt."""
    if part.maybe and not isinstance(error, Indefinite | NotDurable):
        return Indefinite(f"an earlier attempt may have been written, or not; the last one: {error}")
    return error


def not_placed(error: StreamleaseError) -> StreamleaseError:
    """The error for messages whose stream took nothing, and of which `error` hid where they belong now."""
    if isinstance(error, Indefinite):  # about the definition; the messages were refused for certain
        return StoreUnavailable(f"not written, because its space is being altered: {error}")
    return error


def never_sent(error: StreamleaseError) -> StreamleaseError:
    """The error for what waited behind a part that failed with `error`, and became too old."""
    return StoreUnavailable(f"not sent, because what was before it got no answer: {error}")
