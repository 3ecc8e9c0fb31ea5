"""All at once: server, leader hosts, spaces and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from streamlease.admin.facts import hosts, spaces
from streamlease.admin.facts.group import GroupStatus, describe
from streamlease.admin.facts.hosts import Host, Server
from streamlease.admin.facts.rows import DamagedRow, FactRow
from streamlease.admin.facts.spaces import SpaceStatus
from streamlease.admin.running import for_each
from streamlease.streams.redis.damaged import attempt

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription


class DamagedRecord(DamagedRow):
    what: Literal["space", "group"]


class StatusFacts(FactRow):
    redis: Server
    hosts: list[Host]
    spaces: list[SpaceStatus]
    groups: list[GroupStatus]
    damaged: list[DamagedRecord] = Field(default=[])


async def look(client: Client) -> StatusFacts:
    """All that there is.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    damaged: list[DamagedRecord] = []

    async def group(shared: SharedSubscription) -> GroupStatus | None:
        seen, why = await attempt(describe(client, shared))
        if seen is None:
            damaged.append(DamagedRecord(what="group", name=str(shared), why=why))
        return None if seen is None else GroupStatus.of(seen)

    server = await hosts.server(client.redis)
    known, groups = await client.spaces.look(), await client.groups.look()
    damaged += [DamagedRecord(what="space", name=one.name, why=one.why) for one in known.damaged.values()]
    damaged += [DamagedRecord(what="group", name=name, why=why) for name, why in groups.damaged.items()]
    described = await for_each(groups.groups, group)
    return StatusFacts(
        redis=server,
        hosts=await hosts.alive(client.redis),
        spaces=await for_each(known.listed, lambda space: spaces.status(client, space)),
        groups=[one for one in described if one is not None],
        damaged=damaged,
    )
