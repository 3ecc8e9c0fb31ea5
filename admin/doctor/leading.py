"""Who leads: hosts that lead nothing, clients that lead although there are hosts, terms that leapt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.admin.doctor.findings import Finding, Level, some
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.admin.doctor.server_facts import ServerFacts
    from streamlease.agent.client import Client

NEW_SECONDS = 30.0
"""A host that is there for less leads nothing yet."""


async def hosts_alive(client: Client) -> Finding:
    """The leader hosts, and whether they share the groups.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    from streamlease.registry import hosts, leadership
    from streamlease.streams.log.times import server_time

    alive = await hosts.alive(client.redis)
    if not alive:
        return Finding(
            "leader hosts",
            Level.OK,
            "none: consumers lead by themselves, which pauses a group when the leading one ends, and nobody "
            "tells Prometheus of groups; 'streamlease serve' runs one",
        )
    if all(host.drained for host in alive):
        who = "the only one is" if len(alive) == 1 else f"all {len(alive)} are"
        return Finding(
            "leader hosts",
            Level.WARN,
            f"{who} drained: the last one leads all the same, with nobody to take over",
            "start another one, or 'streamlease group drain --host HOST --undo'",
        )
    names = {host.host for host in alive}
    groups = {group.id: str(group) for group in await client.groups.list()}
    records = await leadership.read_all(client.redis, [*groups])
    of_clients = [
        f"{groups[group]} ({record.host})"
        for group, record in records.items()
        if record.held and not record.expired and hosts.is_client(record.host) and record.host not in names
    ]
    if of_clients:
        return Finding(
            "leader hosts",
            Level.WARN,
            f"{counted(len(alive), 'is', 'are')} alive, but clients lead "
            f"{counted(len(of_clients), 'group')}: {some(of_clients)}",
            "hosts take them over within seconds; if this stays, see the hosts' logs, and "
            "'streamlease group step-down SUB'",
        )
    now = await server_time(client.redis) / 1_000_000
    most = max(host.leaders for host in alive)
    idle = [
        host.host
        for host in alive
        if not host.leaders and not host.drained and host.since and now - host.since / 1000 > NEW_SECONDS
    ]
    if idle and most > 1:
        return Finding(
            "leader hosts",
            Level.WARN,
            f"{len(idle)} of {len(alive)} {'leads' if len(idle) == 1 else 'lead'} nothing, while another one "
            f"leads {counted(most, 'group')}: {some(idle)}",
            "hosts share groups evenly within seconds: see their logs, and whether all have one version",
        )
    leaders = sum(host.leaders for host in alive)
    return Finding(
        "leader hosts",
        Level.OK,
        f"{len(alive)} alive with {counted(leaders, 'leader')}: {some(host.host for host in alive)}",
    )


async def terms(client: Client, facts: ServerFacts) -> Finding:
    """Whether terms leapt: then Redis went on with other data than it had acknowledged, or might have.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    from streamlease.protocol.ids import LEAST_LEAP
    from streamlease.registry import leadership

    groups = {group.id: str(group) for group in await client.groups.list()}
    records = await leadership.read_all(client.redis, [*groups])
    leapt = [groups[group] for group, record in records.items() if record.term >= LEAST_LEAP]
    if not leapt:
        return Finding("terms", Level.OK, "none leapt: Redis never went on with data that may lack something")
    those = "that of 1 group" if len(leapt) == 1 else f"those of {len(leapt)} groups"
    message = f"{those} leapt, as Redis was restarted or replaced: {some(leapt)}"
    if facts.get("aof_enabled") == "1":
        return Finding("terms", Level.OK, f"{message}; it keeps an append-only file")
    return Finding(
        "terms",
        Level.WARN,
        f"{message}; without an append-only file what was acknowledged since the last snapshot is lost",
        "run CONFIG SET appendonly yes; producers and groups went on, and terms stay high",
    )
