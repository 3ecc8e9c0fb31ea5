"""How other systems, and places outside of Redis, know what is in this Redis."""

from __future__ import annotations

from streamlease.protocol.ids import random_token
from streamlease.streams.log.keys import installation_id
from streamlease.streams.redis.connection import Redis, ask


async def installation(redis: Redis) -> str:
    """A name for all that is in this Redis, for marks on what leaves it.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    key = installation_id()
    (name,) = await ask(redis, [("GET", key)])
    if name is not None:  # which also a Redis that is full says
        return str(name.decode())
    _, name = await ask(redis, [("SET", key, random_token(), "NX"), ("GET", key)])
    return str(name.decode())
