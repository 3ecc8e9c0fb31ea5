"""How much of the memory that it may use Redis uses."""

from __future__ import annotations

from redis.exceptions import ResponseError

from streamlease.streams.redis.connection import Redis, exchange, servers


async def memory_use(client: Redis) -> float:
    """What part of its ``maxmemory`` the fullest server uses, or of the machine's memory, if it has no limit.

    0.0 if a server says neither.

    Raises:
        StoreUnavailable, Indefinite: it does not answer.
    """
    return max([_part(await exchange(server, [("INFO", "memory")])) for server in await servers(client)])


def _part(replies: list[object]) -> float:
    (reply,) = replies
    if isinstance(reply, ResponseError):
        return 0.0  # some stand-ins for Redis have no INFO
    assert isinstance(reply, bytes)
    facts = dict(line.partition(b":")[::2] for line in reply.splitlines())

    def number(name: bytes) -> int:
        return int(facts.get(name, b"0") or 0)

    most = number(b"maxmemory") or number(b"total_system_memory")
    return number(b"used_memory") / most if most else 0.0
