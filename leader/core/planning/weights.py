"""Weights of streams, from ends that are read now and then: messages per second, or messages that wait. Pure.

Each measured value is smoothed over `SMOOTH_MS`: a stream that is busy for a moment does not look busy. To
each a base is added, a part of the average and at least `FLOOR`: idle streams weigh something too, so they
are spread by number, and a single message in an idle group changes nothing. A stream that was not measured
yet weighs as the average does.

Weights are not in the journal: they are a guess, old within a minute, and would be written all the time. A
new leader measures anew; until then it takes no streams from anybody because of weights (`plans`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Measure = Literal["rate", "lag"]

SMOOTH_MS = 30_000
"""After so long the influence of a measured value has fallen to 37 %."""

FLOOR: dict[Measure, int] = {"rate": 1, "lag": 100}
"""So little (messages per second; messages) makes no difference between two streams."""

BASE_PART = 10
"""One part in so many of the average is added to each weight."""

SCALE = 1000
"""Weights are whole numbers of thousandths."""


@dataclass(slots=True)
class Weights:
    """What is known of the streams of one group."""

    measure: Measure = "rate"
    """What the values are."""
    values: dict[str, float] = field(default_factory=dict)
    """Stream -> its smoothed rate, or lag."""
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Stream -> its end at the newest measurement, and when (ms) that was."""

    def take(self, measure: Measure, ends: Mapping[str, int], committed: Mapping[str, int], at: int) -> None:
        """Take ends that were read at `at` (ms) over; streams without `committed` are not of the group."""
        if measure != self.measure:
            self.measure, self.values, self.seen = measure, {}, {}
        for stream, end in ends.items():
            if stream not in committed:
                continue
            before = self.seen.get(stream)
            if before is not None and at <= before[1]:
                continue
            self.seen[stream] = (end, at)
            if measure == "lag":
                self._smooth(stream, float(max(0, end - committed[stream])), before, at)
            elif before is not None:
                # Below the former end if Redis lost messages: then nothing is known of the time between.
                self._smooth(stream, 1000 * max(0, end - before[0]) / (at - before[1]), before, at)

    def _smooth(self, stream: str, value: float, before: tuple[int, int] | None, at: int) -> None:
        former = self.values.get(stream)
        if former is None or before is None:
            self.values[stream] = value
        else:
            self.values[stream] = value + (former - value) * math.exp((before[1] - at) / SMOOTH_MS)

    def keep(self, streams: Collection[str]) -> None:
        """Forget all others."""
        for stream in [one for one in self.seen if one not in streams]:
            del self.seen[stream]
            self.values.pop(stream, None)

    def knows(self, streams: Iterable[str]) -> bool:
        """Whether each of them was measured."""
        return all(stream in self.values for stream in streams)

    def of(self, measure: Measure, streams: Iterable[str]) -> dict[str, int]:
        """The weight of each stream, above 0."""
        wanted = list(streams)
        known = {s: round(self.values[s] * SCALE) for s in wanted if s in self.values}
        mean = sum(known.values()) // len(known) if known else 0
        base = max(FLOOR[measure] * SCALE, mean // BASE_PART)
        return {stream: known.get(stream, mean) + base for stream in wanted}
