"""When a query that reads what is available now has read it: a pure function."""

from __future__ import annotations

from collections.abc import Mapping
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
