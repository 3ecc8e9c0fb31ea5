"""What one message says of the progress of streams, until it is recorded: all of it in one record."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.state.records import Committed, Truncated
from streamlease.protocol.messages import Progress


@dataclass(slots=True)
class NotedProgress:
    """Taken from the owners of the streams, and nobody else."""

    ledger: Ledger
    _offsets: dict[str, int] = field(default_factory=dict)
    """Stream -> how far it is, where that is above what is committed."""

    def take(self, entry: Progress) -> None:
        """Note how far a stream is. What was lost below that is recorded at once."""
        stream, offset = entry.stream, entry.offset
        if entry.holes:
            self.record()
            self._pass_holes(entry)
        if offset > self._offsets.get(stream, self.ledger.durable.streams[stream].committed):
            self._offsets[stream] = offset

    def record(self) -> None:
        """Record what was noted."""
        if self._offsets:
            self.ledger.record(Committed(offsets=self._offsets))
            self._offsets = {}

    def _pass_holes(self, entry: Progress) -> None:
        """What Redis lost before it was consumed is counted, as what retention removed is; each hole once."""
        stream = self.ledger.durable.streams[entry.stream]
        for start, end in entry.holes:
            if stream.committed < end <= entry.offset:
                if stream.committed < start:
                    self.ledger.record(Committed(offsets={entry.stream: start}))
                self.ledger.record(Truncated(floors={entry.stream: end}))
