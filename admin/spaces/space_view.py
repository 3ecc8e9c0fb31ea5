"""A space as operators see it: what each stream holds, and who keeps how much of it from being removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlease.admin.output import iso_microseconds, line, table
from streamlease.admin.spaces import retention_options, schema_option
from streamlease.admin.spaces.space_definition import definition
from streamlease.hosts.trimming import expiry_of
from streamlease.registry.progress import GroupProgress, Hold, Holds, needs
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.spaces.retention import Kept, Retention, kept

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.ids import StreamId
    from streamlease.streams.log.ranges import LogState
    from streamlease.streams.spaces.spaces import Space


async def look(client: Client, name: str) -> dict[str, Any]:
    """The document of ``streamlease space show --json``.

    Raises:
        UnknownSpace: there is no such space; the message names the nearest ones.
    """
    space = await client.spaces.get(name)
    streams, groups = await streams_and_groups(client, space)
    return {**definition(space), "streams": streams, "groups": groups}


def draw(seen: dict[str, Any]) -> None:
    """The same for people."""
    line(
        f"space {seen['name']}: topics {' '.join(seen['topics'])}, sharded by {seen['shard_by']}, "
        f"durability {seen['durability']}"
    )
    line(retention_options.sentence(Retention(**seen["retention"])))
    if seen["schema"] is not None:
        schema_option.show(seen["schema"])
    columns = ["STREAM", "NEXT", "OLDEST", "BYTES", "STATE", "LAST APPEND", "HELD BY", "FROM", "SINCE"]
    streams, groups = seen["streams"], seen["groups"]
    if len(seen["generations"]) > 1 or seen["ended"]:
        for one in seen["generations"]:
            line(
                f"generation {one['number']}: {one['streams']} streams, "
                f"{'sealed' if one['sealed'] else 'open'}"
            )
        columns.append("FINISHED BY")
    rows = []
    for row in streams:
        by = row["finished_by"]
        finished = None if by is None else f"{len(by)} of {len(groups)}"
        rows.append([*{**row, "finished_by": finished}.values()][: len(columns)])
    table(columns, rows, "")
    if groups:
        table(
            ("GROUP", "BEHIND", "IDLE SECONDS", "EXPIRES AFTER", "EXPIRED"),
            [[*group.values()] for group in groups],
            "",
        )


async def streams_and_groups(
    client: Client, space: Space
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is known about each stream of a space, and about each group that consumes it.

    All of a stream is null if Redis has lost it. `held_by` says who needs its oldest messages; `held_since`,
    since when that keeps messages from being removed that retention would remove, null if there are none;
    `finished_by`, which groups consumed it to its end, null if it is not sealed.
    """
    streams = space.streams()
    states = await AsyncLog(client.redis).states(streams)
    sizes = await kept(client.redis, streams)
    groups = await needs(client.redis, client.groups, [space])
    holds = Holds({stream: state.next for stream, state in states.items()}, groups)
    rows = [_stream(space, stream, states.get(stream), sizes.get(stream), holds) for stream in streams]
    return rows, [_group(group, space, holds) for group in groups]


def _stream(
    space: Space, stream: StreamId, state: LogState | None, size: Kept | None, holds: Holds
) -> dict[str, Any]:
    hold = holds.of(stream) if state is not None else Hold(0)
    by = None if hold.group is None or space.retention.force else hold.holder
    since = size.held_since if size is not None and by is not None and size.held_by == by else None
    return {
        "stream": str(stream),
        "next": state.next if state else None,
        "oldest": state.floor if state else None,
        "bytes": size.bytes if size else None,
        "state": None if state is None else _word(state),
        "last_append": iso_microseconds(state.last_append) if state and state.last_append else None,
        "held_by": by,
        "held_from": hold.limit if by is not None else None,
        "held_since": iso_microseconds(since) if since is not None else None,
        "finished_by": _finished_by(stream, state, holds) if state is not None and state.sealed else None,
    }


def _finished_by(stream: StreamId, state: LogState, holds: Holds) -> list[str]:
    """The groups that consumed a sealed stream to its end."""
    return [
        str(group.subscription)
        for group in holds.groups
        if (need := group.needs.get(stream)) is not None and need >= state.next
    ]


def _word(state: LogState) -> str:
    return "sealed" if state.sealed else "pending" if state.pending else "open"


def _group(group: GroupProgress, space: Space, holds: Holds) -> dict[str, Any]:
    expiry = expiry_of(group, [space])
    return {
        "subscription": str(group.subscription),
        "behind": sum(max(0, holds.ends.get(s, 0) - need) for s, need in group.needs.items()),
        "idle_seconds": round(group.idle_ms / 1000, 3),
        "expires_after_seconds": expiry / 1000 if expiry else None,
        "expired_at": None if group.expired_at is None else iso_microseconds(group.expired_at * 1000),
    }
