"""What a Redis server says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Indefinite
from streamlease.streams.redis.connection import AsyncRedis, address, exchange, refusal, silent


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The fields of INFO, by name."""

    address: str
    fields: dict[str, str]

    def get(self, name: str, default: str = "") -> str:
        """One field."""
        return self.fields.get(name, default)

    @property
    def name(self) -> str:
        """Redis, Valkey or whatever it calls itself."""
        return {"valkey": "Valkey"}.get(self.get("server_name"), self.get("server_name") or "Redis")

    @property
    def version(self) -> str:
        """Its own version, not the one of Redis that it is compatible with."""
        return self.get("valkey_version") or self.get("redis_version") or "unknown"


async def server_facts(redis: AsyncRedis) -> ServerFacts:
    """Ask the server.

    Raises:
        StoreUnavailable: it does not answer.
        StoreRefused: it answers PING with an error, such as a missing login.
    """
    try:
        ping, info = await exchange(redis, [("PING",), ("INFO",)])
    except Indefinite as error:
        raise silent(redis, error) from None
    if isinstance(ping, ResponseError):
        raise refusal(ping)
    fields: dict[str, str] = {}
    if not isinstance(info, ResponseError):
        for text in bytes(info).decode("utf-8", "replace").splitlines():
            name, colon, value = text.partition(":")
            if colon:
                fields[name] = value
    return ServerFacts(address(redis), fields)
