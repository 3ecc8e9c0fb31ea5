"""What needs attention now, in words, worst first, each with the acts that help. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from streamlease.admin.doctor.held_epochs import HeldEpochs
from streamlease.admin.facts.hosts import Host
from streamlease.admin.ui.board_rows import Concern, GroupOnPage, SpaceOnPage
from streamlease.admin.ui.slow_facts import SlowFacts
from streamlease.queries.core.record import QueryRecord

OLD_SECONDS = 60.0
"""A group whose oldest message has waited so long is behind."""

HELD_SECONDS = 3600.0
"""A group that has kept messages from being removed for so long is worth a word."""

MOST = 100
Ranked = tuple[tuple[int, float], Concern]
"""The smaller, the worse."""

NOT_WANTED = ["pause", "expire"]
"""What is done with a group whose consumers are not to come back soon."""


def concerns(
    groups: Iterable[GroupOnPage],
    spaces: Iterable[SpaceOnPage],
    hosts: Sequence[Host],
    now: int,
    slow: SlowFacts,
    *,
    client_led: Mapping[str, str],
    gone: Mapping[str, int],
) -> list[Concern]:
    """What a person should look at.

    Args:
        now: milliseconds since 1970.
        client_led: groups that a client has led for a while although there are hosts, and its host id.
        gone: names of hosts that were there and are no more, and when they were last seen (ms since 1970).
    """
    groups, spaces = [*groups], [*spaces]
    known = {group.subscription for group in groups}
    found = [one for group in groups for one in _of_group(group, now, slow.letters, client_led)]
    found += [one for space in spaces for one in _of_space(space, now, known)]
    found += _of_hosts(groups, spaces, hosts, now, gone)
    found += [_of_epochs(held) for held in slow.epochs]
    found += [_of_query(query) for query in slow.failed]
    found.sort(key=lambda one: (one[0], one[1].text))
    return [one for _, one in found[:MOST]]


def _of_group(
    group: GroupOnPage, now: int, letters: Mapping[str, int], client_led: Mapping[str, str]
) -> Iterator[Ranked]:
    name, waits = group.subscription, _waits(group)
    size = -float(group.lag or 0)

    def said(level: str, text: str, *acts: str, **more: object) -> Concern:
        return Concern.model_validate(
            {"level": level, "text": text, "subscription": name, "acts": [*acts], **more}
        )

    if group.stopped:
        stream, *others = group.stopped
        what = f"{len(group.stopped)} streams are" if others else f"stream {stream} is"
        text = f"{what} stopped at a message that failed too often"
        yield (0, size), said("bad", text, "retry", "dead_letter", about={"stream": stream})
    if group.expired and group.lag:
        text = "it was idle for so long that retention may remove what it has not consumed"
        yield (3, size), said("warn", text, "delete")
    elif group.state == "no leader" and group.lag:
        yield (2, size), said("bad", f"nobody leads it, and {waits}: start a consumer", *NOT_WANTED)
    elif group.state == "no consumers" and group.lag:
        yield (2, size), said("bad", f"it has no consumers, and {waits}: start one", *NOT_WANTED)
    elif group.state == "paused":
        since = _age(max(0, now - (group.paused_since or now)) / 1000)
        text = f"{group.paused_by or 'somebody'} paused it {since} ago, and {waits}"
        yield (4, size), said("warn", text, "resume")
    elif group.state == "behind":
        text = f"its oldest message has waited for {_age(group.lag_seconds or 0)}, and {waits}"
        yield (5, size), said("warn", text, "rebalance", tab="why")
    if group.lag is None and group.streams:
        text = (
            "its lag is unknown: a stream ends below what was committed, as after a failover that lost writes"
        )
        yield (1, 0.0), said("bad", text, "reset")
    if name in client_led:
        text = f"the client {client_led[name]} leads it, although there are leader hosts"
        yield (6, size), said("warn", text, "step_down")
    if left := letters.get(name, 0):
        text = f"{left:,} {'message' if left == 1 else 'messages'} failed too often, and nobody replayed "
        yield (8, -float(left)), said("warn", text + ("it" if left == 1 else "them"), "replay", tab="letters")


def _of_space(space: SpaceOnPage, now: int, groups: set[str]) -> Iterator[Ranked]:
    if space.lost:
        text = f"Redis has nothing of {space.lost} of its {space.streams} streams"
        yield (0, 0.0), Concern(level="bad", text=text, space=space.name, tab="streams")
    if space.held_since is not None and space.held_by:
        since = now / 1000 - space.held_since / 1_000_000
        if since >= HELD_SECONDS:
            first, *others = space.held_by
            by = first + (f" and {len(others)} more" if others else "")
            text = f"for {_age(since)}, {by} has kept messages that retention would remove"
            of_group = first in groups
            yield (
                (7, -since),
                Concern(
                    level="warn",
                    text=text,
                    space=space.name,
                    tab="streams",
                    acts=["expire"] if of_group else [],
                    about={"subscription": first} if of_group else {},
                ),
            )


def _of_hosts(
    groups: Sequence[GroupOnPage],
    spaces: Sequence[SpaceOnPage],
    hosts: Sequence[Host],
    now: int,
    gone: Mapping[str, int],
) -> Iterator[Ranked]:
    if hosts and all(host.drained for host in hosts):
        text = "is drained like every leader host, so no leader can start"
        first = hosts[0].host
        yield (
            (1, 0.0),
            Concern(level="bad", text=text, host=first, acts=["undrain_host"], about={"host": first}),
        )
    if not hosts and all(group.leader is None for group in groups):
        kept = [one.name for one in spaces if (one.epochs or one.archive is not None) and not one.ended]
        if kept:
            names = ", ".join(kept[:3]) + (f" and {len(kept) - 3} more" if len(kept) > 3 else "")
            text = f"No leader host is there, and no epochs complete, nor is anything archived, of {names}: "
            yield (1, 0.0), Concern(level="bad", text=text + "run 'streamlease serve'")
    for name, seen in gone.items():
        text = f"this leader host is gone; it was last seen {_age((now - seen) / 1000)} ago"
        yield (6, 0.0), Concern(level="warn", text=text, host=name)


def _of_epochs(held: HeldEpochs) -> Ranked:
    if held.publisher is None:
        return (1, 0.0), Concern(
            level="bad", text=f"{held.why}: {held.remedy}", space=held.space, tab="epochs"
        )
    return (5, 0.0), Concern(
        level="warn",
        text=held.why,
        space=held.space,
        tab="epochs",
        acts=["abort_publisher"],
        about={"space": held.space, "publisher": held.publisher},
    )


def _of_query(query: QueryRecord) -> Ranked:
    ended = "failed" if query.outcome is None else query.outcome.value
    what = {"lost": "was lost", "aborted": "was aborted"}.get(ended, ended)
    text = f"{query.name} {what}: {query.reason}" if query.reason else f"{query.name} {what}"
    return (5, 0.0), Concern(level="bad", text=text, query=query.query)


def _waits(group: GroupOnPage) -> str:
    if group.lag is None:
        return "nobody knows how much waits"
    return f"{group.lag:,} {'message waits' if group.lag == 1 else 'messages wait'}"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
