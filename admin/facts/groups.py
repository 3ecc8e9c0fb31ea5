"""Groups as the registry and the progress beside their journals show them: a row each, many read at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from streamlease.admin.facts.rows import Count, DamagedRow, FactRow, Moment, Seconds, moment, total
from streamlease.protocol.errors import Unsupported
from streamlease.registry import group_needs, leadership
from streamlease.streams.log.times import WaitingMessage, server_time, waiting
from streamlease.streams.redis.damaged import readable

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.ids import StreamId
    from streamlease.protocol.topics import SharedSubscription
    from streamlease.registry.group_needs import GroupProgress
    from streamlease.registry.leadership import LeaderRecord
    from streamlease.streams.spaces.spaces import Known


class LeaderRow(FactRow):
    host: str
    term: Count

    @classmethod
    def of(cls, record: LeaderRecord) -> LeaderRow | None:
        """Who leads; None if nobody does, or has not renewed in time."""
        return None if record.leader is None else cls(host=record.leader, term=record.term)


class GroupSummary(FactRow):
    subscription: str
    state: Literal["led", "paused", "no leader"]
    paused_since: Moment | None
    expired_at: Moment | None
    leader: LeaderRow | None
    term: Count
    streams: Count
    lag: Count | None
    lag_seconds: Seconds | None


class GroupList(FactRow):
    groups: list[GroupSummary]
    damaged: list[DamagedRow] = Field(default=[])
    next: str | None


async def summaries(
    client: Client, groups: Sequence[SharedSubscription]
) -> tuple[list[GroupSummary], list[DamagedRow]]:
    """One row for each of `groups`, and those that cannot be read; deleted ones are left out.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    known = await client.spaces.look()
    found, damaged = await readable(groups, lambda some: _summaries(client, known, some))
    unread = [DamagedRow(name=str(one), why=why) for one, why in damaged.items()]
    return [found[one] for one in groups if one in found], unread


async def _summaries(
    client: Client, known: Known, groups: Sequence[SharedSubscription]
) -> dict[SharedSubscription, GroupSummary]:
    wanted = {
        one: [stream for space in known.matching(one.filter) for stream in space.streams()] for one in groups
    }
    leaders = await leadership.read_all(client.redis, [one.id for one in groups])
    for leader in leaders.values():
        if leader.damage:
            raise Unsupported(leader.damage)
    found = await group_needs.read(client.redis, wanted)
    for one in found:
        if one.damage:
            raise Unsupported(one.damage)
    # After the progress: what is committed was there before.
    seen = await waiting(client.redis, (place for one in found for place in one.needs.items()))
    now = await server_time(client.redis)
    return {
        one.subscription: _summary(one, leaders[one.subscription.id], _behind(one, seen), now)
        for one in found
    }


def _behind(
    one: GroupProgress, seen: Mapping[tuple[StreamId, int], WaitingMessage]
) -> list[tuple[int, int | None] | None]:
    """Of each stream: how many messages wait, and since when; None if it is not known.

    After a failover that lost writes a stream may end below what was committed: then nobody knows.
    """
    found: list[tuple[int, int | None] | None] = []
    for stream, need in one.needs.items():
        there = seen.get((stream, need))
        if there is None or need > there.next:
            found.append(None)
            continue
        begin = need if stream in one.begun else max(need, there.floor)
        found.append((there.next - begin, there.by))
    return found


def _summary(
    one: GroupProgress, record: LeaderRecord, behind: list[tuple[int, int | None] | None], now: int
) -> GroupSummary:
    leader = LeaderRow.of(record)
    return GroupSummary(
        subscription=str(one.subscription),
        state="paused" if one.paused_at is not None else "led" if leader is not None else "no leader",
        paused_since=moment(one.paused_at),
        expired_at=moment(one.expired_at),
        leader=leader,
        term=record.term,
        streams=len(one.needs),
        lag=total(None if stream is None else stream[0] for stream in behind),
        lag_seconds=longest(None if stream is None else seconds_waiting(*stream, now) for stream in behind),
    )


def seconds_waiting(lag: int, since: int | None, now: int) -> float | None:
    """How long the oldest of `lag` messages waits, since then until now (both in us); None if unknown."""
    if lag == 0:
        return 0.0
    return None if since is None else max(0.0, round((now - since) / 1_000_000, 3))


def longest(seconds: Iterable[float | None]) -> float | None:
    """How long the oldest message of all streams waits; None if that of one is unknown."""
    longest = 0.0
    for one in seconds:
        if one is None:
            return None
        longest = max(longest, one)
    return longest
