"""Streams whose small entries are merged no further, although their space wants it (``--compact-after``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamlease.admin.doctor.findings import Finding, Level, Place, some
from streamlease.admin.running import for_each
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.ids import StreamId
    from streamlease.streams.log.compacting import Stopped
    from streamlease.streams.spaces.spaces import Space

PAGE = 250
"""Streams that are looked at in one exchange."""

MOST_STREAMS = 32
"""Streams whose next entries are read and merged on trial, some 50 ms of a processor for each."""

LATE_SECONDS = 60.0
"""How much longer than wanted small entries may wait for a host that is busy."""


async def compaction(client: Client) -> Finding:
    """Whether the compaction of each stream can go on, and whether somebody does it. Writes nothing.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    from streamlease.hosts.compactor import CLAIM
    from streamlease.registry import leadership
    from streamlease.streams.log.compacting import stopped
    from streamlease.streams.log.times import server_time

    known = (await client.spaces.look()).listed
    ages = {one.name: one.compact_after_ms * 1000 for one in known if one.compact_after_ms is not None}
    if not ages:
        return Finding("compaction", Level.OK, "no space wants it")
    now = await server_time(client.redis)
    waiting = await _waiting(client, [one for one in known if one.name in ages])
    looked_at = list(waiting)[:MOST_STREAMS]
    found = await for_each(looked_at, lambda stream: stopped(client.redis, stream, now - ages[stream.space]))
    if places := tuple(_place(one) for one in found if one is not None):
        return Finding(
            "compaction",
            Level.WARN,
            f"{len(places)} of {counted(len(waiting), 'stream')} with small entries "
            f"{'is' if len(places) == 1 else 'are'} merged no further: "
            f"{some((f'{one.stream} from offset {one.offset} on ({one.why})' for one in places), '; ')}",
            some(dict.fromkeys(one.remedy for one in places), "; "),
            places,
        )
    late = [
        str(stream)
        for stream, appended in waiting.items()
        if appended < now - ages[stream.space] - LATE_SECONDS * 1_000_000
    ]
    # Also the process of a consumer that leads does it, where no leader host runs.
    claim = await leadership.read(client.redis, CLAIM)
    if late and (not claim.held or claim.expired):
        return Finding(
            "compaction",
            Level.WARN,
            f"nobody merges the small entries of {counted(len(late), 'stream')}: {some(late)}",
            "run a leader host: streamlease serve; if one runs, its log says why",
        )
    return Finding(
        "compaction",
        Level.OK,
        f"it can go on in each of {counted(len(looked_at), 'stream')} with small entries",
    )


async def _waiting(client: Client, spaces: Iterable[Space]) -> dict[StreamId, int]:
    """The streams of `spaces` with small entries, those that wait longest first, and since when (us)."""
    from streamlease.streams.log.compacting import first_appends, small_entries
    from streamlease.streams.redis.damaged import readable

    streams = [stream for space in spaces for stream in space.streams()]
    found: dict[StreamId, int] = {}
    for begin in range(0, len(streams), PAGE):
        # What is damaged is named by another check.
        small, _ = await readable(
            streams[begin : begin + PAGE], lambda asked: small_entries(client.redis, asked)
        )
        if small:
            found |= await first_appends(client.redis, [*small])
    return dict(sorted(found.items(), key=lambda one: one[1]))


def _place(one: Stopped) -> Place:
    """Where a stream stopped, and what to do there."""
    from streamlease.streams.log.keys import stream_log

    if one.unreadable:
        remedy = f"remove that entry, which nobody can read: XDEL {stream_log(one.stream)} {one.unreadable}"
    else:
        remedy = (
            "its messages are read as ever; give the space new streams, which are merged: "
            f"streamlease space alter {one.stream.space} --rotate"
        )
    return Place(str(one.stream), one.offset, one.why, remedy)
