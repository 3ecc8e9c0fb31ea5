"""What takes the place of a transport of asyncio, for a protocol that reads the connection itself."""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis

from streamlease.testing.memory.sockets import Socket


class MemoryTransport(asyncio.Transport):
    """Bytes of a protocol to the commands of a socket, and its replies to bytes."""

    def __init__(self, socket: Socket) -> None:
        super().__init__()
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BaseProtocol = asyncio.Protocol()
        self._requests: Any = hiredis.Reader()
        self._looks = False
        """Whether the loop is about to look at the socket."""
        self._over = False
        """Whether the protocol knows that the connection is closed."""

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told what comes."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have `protocol` told what comes."""
        self._protocol = protocol

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._socket.closed or self._socket.lost

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send commands, as they are written on the wire."""
        self._requests.feed(bytes(data))
        commands = []
        while (one := self._requests.gets()) is not False:
            commands.append(one)
        if not self.is_closing():
            self._socket.send(commands)

    def abort(self) -> None:
        """Close the connection."""
        self._socket.close()
        self.look()

    def look(self) -> None:
        """There is a reply, or the end: tell the protocol in a turn of its own."""
        if not self._looks:
            self._looks = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._looks = False
        protocol: Any = self._protocol
        while self._socket.replies and not self._socket.closed:
            protocol.data_received(_written(self._socket.replies.popleft()))
        if self.is_closing() and not self._over:
            self._over = True
            protocol.connection_lost(None)


def _written(reply: Any) -> bytes:
    """A reply as it is written on the wire."""
    if isinstance(reply, bytes):  # nearly all are
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    if isinstance(reply, (list, tuple)):
        return b"*%d\r\n%s" % (len(reply), b"".join([_written(one) for one in reply]))
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, Exception):
        return b"-%s\r\n" % str(reply).encode()
    return _written(str(reply).encode())
