"""The clock of one world, its randomness, and what is written down about it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

from streamlease.testing.timelines.loops import Timeline


class Kernel:
    """What everything in a world draws from and writes to; times are in ms."""

    def __init__(self, seed: int, timeline: Timeline) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.notes: list[tuple[int, str, tuple[Any, ...]]] = []
        self._timeline = timeline

    @property
    def now(self) -> int:
        """Milliseconds since the world began."""
        return int(self._timeline.now * 1000)

    def after(self, ms: float, act: Callable[[], None]) -> None:
        """Do `act` in `ms`."""
        self._timeline.after(ms / 1000, act)

    def note(self, who: str, *what: Any) -> None:
        """Write down that something happened. Nothing that changes later may be handed in."""
        self.notes.append((self.now, who, what))

    def transcript(self) -> list[str]:
        """What happened, one line each."""
        return [f"{now:>8} {who:<12} {' '.join(map(str, what))}" for now, who, what in self.notes]

    def digest(self) -> str:
        """Tells two transcripts apart."""
        return hashlib.blake2b("\n".join(self.transcript()).encode(), digest_size=16).hexdigest()

    def token(self) -> str:
        """A fresh token, the same in every run of the seed."""
        return f"{self.random.getrandbits(48):012x}"

    def chance(self, probability: float) -> bool:
        """Whether something of that probability happens."""
        return probability > 0 and self.random.random() < probability
