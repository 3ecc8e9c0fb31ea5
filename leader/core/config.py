"""What a leader is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.leader.core.planning.strategies import strategy
from streamlease.protocol.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class LeaderConfig:
    """Timers of a leader, in milliseconds, and its assignment strategy.

    Raises:
        InvalidOption: a value is not positive, or no strategy has that name.
    """

    resend_interval: int = 1000
    rebalance_delay: int = 100
    """Joins and leaves within this time make one plan."""
    revocation_timeout: int = 30_000
    idle_timeout: int = 60_000
    strategy: str = "count"
    weight_interval: int = 30_000
    """So long after a plan that weights alone asked for there is no other one."""

    def __post_init__(self) -> None:
        timers = (
            "resend_interval",
            "rebalance_delay",
            "revocation_timeout",
            "idle_timeout",
            "weight_interval",
        )
        for name in timers:
            if getattr(self, name) <= 0:
                raise InvalidOption(f"{name} is {getattr(self, name)} ms: it must be above 0")
        strategy(self.strategy)
