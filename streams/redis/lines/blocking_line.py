"""The blocking twin of a direct line: one kept connection, for one thread at a time.

What redis-py does around one command takes longer than the command. As with ``direct_line``, redis-py makes
the connection; in any doubt, and with an error reply, the line ends, and nothing is repeated here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hiredis import HiredisError, Reader
from redis.exceptions import ResponseError

from streamlease.streams.redis.exchange_failures import not_connected
from streamlease.streams.redis.lines.direct_line import primary_of
from streamlease.streams.redis.wire import BlockingServer, address

_READ_BYTES = 64 * 1024


class BlockingLine:
    """One connection to the server of `client`; a reply may take as long as with that.

    Raises:
        StoreUnavailable, StoreRefused: no connection.
    """

    def __init__(self, client: BlockingServer) -> None:
        self._pool: Any = client.connection_pool
        try:
            self._connection: Any = self._pool.get_connection()
        except Exception as error:
            raise not_connected(address(client), error) from None
        self._socket: Any = self._connection._sock
        self._primary = primary_of(self._pool)
        self._replies = Reader(replyError=ResponseError)
        self._ended = False

    @property
    def is_open(self) -> bool:
        """Whether it has not ended, and leads to the present primary."""
        return not self._ended and primary_of(self._pool) == self._primary

    def ask(self, command: bytes) -> Any:
        """The reply to a packed `command`, an error as an exception; None if it was done, or it was not."""
        whole = False
        try:
            self._socket.sendall(command)
            while (reply := self._replies.gets()) is False:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    return None
                self._replies.feed(data)
            whole = not isinstance(reply, Exception) and not self._replies.has_data()
            return reply
        except (OSError, HiredisError):
            return None
        finally:
            if not whole:
                self.close()

    def close(self) -> None:
        """End it, and give the connection back; also if it has ended."""
        if not self._ended:
            self._ended = True
            with suppress(OSError):
                self._connection.disconnect()
            self._pool.release(self._connection)
