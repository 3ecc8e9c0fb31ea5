"""What stands beside the journal already, at the beginning of a term: only the rest is written.

Mostly all of it stands there, and of 10,000 streams it is quicker to ask than to send them and to have them
compared by a script. The newest entry of the journal is asked for first, in the same write: if the journal of
whoever answers ends where the leader knows, so do the leases beside it, for both are written in one act.
From then on nobody but this leader writes leases, and commits only raise the progress. If it ends elsewhere,
all is sent, and the script decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlease.leader.core.parts.mirror import Beside, MirrorChange
from streamlease.registry import keys
from streamlease.streams.redis.connection import AsyncRedis, Command, ask

MOST = 10_000
"""Streams in one command: the server does nothing else meanwhile."""


async def lacking(
    redis: AsyncRedis, group: str, last_id: bytes, moved: MirrorChange
) -> tuple[MirrorChange, dict[str, int]]:
    """What of the change of a whole group is still to be written.

    Args:
        last_id: the entry with which the journal is to end.

    Returns:
        that, and of which of the other streams more is committed than the leader knows.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    want = moved.asked
    if not want:
        return moved, {}
    commands: list[Command] = [("XREVRANGE", keys.journal(group), "+", "-", "COUNT", 1)]
    for first in range(0, len(want), MOST):
        some = want.names[first : first + MOST]
        commands.append(("HMGET", keys.progress(group), *some))
        commands.append(("HMGET", keys.leases(group), *some))
    newest, *replies = await ask(redis, commands)
    if (newest[0][0] if newest else b"0-0") != last_id:
        return moved, {}
    progress = [one for reply in replies[::2] for one in reply]
    leases = [one for reply in replies[1::2] for one in reply]
    missing: list[int] = []
    further: dict[str, int] = {}
    rows = zip(want.committed, want.leases, progress, leases, strict=True)
    for place, (committed, lease, there, granted) in enumerate(rows):
        if granted is None or granted != lease.encode():
            missing.append(place)
        elif there != b"%d" % committed:
            if there is not None and there.isdigit() and int(there) > committed:
                further[want.names[place]] = int(there)
            else:
                missing.append(place)
    return MirrorChange(moved.gone, moved.fields, asked=_some(want, missing)), further


def _some(streams: Beside, places: Sequence[int]) -> Beside:
    names, committed, leases = streams.names, streams.committed, streams.leases
    return Beside([names[i] for i in places], [committed[i] for i in places], [leases[i] for i in places])


def arguments(moved: MirrorChange) -> list[str | int]:
    """As `leader/lua/journal_append.lua` takes it."""
    found: list[str | int] = [len(moved.gone), *moved.gone, len(moved.fields)]
    for name, value in moved.fields.items():
        found += (name, value)
    found.append(len(moved.asked))
    for part in (moved.asked, moved.others):
        for one in zip(part.names, part.committed, part.leases, strict=True):
            found += one
    return found
