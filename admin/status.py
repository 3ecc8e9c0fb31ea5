"""``streamlease status``: server, leader hosts, spaces and groups in one view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlease.admin.options import AsJson, RedisUrl
from streamlease.admin.output import document, line, table
from streamlease.admin.running import for_each, with_client

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.streams.spaces import Space


def status(redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Server, leader hosts, spaces and groups in one view."""
    view = with_client(redis, _look)
    if as_json:
        document(view)
        return
    server = view["redis"]
    line(f"{server['name']} {server['version']} at {server['address']}, {server['memory']} of memory used")
    line("")
    table(
        ("LEADER HOST", "PROCESS", "LEADERS"),
        [(host["host"], host["pid"], host["leaders"]) for host in view["hosts"]],
        "no leader hosts: consumers lead by themselves, or start one with 'streamlease serve'",
    )
    line("")
    table(
        ("SPACE", "STREAMS", "MESSAGES", "TOPICS"),
        [(s["name"], s["streams"], s["messages"], " ".join(s["topics"])) for s in view["spaces"]],
        "no spaces: create one with 'streamlease space create NAME --topics FILTER'",
    )
    line("")
    table(
        ("SUBSCRIPTION", "STATE", "LEADER", "TERM", "BORROWERS", "STREAMS", "LAG"),
        [
            (
                group["subscription"],
                group["state"],
                (group["leader"] or {}).get("host"),
                group["term"],
                group["borrowers"],
                group["streams"],
                group["lag"],
            )
            for group in view["groups"]
        ],
        "no groups: subscribe, or use 'streamlease group declare SUB'",
    )


async def _look(client: Client) -> dict[str, Any]:
    from streamlease.admin.group_view import describe, total_lag
    from streamlease.admin.server_facts import server_facts
    from streamlease.admin.space_view import streams_and_groups
    from streamlease.admin.spaces import definition
    from streamlease.registry import hosts

    async def space(one: Space) -> dict[str, Any]:
        streams, _ = await streams_and_groups(client, one)
        messages = sum(s["next"] - s["oldest"] for s in streams if s["next"] is not None)
        return {**definition(one), "messages": messages}

    async def group(shared: SharedSubscription) -> dict[str, Any]:
        seen = await describe(client, shared)
        return {
            "subscription": seen["subscription"],
            "state": seen["state"],
            "leader": seen["leader"],
            "term": seen["term"],
            "borrowers": len(seen["borrowers"]),
            "streams": len(seen["streams"]),
            "lag": total_lag(seen),
        }

    facts = await server_facts(client.redis)
    return {
        "redis": {
            "address": facts.address,
            "name": facts.name,
            "version": facts.version,
            "memory": facts.get("used_memory_human", "unknown"),
        },
        "hosts": [host.model_dump() for host in await hosts.alive(client.redis)],
        "spaces": await for_each(await client.spaces.list(), space),
        "groups": await for_each(await client.groups.list(), group),
    }
