"""The server, and the leader hosts that are alive."""

from __future__ import annotations

from streamlease.admin.doctor.server_facts import server_facts
from streamlease.admin.facts.rows import Count, FactRow
from streamlease.registry import hosts
from streamlease.streams.redis.connection import AsyncRedis


class Server(FactRow):
    address: str
    name: str
    version: str
    memory: str


class Host(FactRow):
    host: str
    name: str
    pid: Count
    leaders: Count
    drained: bool


async def server(redis: AsyncRedis) -> Server:
    """What the server says of itself.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    facts = await server_facts(redis)
    memory = facts.get("used_memory_human", "unknown")
    return Server(address=facts.address, name=facts.name, version=facts.version, memory=memory)


async def alive(redis: AsyncRedis) -> list[Host]:
    """The leader hosts that are alive.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    return [Host(**host.model_dump(include={*Host.model_fields})) for host in await hosts.alive(redis)]
