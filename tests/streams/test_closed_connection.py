"""A connection that was closed while nobody looked, also on the event loop of a gateway."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from redis.asyncio import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from streamlease.streams.redis.wire import _send


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_is_sent_on_it_fails_as_a_connection_does(run: object, real_redis_url: str) -> None:
    """uvloop raises a RuntimeError, asyncio of Python 3.12 an AttributeError; that of 3.11 lets one write."""
    port = int(real_redis_url.rpartition(":")[2].partition("/")[0])

    async def closed() -> None:
        connection = Connection(host="127.0.0.1", port=port)
        await connection.connect()
        connection._writer.transport.abort()
        await asyncio.sleep(0)
        with pytest.raises(RedisConnectionError):
            await _send(connection, [b"*1\r\n$4\r\nPING\r\n"])
        assert not connection.is_connected
        await connection.disconnect(nowait=True)

    run(closed())  # type: ignore[operator]
