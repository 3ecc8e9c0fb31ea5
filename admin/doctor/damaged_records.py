"""What ``streamlease doctor`` says of the records in Redis: which of them cannot be read, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.admin.doctor.findings import Finding, Level, some
from streamlease.admin.running import for_each

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.streams.spaces.known import Known


async def records(client: Client) -> Finding:
    """All records of spaces and groups, claims, and what processes made; and spaces that overlap.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    from streamlease.admin.facts.epochs import SpaceEpochs
    from streamlease.admin.facts.groups import summaries
    from streamlease.catalog.listing import unreadable_items
    from streamlease.leader.journal import recover
    from streamlease.registry import keys, leadership
    from streamlease.streams.archive.recording import read_recorded
    from streamlease.streams.collections.snapshots import look_at_snapshots
    from streamlease.streams.log.log import AsyncLog
    from streamlease.streams.redis.damaged import attempt

    known, groups = await client.spaces.look(), await client.groups.look()
    found = [f"space {one.name}: {one.why}" for one in known.damaged.values()]
    found += [f"an entry {name} of key {keys.GROUPS}: {why}" for name, why in groups.damaged.items()]

    async def whole(shared: SharedSubscription) -> str:
        declaration, why = await attempt(client.groups.get(shared))
        if declaration is not None:
            _, why = await attempt(recover(client.redis, shared.id))
        return f"group {shared}: {why}" if why else ""

    told = [text for text in await for_each(groups.groups, whole) if text]
    _, damaged = await summaries(client, groups.groups)
    told += [f"group {one.name}: {one.why}" for one in damaged if not any(one.name in text for text in told)]
    for space in known.listed:
        _, why = await attempt(AsyncLog(client.redis).states(space.streams()))
        if why:
            told.append(why)
        elif space.archive is not None:
            _, why = await attempt(read_recorded(client.redis, space.streams()))
            told += [f"archive of space {space.name}: {why}"] if why else []
        if space.collection:
            _, snapshots = await look_at_snapshots(client.redis, space.streams())
            told += map(str, snapshots.values())
        _, why = await attempt(SpaceEpochs.read(client.redis, space)) if space.epochs else (None, "")
        if why:
            told.append(f"epochs of space {space.name}: {why}")
    claims = [*keys.CHORES, *(f"{keys.KEEPER}{space.name}" for space in known.listed if space.epochs)]
    led = await leadership.read_all(client.redis, claims)
    told += [f"claim {claim}: {record.damage}" for claim, record in led.items() if record.damage]
    found += [*told, *await unreadable_items(client.redis)]
    if found:
        return Finding(
            "records",
            Level.FAIL,
            f"{len(found)} cannot be read: {some(found, '; ')}",
            "restore them from a backup, or delete what they belong to ('streamlease space delete', "
            "'streamlease group delete --force'); an item of the catalog goes with what made it; "
            "the rest is not touched by it",
        )
    if overlapping := _overlapping(known):
        return Finding(
            "records",
            Level.FAIL,
            f"spaces share topics, so that it is open where messages go: {some(overlapping, '; ')}",
            "delete one of the two",
        )
    return Finding("records", Level.OK, "all spaces and groups can be read")


def _overlapping(known: Known) -> list[str]:
    """Spaces that share topics: one was created while the definition of the other could not be read."""
    return [
        f"{one.name} and {other.name}"
        for one in known.listed
        for other in {space.name: space for filter in one.topics for space in known.matching(filter)}.values()
        if one.name < other.name
    ]
