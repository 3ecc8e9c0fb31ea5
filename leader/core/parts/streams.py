"""Streams: which ones the group has, in which order they are read, and what others attest of them.

The order is `generations`, what is believed after a loss is `healing`; both are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from streamlease.leader.core import generations, healing
from streamlease.leader.core.events import StreamsListed
from streamlease.leader.core.happenings import Advanced, Gone, Leaving, Passed, SituationChanged
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.state.records import Committed, StreamsAdded, StreamsForgotten, Truncated
from streamlease.protocol.messages import Progress


@dataclass(slots=True)
class Streams:
    """The streams of a group, and what the newest listing says of them."""

    ledger: Ledger
    held: Collection[str]
    """Those that have a lease."""
    listing: generations.Listing | None = None
    """What the newest listing says of the order of streams; None before the first one."""
    attested: dict[tuple[str, int], Progress] = field(default_factory=dict)
    """(Stream, lease epoch) -> what was attested of streams before the first listing named them."""

    def listed(self, event: StreamsListed) -> None:
        """Take over which streams there are now."""
        durable, starts = self.ledger.durable, event.starts
        new = {s: start for s, start in starts.items() if s not in durable.streams}
        unlisted = [s for s in durable.streams if s not in starts]
        unread = frozenset(s for s in unlisted if s.partition(".")[0] in event.unread)
        gone = tuple(s for s in unlisted if s not in unread)
        begins = self.listing is None and not self.held
        self.listing = generations.Listing.of(event.ends, event.predecessors, unread)
        if new:
            waiting = generations.waiting(durable, new, event.predecessors)
            self.ledger.record(StreamsAdded(starts=new, waiting=waiting))
            self.believe([self.attested.pop(key) for key in list(self.attested) if key[0] in new])
        if gone:
            self.ledger.record(StreamsForgotten(streams=gone))
            self.ledger.happened(Gone(gone))
        held = durable.streams
        further = {s: at for s, at in event.committed.items() if s in held and held[s].committed < at}
        if further:
            self.ledger.record(Committed(offsets=further))
        passed = {s: at for s, at in event.floors.items() if s in held and held[s].committed < at}
        blocked = any(held[stream].blocked for stream in passed)
        if passed:
            self.ledger.record(Truncated(floors=passed))
        if new or gone or blocked or begins:
            self.ledger.happened(SituationChanged())
        self.ledger.happened(Passed(tuple(held)))

    def believe(self, attested: Iterable[Progress]) -> None:
        """Take over what others have seen and the journal has lost; see `healing`."""
        durable, entries = self.ledger.durable, tuple(attested)
        record = healing.news(durable, entries)
        if record is not None:
            blocked = any(durable.streams[stream].blocked for stream in record.streams)
            self.ledger.record(record)
            self.ledger.happened(Passed(tuple(record.streams)))
            if blocked:
                self.ledger.happened(SituationChanged())
        if durable.lost_from is not None and self.listing is None:
            for one in entries:
                key = (one.stream, one.lease_epoch)
                known = self.attested.get(key)
                if one.stream not in durable.streams and (known is None or one.offset > known.offset):
                    self.attested[key] = one

    def advance(self, candidates: Iterable[str]) -> None:
        """Finish the sealed streams that are consumed to their end, and let the next generation begin."""
        if (listing := self.listing) is None:
            return
        # Most streams are neither sealed nor wait: nothing follows from what is consumed of them.
        durable, ends = self.ledger.durable, listing.ends
        concerned = [s for s in candidates if s in ends or ((one := durable.streams.get(s)) and one.waiting)]
        if not concerned:
            return
        found = generations.advance(durable, self.held, listing, concerned)
        if found.record is not None:
            self.ledger.record(found.record)
            self.ledger.happened(Advanced(found.record.finished))
        if found.leaving:
            self.ledger.happened(Leaving(found.leaving))

    def is_at_end(self, stream: str, offset: int) -> bool:
        """Whether a stream is sealed, and consumed to its end once all below `offset` is."""
        end = self.listing.ends.get(stream) if self.listing is not None else None
        return end is not None and offset >= end

    def sealed(self, streams: Iterable[str]) -> tuple[str, ...]:
        """Those of the streams that are sealed, as far as is known."""
        ends = self.listing.ends if self.listing is not None else {}
        return tuple(stream for stream in streams if stream in ends)
