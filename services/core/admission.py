"""Which deliveries are new: an entry that is sent again, because nobody knew whether it came, is taken once.

A sender numbers its entries to one stream, has one of them under way at a time, and repeats that until Redis
has answered. So what is not above the newest number of its sender was taken before.
"""

from __future__ import annotations

REMEMBERED_SECONDS = 3600.0
"""How long a silent sender is remembered: far longer than anybody repeats."""


class Admission:
    """Of one stream."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, float]] = {}

    def is_new(self, sender: str, number: int, now: float) -> bool:
        """Whether this entry was not taken before; from now on it was."""
        newest = self._newest.get(sender)
        if newest is not None and number <= newest[0]:
            return False
        self._newest[sender] = number, now
        return True

    def forget(self, now: float) -> None:
        """Forget who has been silent for long."""
        for sender in [s for s, (_, at) in self._newest.items() if now - at > REMEMBERED_SECONDS]:
            del self._newest[sender]

    def __len__(self) -> int:
        """How many senders are remembered."""
        return len(self._newest)
