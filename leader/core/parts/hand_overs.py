"""Hand-overs: how long streams take from one owner to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.state.records import HandedOver


@dataclass(slots=True)
class HandOvers:
    """Streams that are on their way to a next owner, until that one speaks."""

    ledger: Ledger
    under_way: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Stream -> since when (ms), and whether cleanly: the former owner was alive and gave it up."""

    def begin(self, stream: str, since: int, *, clean: bool) -> None:
        """A stream is on its way."""
        self.under_way[stream] = (since, clean)

    def end(self, stream: str, now: int) -> None:
        """The next owner has spoken."""
        begun = self.under_way.pop(stream, None)
        if begun is not None:
            self.ledger.record(HandedOver(stream=stream, milliseconds=now - begun[0], clean=begun[1]))

    def forget(self, streams: Iterable[str]) -> None:
        """No owner follows, or it is another matter when."""
        for stream in streams:
            self.under_way.pop(stream, None)
