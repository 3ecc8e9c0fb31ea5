"""Compaction: one of the leader hosts merges the small entries of the spaces that want it.

::

    claim --> which logs have many small entries --> merge, a run of each in turn --> until none has more

A claim saves work and protects nothing: `streams/log/compacting.py` says what does. So a host that lost it
may finish what it is about.

Merging takes 5 to 10 us of a processor for each message, in a thread. After each run the host rests for as
long as the run took, and a round ends after some seconds, so its leaders are never short of time. A log that
was read and has no run yet is not read again before it has got so many more messages as were missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from streamlease.hosts.claim import Claim
from streamlease.leader.metrics import COMPACTED_ENTRIES, COMPACTED_MESSAGES
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.seldom import Seldom
from streamlease.registry import keys
from streamlease.streams.log.compacting import Compacted, compact, small_entries
from streamlease.streams.log.merging import NotMerged
from streamlease.streams.log.times import server_time
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.damaged import readable
from streamlease.streams.spaces.spaces import Space, SpaceStore

log = logging.getLogger(__name__)

CLAIM = keys.COMPACTION
"""The name under which the claim stands."""

INTERVAL_SECONDS = 5.0
PAGE = 250
"""Streams that are looked at in one exchange."""

NEVER = 2**62


class Compactor:
    """Compaction of one leader host.

    Args:
        clock: this process' own clock in milliseconds.
        rest: waits for so many seconds.
        spaces: those of the whole host, if it hears of each definition that changes; None: its own, which it
            reads in each round.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        host: str,
        clock: Callable[[], int],
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
        spaces: SpaceStore | None = None,
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._rest = rest
        self._look = SpaceStore(redis).look if spaces is None else spaces.recent
        self._claim = Claim(redis, CLAIM, host, clock, INTERVAL_SECONDS)
        self._seldom = Seldom(log)
        self._awaited: dict[StreamId, int] = {}
        """Where the log of a stream must end before it has another run."""
        self._told: dict[StreamId, bytes] = {}
        """Streams at whose next entry it stopped, and that entry."""

    async def round(self) -> list[Compacted]:
        """Merge what there is to be merged, for `INTERVAL_SECONDS` at most, if this host has the claim.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        spaces = [one for one in (await self._look()).listed if one.compact_after_ms is not None]
        if not spaces or not await self._claim.get():
            self._awaited.clear()
            return []
        began, now = self._clock(), await server_time(self._redis)
        before = {one.name: now - (one.compact_after_ms or 0) * 1000 for one in spaces}
        waiting = deque(await self._with_runs(spaces))
        done: list[Compacted] = []
        while waiting and self._clock() - began < INTERVAL_SECONDS * 1000:
            stream = waiting.popleft()
            at = self._clock()
            one = await self._compact(stream, before[stream.space])
            if one is not None:
                done.append(one)
                waiting.append(stream)
            await self._rest((self._clock() - at) / 1000)
        return done

    async def close(self) -> None:
        """Let another host have the claim at once.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: it expires by itself.
        """
        await self._claim.give_up()

    async def _with_runs(self, spaces: Sequence[Space]) -> list[StreamId]:
        """The streams that may have a run."""
        streams = [stream for space in spaces for stream in space.streams()]
        found: dict[StreamId, int] = {}
        for begin in range(0, len(streams), PAGE):
            page = streams[begin : begin + PAGE]
            small, damaged = await readable(page, lambda asked: small_entries(self._redis, asked))
            found |= small
            for stream, why in damaged.items():
                self._seldom.warning("compaction of %s: %s", stream, why, extra={"stream": str(stream)})
        self._awaited = {stream: end for stream, end in self._awaited.items() if stream in found}
        return [stream for stream, end in found.items() if end >= self._awaited.get(stream, 0)]

    async def _compact(self, stream: StreamId, before: int) -> Compacted | None:
        """Merge one run of a stream; None if it has none now."""
        try:
            done = await compact(self._redis, stream, before)
        except NotMerged as error:
            log.error("compaction: %s; they stay as they are", error, extra={"stream": str(stream)})
            self._awaited[stream] = NEVER
            return None
        except StreamleaseError as error:
            log.warning("compaction of %s: %s", stream, error, extra={"stream": str(stream)})
            return None
        if isinstance(done, Compacted):
            COMPACTED_ENTRIES.inc(done.entries)
            COMPACTED_MESSAGES.inc(done.messages)
            return done
        self._awaited[stream] = done.end
        if done.unreadable and self._told.get(stream) != done.unreadable:
            self._told[stream] = done.unreadable
            log.error(
                "compaction of %s stopped at entry %s, whose id says no offsets; see 'streamlease doctor'",
                stream, done.unreadable.decode("ascii", "backslashreplace"), extra={"stream": str(stream)},
            )  # fmt: skip
        return None
