"""How many messages of each stream go into one cut: pure functions.

Limits are those of Spark's Kafka source, and ``maxBytesPerTrigger`` as Delta has it: a soft limit, by the
mean size of the messages that a stream keeps, as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """What one cut may hold; None for no limit."""

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    """A smaller cut waits for more, up to `max_delay_ms`."""
    max_delay_ms: int = 0
    max_epochs: int | None = None
    """Where cuts are whole epochs: how many of them, but one boundary at least."""

    def at_once(self) -> Limits:
        """The same, but no cut waits for more."""
        return replace(self, min_rows=None)

    def is_worth_a_cut(self, waiting: int, milliseconds: int) -> bool:
        """Whether so many messages are to be read now.

        Args:
            waiting: how many messages wait in all.
            milliseconds: how long ago the last cut was fixed.
        """
        return waiting > 0 and (
            self.min_rows is None or waiting >= self.min_rows or milliseconds >= self.max_delay_ms
        )

    def sizes(
        self, waiting: Mapping[str, int], mean_bytes: Mapping[str, float], passed_over: Mapping[str, int]
    ) -> dict[str, int]:
        """Messages of each stream in the next cut; see :func:`shares`.

        Args:
            mean_bytes: size of a message of each stream; an unknown one counts as empty.
        """
        sizes = shares(waiting, self.max_rows, passed_over)
        if self.max_bytes is None:
            return sizes
        weights = {stream: max(1.0, mean_bytes.get(stream, 0.0)) for stream in sizes}
        weighed = {stream: math.ceil(size * weights[stream]) for stream, size in sizes.items()}
        return {
            stream: max(1, min(sizes[stream], int(share / weights[stream])))
            for stream, share in shares(weighed, max(1, self.max_bytes), passed_over).items()
        }

    def less(self, rows: int, size: float) -> Limits:
        """What is left when a cut holds so many messages and bytes already."""
        return Limits(
            None if self.max_rows is None else max(0, self.max_rows - rows),
            None if self.max_bytes is None else max(0, self.max_bytes - math.ceil(size)),
        )


def shares(
    waiting: Mapping[str, int], limit: int | None, passed_over: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Divide `limit` messages over streams in proportion to what waits, but at least one each.

    As in Spark's Kafka source, a long backlog in one stream does not starve a short one. So that a limit
    below the number of streams is kept and still nobody starves, streams that were passed over most often
    come first then, and among them those with the longest backlog.

    Args:
        waiting: messages that wait in each stream.
        limit: most messages in all, or None for no limit.
        passed_over: in how many cuts in a row each stream got nothing.
    """
    active = {stream: count for stream, count in waiting.items() if count > 0}
    total = sum(active.values())
    if limit is None or total <= limit:
        return active
    over = passed_over or {}
    if limit <= len(active):
        first = sorted(active, key=lambda stream: (-over.get(stream, 0), -active[stream], stream))
        return dict.fromkeys(first[:limit], 1)
    order = sorted(active, key=lambda stream: (-active[stream], stream))
    share = {stream: max(1, active[stream] * limit // total) for stream in order}
    excess = sum(share.values()) - limit
    for stream in order:
        if excess <= 0:
            break
        taken = min(excess, share[stream] - 1)
        share[stream] -= taken
        excess -= taken
    for stream in order:
        if excess >= 0:
            break
        added = min(-excess, active[stream] - share[stream])
        share[stream] += added
        excess += added
    return share
