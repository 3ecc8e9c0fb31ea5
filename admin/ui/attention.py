"""What needs attention now, in words, worst first, each with the act that helps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamlease.admin.facts.hosts import Host
from streamlease.admin.ui.board_rows import Concern, GroupOnPage, SpaceOnPage

OLD_SECONDS = 60.0
"""A group whose oldest message has waited so long is behind."""

HELD_SECONDS = 3600.0
"""A group that has kept messages from being removed for so long is worth a word."""

MOST = 100


def concerns(
    groups: Iterable[GroupOnPage], spaces: Iterable[SpaceOnPage], hosts: Sequence[Host], now: int
) -> list[Concern]:
    """What a person should look at.

    Args:
        now: milliseconds since 1970.
    """
    found = [(rank, one) for group in groups for rank, one in _of_group(group, now)]
    found += [(rank, one) for space in spaces for rank, one in _of_space(space, now)]
    if hosts and all(host.drained for host in hosts):
        text = "Every leader host is drained, so no leader can start."
        found.append(((1, 0.0), Concern(level="bad", text=text, act="undrain_host", host=hosts[0].host)))
    found.sort(key=lambda one: (one[0], one[1].text))
    return [one for _, one in found[:MOST]]


def _of_group(group: GroupOnPage, now: int) -> Iterable[tuple[tuple[int, float], Concern]]:
    name, waits = group.subscription, _waits(group)
    size = -float(group.lag or 0)
    if group.stopped:
        what = (
            f"stream {group.stopped[0]} is"
            if len(group.stopped) == 1
            else f"{len(group.stopped)} streams are"
        )
        text = f"{what} stopped at a message that failed too often"
        yield (
            (0, size),
            Concern(level="bad", text=text, subscription=name, act="retry", stream=group.stopped[0]),
        )
    if group.expired and group.lag:
        text = "it was idle for so long that retention may remove what it has not consumed"
        yield (3, size), Concern(level="warn", text=text, subscription=name)
    elif group.state == "no leader" and group.lag:
        yield (
            (2, size),
            Concern(level="bad", text=f"nobody leads it, and {waits}: start a consumer", subscription=name),
        )
    elif group.state == "no consumers" and group.lag:
        yield (
            (2, size),
            Concern(level="bad", text=f"it has no consumers, and {waits}: start one", subscription=name),
        )
    elif group.state == "paused":
        since = _age(max(0, now - (group.paused_since or now)) / 1000)
        text = f"{group.paused_by or 'somebody'} paused it {since} ago, and {waits}"
        yield (4, size), Concern(level="warn", text=text, subscription=name, act="resume")
    elif group.state == "behind":
        text = f"its oldest message has waited for {_age(group.lag_seconds or 0)}, and {waits}"
        yield (5, size), Concern(level="warn", text=text, subscription=name)
    if group.lag is None and group.streams:
        text = (
            "its lag is unknown: a stream ends below what was committed, as after a failover that lost writes"
        )
        yield (1, 0.0), Concern(level="bad", text=text, subscription=name, act="reset")


def _of_space(space: SpaceOnPage, now: int) -> Iterable[tuple[tuple[int, float], Concern]]:
    if space.lost:
        text = f"Redis has nothing of {space.lost} of its {space.streams} streams"
        yield (0, 0.0), Concern(level="bad", text=text, space=space.name)
    if space.held_since is not None and space.held_by:
        since = now / 1000 - space.held_since / 1_000_000
        if since >= HELD_SECONDS:
            by = space.held_by[0] + (f" and {len(space.held_by) - 1} more" if len(space.held_by) > 1 else "")
            text = f"for {_age(since)}, {by} has kept messages that retention would remove"
            yield (6, -since), Concern(level="warn", text=text, space=space.name)


def _waits(group: GroupOnPage) -> str:
    if group.lag is None:
        return "nobody knows how much waits"
    return f"{group.lag:,} {'message waits' if group.lag == 1 else 'messages wait'}"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
