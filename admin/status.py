"""``streamlease status``: server, leader hosts, spaces and groups in one view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlease.admin.options import AsJson, RedisUrl
from streamlease.admin.output import line, table
from streamlease.admin.running import for_each
from streamlease.admin.watching import Watch, view

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.streams.spaces import Space


def status(watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False) -> int:
    """Server, leader hosts, spaces and groups in one view."""
    return view(redis, _look, _draw, as_json=as_json, watch=watch)


def _draw(seen: dict[str, Any]) -> None:
    server = seen["redis"]
    line(f"{server['name']} {server['version']} at {server['address']}, {server['memory']} of memory used")
    line("")
    table(
        ("LEADER HOST", "PROCESS", "LEADERS"),
        [(host["host"], host["pid"], host["leaders"]) for host in seen["hosts"]],
        "no leader hosts: consumers lead by themselves, or start one with 'streamlease serve'",
    )
    line("")
    table(
        ("SPACE", "STREAMS", "MESSAGES", "TOPICS"),
        [(s["name"], s["streams"], s["messages"], " ".join(s["topics"])) for s in seen["spaces"]],
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
            for group in seen["groups"]
        ],
        "no groups: subscribe, or use 'streamlease group declare SUB'",
    )


async def _look(client: Client) -> dict[str, Any]:
    from streamlease.admin.group_view import describe, total_lag
    from streamlease.admin.server_facts import server_facts
    from streamlease.admin.space_definition import definition
    from streamlease.admin.space_view import streams_and_groups
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
