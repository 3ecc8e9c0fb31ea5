"""Follows the journals of many groups from outside, without a question to any leader.

What an operator's page shows of a group is its durable state, so it is read where that is: the journals
of all groups that are watched, in one round trip for each look, however many groups and streams there are.
No leader does anything for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import Record
from streamlease.leader.core.state.touched import leased_by
from streamlease.leader.journal import read_entry, recover
from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.registry import keys
from streamlease.streams.redis.connection import AsyncRedis, Command, ask, exchange
from streamlease.streams.redis.damaged import why

PAGE = 500
"""Journal entries of one group that are read at one look."""

RECENT = 50
"""Journal entries of a group that is read from the beginning whose records are told as news."""

Entry = tuple[bytes, Sequence[bytes]]

NOTHING_YET = b"0-0"


@dataclass(slots=True)
class Followed:
    """One group as its journal says, up to the entry `last_id`."""

    state: GroupState
    last_id: bytes
    number: tuple[int, int]
    """Term and number of the newest commit that was applied."""


@dataclass(frozen=True, slots=True)
class JournalNews:
    """What one look found in the journal of a group."""

    records: tuple[tuple[int, Record], ...] = ()
    """What was written since the look before, in order, each with its time (ms of the Redis clock). If
    `anew`, the newest of all that there is."""
    streams: frozenset[str] = frozenset()
    """The streams whose progress or lease the records changed."""
    anew: bool = False
    """The state was read from the beginning: at the first look, and where the journal was trimmed."""


@dataclass(slots=True)
class JournalFollower:
    """The groups that are watched. Call `look` again and again."""

    redis: AsyncRedis
    groups: dict[str, Followed] = field(default_factory=dict)

    async def look(
        self, wanted: Sequence[str], damaged: dict[str, str] | None = None
    ) -> Mapping[str, JournalNews]:
        """Bring the groups with the identities `wanted` up to date; forget all others.

        Args:
            damaged: takes the groups whose journals cannot be read, and why; `groups` has them not.

        Returns:
            The news of each group that has any.

        Raises:
            StoreUnavailable, StoreRefused: what was applied stays; look again.
            StreamleaseError: a journal is damaged, and there is nothing to take it.
        """
        for group in self.groups.keys() - set(wanted):
            del self.groups[group]
        news: dict[str, JournalNews] = {}
        known = [group for group in wanted if group in self.groups]
        unknown = [group for group in wanted if group not in self.groups]
        commands: list[Command] = [
            ("XRANGE", keys.journal(group), self.groups[group].last_id, "+", "COUNT", PAGE + 1)
            for group in known
        ]
        replies = await exchange(self.redis, commands) if commands else []
        for group, entries in zip(known, replies, strict=True):
            found = None if isinstance(entries, ResponseError) else _take(group, self.groups[group], entries)
            if found is None:
                unknown.append(group)
            elif found.records:
                news[group] = found
        for group in unknown:
            before = self.groups.pop(group, None)
            try:
                recovery = await recover(self.redis, group)
                recent = await self._recent(group, recovery.last_id)
            except (StoreUnavailable, Indefinite):
                raise
            except StreamleaseError as error:
                if damaged is None:
                    raise
                damaged[group] = why(error)
                continue
            self.groups[group] = Followed(recovery.state, recovery.last_id, recovery.number)
            if before is None or before.last_id != recovery.last_id:
                news[group] = JournalNews(recent, anew=True)
        return news

    async def _recent(self, group: str, last_id: bytes) -> tuple[tuple[int, Record], ...]:
        """The newest records up to `last_id`."""
        (entries,) = await ask(
            self.redis, [("XREVRANGE", keys.journal(group), last_id, "-", "COUNT", RECENT)]
        )
        scratch = Followed(GroupState(), NOTHING_YET, (0, 0))
        return tuple(found for entry in reversed(entries) for found in _new_records(group, scratch, entry))


def _take(group: str, followed: Followed, entries: Sequence[Entry]) -> JournalNews | None:
    """Apply the entries behind the newest one known; None if that is not there any more."""
    if followed.last_id != NOTHING_YET:
        if not entries or entries[0][0] != followed.last_id:
            return None
        entries = entries[1:]
    records: list[tuple[int, Record]] = []
    streams: set[str] = set()
    try:
        for entry in entries:
            for time, record in _new_records(group, followed, entry):
                streams.update(followed.state.apply(record), leased_by(record))
                records.append((time, record))
    except (StreamleaseError, LookupError):  # a record may be of a stream that is not there
        return None  # what is wrong with it, `recover` says
    return JournalNews(tuple(records), frozenset(streams))


def _new_records(group: str, followed: Followed, entry: Entry) -> list[tuple[int, Record]]:
    """The records of an entry with its time; none if it repeats a commit that was taken already."""
    followed.last_id = id = entry[0]
    number, records = read_entry(group, entry, followed.number)
    if number <= followed.number:
        return []
    followed.number = number
    time = int(id.partition(b"-")[0])
    return [(time, record) for record in records]
