"""``streamlease status``: server, leader hosts, spaces and groups in one view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlease.admin.options import AsJson, RedisUrl
from streamlease.admin.output import line, printable, table
from streamlease.admin.running import for_each
from streamlease.admin.watching import Watch, view

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.streams.spaces.spaces import Space


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
    for one in seen.get("damaged", ()):
        line(f"{one['what']} {printable(one['name'])} cannot be read: {printable(one['why'])}")


async def _look(client: Client) -> dict[str, Any]:
    from streamlease.admin.doctor.server_facts import server_facts
    from streamlease.admin.groups.group_view import describe, total_lag
    from streamlease.admin.spaces.space_definition import definition
    from streamlease.registry import hosts
    from streamlease.streams.redis.damaged import attempt
    from streamlease.streams.spaces.retention import kept

    damaged: list[dict[str, str]] = []

    async def space(one: Space) -> dict[str, Any]:
        held = await kept(client.redis, one.streams())
        return {**definition(one), "messages": sum(max(0, size.next - size.floor) for size in held.values())}

    async def group(shared: SharedSubscription) -> dict[str, Any] | None:
        seen, why = await attempt(describe(client, shared))
        if seen is None:
            damaged.append({"what": "group", "name": str(shared), "why": why})
            return None
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
    known, all_groups = await client.spaces.look(), await client.groups.look()
    damaged += [{"what": "space", "name": one.name, "why": one.why} for one in known.damaged.values()]
    damaged += [{"what": "group", "name": name, "why": why} for name, why in all_groups.damaged.items()]
    groups = await for_each(all_groups.groups, group)
    return {
        "redis": {
            "address": facts.address,
            "name": facts.name,
            "version": facts.version,
            "memory": facts.get("used_memory_human", "unknown"),
        },
        "hosts": [host.model_dump() for host in await hosts.alive(client.redis)],
        "spaces": await for_each(known.listed, space),
        "groups": [one for one in groups if one is not None],
    } | ({"damaged": damaged} if damaged else {})
