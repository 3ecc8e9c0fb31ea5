"""When a query that reads what is available now can begin, and when it has read it: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def exhausted(
    targets: Mapping[str, int], view: Mapping[str, Any], session: str, done: Mapping[str, int]
) -> bool:
    """Whether nothing below the targets is left for `session` to read.

    A stream that is on its way to its owner may still become the session's own, so all leases must be
    settled. What another live query holds is that query's to read.

    Args:
        targets: the end of each stream that is available now.
        view: the group as its leader describes it.
        done: how far the session itself has finished each stream that it may read.
    """
    if view["state"] != "stable":
        return False
    streams = {stream["stream"]: stream for stream in view["streams"]}
    for stream, target in targets.items():
        if not target:
            continue
        seen = streams.get(stream)
        if seen is None:
            return False
        if max(seen["committed"], done.get(stream, 0)) < target and seen["session"] in (None, session):
            return False
    return True


def at_hand(view: Mapping[str, Any] | None, session: str, held: Collection[str]) -> bool:
    """Whether all streams that will be those of `session` are, so that one cut can hold them all.

    Args:
        view: the group as its leader describes it; None: not known.
        held: the streams that the session holds.
    """
    return (
        view is not None
        and view["state"] == "stable"
        and all(one["stream"] in held for one in view["streams"] if one["session"] in (None, session))
    )
