"""``streamlease group list``: all groups, who leads them, and how far they are behind.

Nothing here asks a leader or reads a journal: leadership records, the mirrors of the groups' progress and the
ends of the streams are read in a few round trips, however many groups there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.admin.options import AsJson, RedisUrl
from streamlease.admin.output import iso_microseconds, line, printable, table
from streamlease.admin.watching import Watch, view
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import SharedSubscription, check_topic, matches

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.protocol.ids import StreamId
    from streamlease.registry.leadership import LeaderRecord
    from streamlease.registry.progress import GroupProgress
    from streamlease.streams.log.times import WaitingMessage
    from streamlease.streams.spaces.spaces import Space


def list_groups(
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only subscriptions of the group of that name.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only those whose filter selects the topic.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many of them.")] = None,
    after: Annotated[
        str | None, typer.Option(metavar="SUB", help="Those behind that one, which 'next' of a page names.")
    ] = None,
    watch: Watch = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> int:
    """All groups: who leads them, whether they are paused, and how far they are behind."""
    if topic is not None:
        _plain_topic(topic)
    behind = None if after is None else str(SharedSubscription.parse(after))

    async def look(client: Client) -> dict[str, Any]:
        known = await client.groups.look()
        names = [
            one
            for one in known.groups
            if (group is None or one.group == group)
            and (topic is None or matches(one.filter, topic))
            and (behind is None or str(one) > behind)
        ]
        page = names if limit is None else names[:limit]
        more = str(page[-1]) if len(page) < len(names) else None
        found, damaged = await summaries(client, page)
        unread = [{"name": name, "why": reason} for name, reason in (known.damaged | damaged).items()]
        return {"groups": found, "next": more} | ({"damaged": unread} if unread else {})

    return view(redis, look, _draw, as_json=as_json, watch=watch)


def _plain_topic(topic: str) -> None:
    """Raises: InvalidTopic, InvalidOption: it is a filter or a subscription."""
    if topic.startswith(("$shared/", "$queue/")):
        raise InvalidOption(f"--topic {ascii(topic)[:80]} is a subscription: give a topic, such as a/b")
    check_topic(topic)


def _draw(seen: dict[str, Any]) -> None:
    table(
        ("SUBSCRIPTION", "STATE", "LEADER", "TERM", "STREAMS", "LAG", "LAG SECONDS"),
        [
            (
                one["subscription"],
                one["state"],
                (one["leader"] or {}).get("host"),
                one["term"],
                one["streams"],
                one["lag"],
                one["lag_seconds"],
            )
            for one in seen["groups"]
        ],
        "there are no groups: subscribe, or use 'streamlease group declare SUB'",
    )
    for one in seen.get("damaged", ()):
        line(f"group {printable(one['name'])} cannot be read: {printable(one['why'])}")
    if seen["next"] is not None:
        line(f"there are more: --after '{seen['next']}'")


async def summaries(
    client: Client, groups: Sequence[SharedSubscription]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """One document for each of `groups`, and of those that cannot be read, why; deleted ones are left out.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    from streamlease.streams.redis.damaged import readable

    spaces = (await client.spaces.look()).listed
    found, damaged = await readable(groups, lambda some: _summaries(client, spaces, some))
    return [found[one] for one in groups if one in found], {str(one): why for one, why in damaged.items()}


async def _summaries(
    client: Client, spaces: Sequence[Space], groups: Sequence[SharedSubscription]
) -> dict[SharedSubscription, dict[str, Any]]:
    from streamlease.protocol.errors import Unsupported
    from streamlease.registry import leadership, progress
    from streamlease.streams.log.times import server_time, waiting

    wanted = {
        one: [stream for space in spaces if space.intersects(one.filter) for stream in space.streams()]
        for one in groups
    }
    leaders = await leadership.read_all(client.redis, [one.id for one in groups])
    for leader in leaders.values():
        if leader.damage:
            raise Unsupported(leader.damage)
    found = await progress.read(client.redis, wanted)
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
) -> list[tuple[int, int | None]] | None:
    """Of each stream: how many messages wait, and since when; None if a stream is not known.

    After a failover that lost writes a stream may end below what was committed: then nobody knows.
    """
    found = []
    for stream, need in one.needs.items():
        there = seen.get((stream, need))
        if there is None or need > there.next:
            return None
        begin = need if stream in one.begun else max(need, there.floor)
        found.append((there.next - begin, there.since))
    return found


def _summary(
    one: GroupProgress, leader: LeaderRecord, behind: list[tuple[int, int | None]] | None, now: int
) -> dict[str, Any]:
    live = leader.held and not leader.expired
    return {
        "subscription": str(one.subscription),
        "state": "paused" if one.paused_at is not None else "led" if live else "no leader",
        "paused_since": _moment(one.paused_at),
        "expired_at": _moment(one.expired_at),
        "leader": {"host": leader.host, "term": leader.term} if live else None,
        "term": leader.term,
        "streams": len(one.needs),
        "lag": None if behind is None else sum(count for count, _ in behind),
        "lag_seconds": None if behind is None else _oldest(behind, now),
    }


def _oldest(behind: list[tuple[int, int | None]], now: int) -> float | None:
    """How long the oldest message waits; None if that of one stream is unknown."""
    longest = 0.0
    for count, since in behind:
        if count and since is None:
            return None
        if count and since is not None:
            longest = max(longest, (now - since) / 1_000_000)
    return round(longest, 3)


def _moment(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso_microseconds(milliseconds * 1000)
