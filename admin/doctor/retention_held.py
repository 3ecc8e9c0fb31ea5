"""Groups that keep retention from removing anything: who, how much, and whether anybody consumes them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from streamlease.admin.doctor.findings import Finding, Level, some
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.errors import StreamleaseError
    from streamlease.protocol.ids import StreamId
    from streamlease.registry.group_needs import GroupProgress


async def retention(client: Client, stuck_after: float) -> Finding:
    """Which groups hold messages of spaces with limits, those first that nobody consumes.

    Raises:
        StoreUnavailable, StoreRefused, Unsupported.
    """
    from streamlease.registry.group_needs import Holds, needs
    from streamlease.streams.log.log import AsyncLog

    spaces = (await client.spaces.look()).listed
    limited = [space for space in spaces if space.retention.limited and not space.retention.force]
    if not limited:
        return Finding("retention", Level.OK, "no space has a limit for which groups could be waited")
    streams = [stream for space in limited for stream in space.streams()]
    damaged: dict[StreamId, StreamleaseError] = {}
    ends = await AsyncLog(client.redis).next_offsets(streams, damaged)  # before the groups, see `Holds`
    holds = Holds(ends, await needs(client.redis, client.groups, limited))
    held: Counter[str] = Counter()
    holders: dict[str, GroupProgress] = {}
    for stream, next in ends.items():
        hold = holds.of(stream)
        if hold.group is not None:
            held[hold.holder] += next - hold.limit
            holders[hold.holder] = hold.group
    if not held:
        return Finding(
            "retention",
            Level.OK,
            f"no group keeps anything in the {counted(len(limited), 'space')} with limits",
        )
    idle = [name for name, _ in held.most_common() if holders[name].idle_ms > stuck_after * 1000]
    if idle:
        said = [
            f"{name} ({counted(held[name], 'message')}, idle for {holders[name].idle_ms // 1000} s)"
            for name in idle
        ]
        return Finding(
            "retention",
            Level.WARN,
            f"{counted(len(idle), 'group')} that nobody consumes "
            f"{'keeps' if len(idle) == 1 else 'keep'} messages beyond the limits of the spaces: "
            f"{some(said, '; ')}",
            "consume them, or 'streamlease group expire SUB' or 'delete SUB' lets their messages go",
        )
    said = [f"{name} ({counted(count, 'message')})" for name, count in held.most_common()]
    return Finding(
        "retention",
        Level.OK,
        f"waits for {counted(len(said), 'group')} with consumers: {some(said, '; ')}",
    )
