"""``streamlease group list``: all groups, who leads them, and how far they are behind.

Nothing here asks a leader or reads a journal: leadership records, the progress beside the journals and the
ends of the streams are read in a few round trips, however many groups there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.facts.fact_tables import LISTED_GROUPS
from streamlease.admin.output import line, printable
from streamlease.admin.watching import Watch, view
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import SharedSubscription, check_topic, matches

if TYPE_CHECKING:
    from streamlease.admin.facts.groups import GroupList
    from streamlease.agent.client import Client


def list_groups(
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only subscriptions of the group with this name.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only subscriptions whose filter matches this topic.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Show at most this many.")] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="SUB", help="Continue after this subscription: the 'next' of the previous page."
        ),
    ] = None,
    watch: Watch = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List all groups: who leads them, whether they are paused, and how far behind they are."""
    if topic is not None:
        _plain_topic(topic)
    behind = None if after is None else str(SharedSubscription.parse(after))

    async def look(client: Client) -> GroupList:
        from streamlease.admin.facts.groups import GroupList, summaries
        from streamlease.admin.facts.rows import DamagedRow

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
        unread = [DamagedRow(name=name, why=reason) for name, reason in known.damaged.items()]
        return GroupList(groups=found, next=more, damaged=[*unread, *damaged])

    view(redis, look, _draw, as_json=as_json, watch=watch)


def _plain_topic(topic: str) -> None:
    """Raises: InvalidTopic, InvalidOption: it is a filter or a subscription."""
    if topic.startswith(("$shared/", "$queue/")):
        raise InvalidOption(f"--topic {ascii(topic)[:80]} is a subscription: give a topic, such as a/b")
    check_topic(topic)


def _draw(seen: GroupList) -> None:
    LISTED_GROUPS.table(seen.groups)
    for unread in seen.damaged:
        line(f"group {printable(unread.name)} cannot be read: {printable(unread.why)}")
    if seen.next is not None:
        line(f"there are more: --after '{seen.next}'")
