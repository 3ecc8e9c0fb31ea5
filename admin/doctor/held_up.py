"""Streams that are held up: messages wait in them for long, for a reason that somebody can change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from streamlease.admin.doctor.findings import Finding, Level, some
from streamlease.admin.running import for_each
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.admin.facts.group import Group
    from streamlease.agent.client import Client
    from streamlease.protocol.topics import SharedSubscription

SILENT_SECONDS = 5.0
"""A borrower that was not heard of for longer is called silent; they ping more often than that."""


async def held_up(client: Client, stuck_after: float) -> Finding:
    """The streams of all groups with a leader in which a message waits for longer than `stuck_after` seconds.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    from streamlease.admin.facts.group import describe
    from streamlease.admin.facts.groups import summaries
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.streams.redis.damaged import attempt

    async def one(shared: SharedSubscription) -> list[str]:
        seen, _ = await attempt(describe(client, shared))  # a check of its own names what is damaged
        return list(stuck(seen, stuck_after)) if seen is not None else []

    # Leaders are asked only where something waits: to look must not cost the others anything.
    late = [
        SharedSubscription.parse(group.subscription)
        for group in (await summaries(client, await client.groups.list()))[0]
        if group.state == "led" and (group.lag_seconds is None or group.lag_seconds > stuck_after)
    ]
    found = [text for texts in await for_each(late, one) for text in texts]
    if not found:
        return Finding("streams", Level.OK, f"none is held up for more than {stuck_after:g} s")
    return Finding(
        "streams",
        Level.WARN,
        f"{counted(len(found), 'is', 'are')} held up: {some(found, '; ')}",
        "see 'streamlease group describe SUB' and, by symptom, docs/operations.md",
    )


def stuck(group: Group, stuck_after: float) -> Iterator[str]:
    """The streams of a group that are held up: who has them, and why. Pure.

    A stream that its owner simply consumes too slowly is not one of them, unless the owner is silent.
    """
    if group.paused is not None:
        return  # somebody wants it so
    silent = {one.name: one.silent_seconds for one in group.borrowers if one.silent_seconds > SILENT_SECONDS}
    for stream in group.streams:
        waits = stream.lag_seconds
        if not stream.lag or waits is None or waits <= stuck_after:
            continue
        reasons = [stream.why] if stream.why else []
        if stream.owner in silent:
            reasons.append(f"its owner was not heard of for {silent[stream.owner]:.0f} s")
        if reasons:
            holder = f"held by {stream.owner}" if stream.owner else "held by nobody"
            yield f"{stream.stream} of {group.subscription}, {holder}: {'; '.join(reasons)}"
