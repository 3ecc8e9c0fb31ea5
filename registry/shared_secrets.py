"""Secrets that all processes of one kind share, such as the key with which gateways sign cursors.

A secret is made by whoever needs it first, once (``SET NX``), and stands in Redis beside the data that it
is about: who can read that data may know it. It lasts as long as the data: after a FLUSHALL, or on another
Redis, there is another one.
"""

from __future__ import annotations

import secrets

from streamlease.protocol.ids import check_name
from streamlease.registry.keys import shared_secret
from streamlease.streams.redis.connection import Redis, ask

SECRET_BYTES = 32


async def secret_of(redis: Redis, name: str) -> bytes:
    """The secret of that name.

    Raises:
        InvalidInput: it is no name.
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    key = shared_secret(check_name("a shared secret", name))
    found: bytes | None
    (found,) = await ask(redis, [("GET", key)])
    if found is None:  # a Redis without memory gives what it has, and takes nothing
        _, found = await ask(redis, [("SET", key, secrets.token_bytes(SECRET_BYTES), "NX"), ("GET", key)])
    assert found is not None
    return found
