"""Groups that fall back: nobody consumes them any more, or those who do are too slow.

Doctor looks twice, before its other checks and after them: what grew in between grows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamlease.admin.doctor.findings import Finding, Level, some
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.hosts.signals.group_signals import GroupSignals

LEAST_SECONDS = 1.0
"""Between the two looks."""


@dataclass(frozen=True, slots=True)
class Look:
    """All declared groups, by name, at one moment of this process' own clock."""

    at: float
    groups: Mapping[str, GroupSignals]


async def look(client: Client) -> Look:
    """How all declared groups stand.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite, Unsupported.
    """
    from streamlease.hosts.signals.group_signals import read_signals

    seen = await read_signals(client.redis, client.groups, client.spaces)
    return Look(time.monotonic(), {one.subscription: one for one in seen})


async def fleets(client: Client, before: Look, stuck_after: float) -> list[Finding]:
    """Dead fleets, and lag that has grown since `before`.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite, Unsupported.
    """
    await asyncio.sleep(max(0.0, before.at + LEAST_SECONDS - time.monotonic()))
    after = await look(client)
    return [dead(after, stuck_after), growing(before, after, stuck_after)]


def dead(seen: Look, stuck_after: float) -> Finding:
    """Groups in which messages wait, and that nobody consumes. Pure."""
    found = [
        f"{one.subscription} ({_waits(one)})"
        for one in seen.groups.values()
        if one.state in ("led", "no_leader")
        and one.borrowers == 0
        and (one.lag or (one.lag is None and one.lag_seconds))
        and (one.lag_seconds is None or one.lag_seconds > stuck_after)
    ]
    if not found:
        return Finding("fleets", Level.OK, f"no group waits for consumers for more than {stuck_after:g} s")
    return Finding(
        "fleets",
        Level.FAIL,
        f"{counted(len(found), 'group has', 'groups have')} messages and no consumer left: "
        f"{some(found, '; ')}",
        "start their consumers, or 'streamlease group pause', 'expire' or 'delete' what is not wanted now",
    )


def _waits(one: GroupSignals) -> str:
    """How much waits for a group, and for how long. Pure."""
    messages = "an unknown number of messages" if one.lag is None else counted(one.lag, "message")
    age = "it is unknown since when" if one.lag_seconds is None else f"the oldest for {one.lag_seconds:.0f} s"
    return f"{messages}, {age}"


def growing(before: Look, after: Look, stuck_after: float) -> Finding:
    """Groups that are consumed, and fall back all the same. Pure."""
    seconds = max(after.at - before.at, 1e-6)
    found = []
    for name, now in after.groups.items():
        then = before.groups.get(name)
        if then is None or then.lag is None or not now.lag or now.borrowers == 0 or now.state != "led":
            continue
        if now.lag > then.lag and now.lag_seconds is not None and now.lag_seconds > stuck_after:
            rate = (now.lag - then.lag) / seconds
            found.append(f"{name} ({counted(now.lag, 'message')}, {rate:.0f} more each second)")
    if not found:
        return Finding("lag", Level.OK, f"none that is above {stuck_after:g} s grows")
    return Finding(
        "lag",
        Level.WARN,
        f"{counted(len(found), 'group is', 'groups are')} behind, and fall back further: {some(found, '; ')}",
        "add consumers, or see 'streamlease group describe SUB' for one that commits nothing",
    )
