"""Looks whether the leaders of groups live: at the pulses of their hosts, and at few records.

A look at leaders that live is one exchange.

Most leaderships are kept by a pulse of their host (`registry/pulses.py`). Records are read where no pulse
keeps them; of the others some in turn, and all when a pulse has stopped, for the dead host may lead groups of
which this process has not heard. Since when there was no pulse, it has seen all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from streamlease.protocol.errors import StreamleaseError
from streamlease.registry import keys, leadership, pulses
from streamlease.registry.leadership import LeaderRecord, LeaderWatch
from streamlease.registry.pulses import Pulse
from streamlease.streams.redis.connection import AsyncRedis, ask_each

IN_TURN = 4
"""So many records are read at each look though a pulse keeps them, or nobody leads. A host has two looks a
second."""

PAGE = 250
"""Groups in one exchange."""


class Lookout:
    """What one process has seen of pulses.

    Args:
        ttl: of leaderships, in milliseconds.
        clock: this process' own, in milliseconds; it must not run backwards.
    """

    def __init__(self, redis: AsyncRedis, ttl: int, clock: Callable[[], int]) -> None:
        self._redis = redis
        self._ttl = ttl
        self._clock = clock
        self._pulses: dict[Pulse, tuple[int, int]] = {}
        """When each pulse was, by the clock of Redis, and since when it was seen so, by this process' own."""
        self._stopped: set[Pulse] = set()
        """Pulses that have stopped, after which all records were read."""

    async def look(self, watches: Mapping[str, LeaderWatch], turn: int) -> dict[str, str]:
        """Look at the leaders of these groups, which are of one server if there are many looks at a time.

        Args:
            watches: group -> what was seen of its record.
            turn: the number of this look at them.

        Returns:
            group -> its host, for those whose host is dead: an attempt to follow it may succeed.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        if not watches:
            return {}
        tags = {pulse.tag for watch in watches.values() if (pulse := watch.record.pulse) is not None}
        tags.add(pulses.tag_beside(self._redis, keys.leader(next(iter(watches)))))
        in_turn = -(-len(watches) // IN_TURN)
        early = {
            group: None
            for place, (group, watch) in enumerate(watches.items())
            if _is_unknown(watch) or (place + turn) % in_turn == 0
        }
        records, read_at, stopped = await self._hear([*early][:PAGE], tags)
        dead = self._note(watches, records)
        left = [
            group
            for group, watch in watches.items()
            if group not in records and (stopped or group in early or not self._is_quiet(watch, read_at))
        ]
        for begin in range(0, len(left), PAGE):
            more = await leadership.read_all(self._redis, left[begin : begin + PAGE])
            dead |= self._note(watches, more)
        self._stopped |= stopped
        return dead

    async def _hear(
        self, groups: Sequence[str], tags: Set[str]
    ) -> tuple[dict[str, LeaderRecord], int, set[Pulse]]:
        """Note the pulses with these tags.

        Returns:
            the records of `groups`, without those that another pulse keeps; the time of Redis; which pulses
            have stopped since the last look.
        """
        asked = [*map(leadership.record_command, groups), *map(pulses.all_with, tags), ("TIME",)]
        *replies, time = await ask_each(self._redis, asked)
        if isinstance(time, StreamleaseError):
            raise time
        read_at = int(time[0]) * 1000 + int(time[1]) // 1000
        written, beside = replies[: len(groups)], replies[len(groups) :]
        given: dict[Pulse, int] = {}
        for tag, reply in zip(tags, beside, strict=True):
            given |= pulses.times_of(tag, reply)
        stopped = self._note_pulses(given, tags)
        records: dict[str, LeaderRecord] = {}
        for group, reply in zip(groups, written, strict=True):
            record = leadership.parse_record(group, reply, read_at)
            if record.pulse is None or record.pulse.tag in tags:
                records[group] = record.kept_by(given)
        return records, read_at, stopped

    def _note_pulses(self, given: Mapping[Pulse, int], tags: Set[str]) -> set[Pulse]:
        """Those that have stopped since the last look."""
        now = self._clock()
        for pulse in [pulse for pulse in self._pulses if pulse.tag in tags and pulse not in given]:
            del self._pulses[pulse]
        for pulse, at in given.items():
            if self._pulses.get(pulse, (None, 0))[0] != at:
                self._pulses[pulse] = at, now
        still = {
            pulse
            for pulse, (_, since) in self._pulses.items()
            if pulse.tag in tags and now - since >= self._ttl
        }
        self._stopped = {pulse for pulse in self._stopped if pulse.tag not in tags or pulse in still}
        return still - self._stopped

    def _is_quiet(self, watch: LeaderWatch, read_at: int) -> bool:
        """Whether the record need not be read: nobody leads, or a pulse shows that the leader lives."""
        record = watch.record
        if _is_unknown(watch):
            return False
        if not record.held:
            return True
        if record.pulse is None or record.pulse not in self._pulses:
            return False
        at, since = self._pulses[record.pulse]
        return not watch.observe(replace(record, renewed_at=at, read_at=read_at), self._clock(), since)

    def _note(
        self, watches: Mapping[str, LeaderWatch], records: Mapping[str, LeaderRecord]
    ) -> dict[str, str]:
        """Note what was read; as `look`."""
        dead: dict[str, str] = {}
        for group, record in records.items():
            at, since = self._pulses.get(record.pulse, (None, None)) if record.pulse else (None, None)
            unchanged = since if record.renewed_at == at else None
            if watches[group].observe(record, self._clock(), unchanged) and record.held:
                dead[group] = record.host
        return dead


def _is_unknown(watch: LeaderWatch) -> bool:
    """Whether the record is to be read whatever the pulses say: they do not keep it, as far as is known."""
    record = watch.record
    return watch.since is None or (record.pulse is None if record.held else bool(record.damage))
