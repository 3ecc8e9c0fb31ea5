"""How callers come into a publisher, and how they wait while it holds too much."""

from __future__ import annotations

from streamlease.protocol.errors import InvalidInput
from streamlease.streams.publish.buffer import Buffer
from streamlease.streams.publish.sending.ready_lanes import ReadyLanes
from streamlease.streams.publish.sending.sender import Sender


class Gate:
    """The way into a publisher: shut once it is closed or cannot send any more, and slow while it is full."""

    def __init__(self, buffer: Buffer, ready: ReadyLanes, sender: Sender) -> None:
        self.closed = False
        self._buffer = buffer
        self._ready = ready
        self._sender = sender

    def check_open(self) -> None:
        """Whether the publisher takes messages.

        Raises:
            InvalidInput: it is closed.
            StreamleaseError: why its sender ended.
        """
        if self.closed:
            raise InvalidInput("the publisher is closed: make a new one")
        if self._sender.error is not None:
            raise self._sender.error

    async def reserve(self, size: int) -> None:
        """Count `size` bytes as held, as soon as there is room for them."""
        await self.room(size)
        self._buffer.held += size

    async def room(self, size: int) -> None:
        """Wait until there is room for `size` bytes."""
        if self._buffer.is_full_for(size):
            with self._ready.hurried():
                while self._buffer.is_full_for(size):
                    await self._buffer.freed()
                    self.check_open()

    def enters(self, size: int) -> bool:
        """Count `size` bytes as held if there is room for them; whether there is."""
        if self._buffer.is_full_for(size):
            return False
        self._buffer.held += size
        return True
