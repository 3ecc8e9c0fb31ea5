"""The server, and the leader hosts that are alive."""

from __future__ import annotations

from streamlease.admin.doctor.server_facts import server_facts
from streamlease.admin.facts.rows import Count, FactRow
from streamlease.catalog.listing import items_of
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
    """The leader hosts that are alive, as the catalog has them.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    found = [Host(**one.model_dump()) for one in await items_of(redis, "hosts")]
    return sorted(found, key=lambda one: one.host)
