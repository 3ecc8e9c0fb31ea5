"""What must be true of a group that reads whole epochs (invariants 5, 7 and 13).

A part that is handed out has all that its epoch has in the stream; what was committed never comes again;
nothing is passed over; where the frontier is told, all before it was handed out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from streamlease.agent.epochs.group_reader import EpochGroupReader, EpochPart
from streamlease.borrower.book import Held
from streamlease.protocol.epochs.antichains import Antichain, goes_on
from streamlease.protocol.epochs.order import Epoch
from tests.simulation.epochs.readers import text_of
from tests.simulation.epochs.written import History
from tests.simulation.judge import Violation

if TYPE_CHECKING:
    from tests.simulation.epochs.groups import GroupWorld


class GroupTruth:
    """Follows what a group is handed out, and what it commits.

    A failover may take away what was handed out, and what was committed: of that, and of nothing else, parts
    may come again.
    """

    def __init__(self, world: GroupWorld) -> None:
        self._world = world
        self.parts: dict[tuple[str, int], tuple[Epoch, list[str], int]] = {}
        """Where each part begins -> its epoch, its messages, where it ends."""
        self.reached: Counter[str] = Counter()
        """Up to where all of a stream was handed out, to somebody."""
        self.committed: Counter[str] = Counter()
        """Up to where it was committed, and that was answered."""
        self.handed_out = 0
        self._former_ends: set[tuple[str, int]] = set()
        """Up to where a consumer had read what a failover took away: it may go on there, in another part."""
        self._former: set[tuple[str, int]] = set()
        """Where that stood: nobody is told of what comes there in its place."""
        self._kept: set[Held] = set()
        """What consumers held at a failover that lost something: what they had read may come yet."""
        self._doubtful: dict[Held, int] = {}
        """Those whose leases may be lost, for all that they know: until a commit is taken under them, others
        may have the same."""

    def lost(self) -> None:
        """A failover took something away: what is left is judged as before, the rest may come again.

        Where messages are kept in memory only, others may have come where a consumer had read.

        Raises:
            Violation: a commit is gone that was as durable as the space.
        """
        written, left = self._world.written.now, self._world.progress()
        for stream, at in self.committed.items():
            if self._world.durability != "memory" and left[stream] < at:
                raise Violation(f"[4] {at} of {stream} was committed, and a failover left {left[stream]}")
            self.committed[stream] = min(at, left[stream])
        for stream, at in self.reached.items():
            self.reached[stream] = min(at, written.ends.get(stream, 0))
        for (stream, start), (epoch, texts, end) in [*self.parts.items()]:
            log = written.streams.get(stream, {})
            there = [log[at].text for at in range(start, end) if at in log]
            if there != texts or self._world.part_at(stream, start) != (epoch, end):
                del self.parts[stream, start]
                self._is_former(stream, start, end)
        held = [one for it in self._world.consuming if it.reader for one in it.reader._reader.book.owned()]
        self._kept.update(held)
        self._doubtful |= {one: one.lease_epoch for one in held}

    def _is_former(self, stream: str, start: int, end: int) -> None:
        """A consumer has read what stood there, and others come in its place."""
        if self._world.durability == "memory":
            self._former_ends.add((stream, end))
            self._former.update((stream, at) for at in range(start, end))

    def _was_read_before(self, part: EpochPart, texts: list[str]) -> bool:
        """Whether a failover has taken away what a consumer had read by then, and hands out now."""
        if part.batch._held not in self._kept or self._stands(self._world.written.now, part, texts):
            return False
        return any(self._stands(history, part, texts) for history in self._world.written.former)

    def _stands(self, history: History, part: EpochPart, texts: list[str]) -> bool:
        log = history.streams.get(str(part.stream), {})
        there = [log[at].text for at in range(part.start, part.end) if at in log]
        found = self._world.part_at(str(part.stream), part.start, history)
        return part.whole and there == texts and found == (part.epoch, part.end)

    def commits(self, part: EpochPart) -> None:
        """A part is committed, and that was answered."""
        stream, held = str(part.stream), part.batch._held
        self.committed[stream] = max(self.committed[stream], part.end)
        if self._doubtful.get(held) == held.lease_epoch:
            del self._doubtful[held]

    def part(self, who: str, part: EpochPart) -> None:
        """A consumer is handed out a part."""
        self.handed_out += 1
        stream, epoch = str(part.stream), part.epoch
        texts = [text_of(message) for message in part.messages]
        known = [self._world.truth.sent[text] for text in texts]
        if wrong := [one.text for one in known if not one.tried or epoch not in (one.epoch, None)]:
            raise Violation(f"[13] {who} gets {wrong[0]} in epoch {epoch}, and it was never given up there")
        if self._was_read_before(part, texts):
            self._world.sometimes["a consumer hands out what it had read before a failover"] += 1
            self._is_former(stream, part.start, part.end)
            return
        if (stream, part.start) in self._former_ends and not (part.whole and epoch is not None):
            self._world.sometimes["a part begins where a consumer had read what is lost"] += 1
            self.parts[stream, part.start] = epoch or (), texts, part.end
            self.reached[stream] = max(self.reached[stream], part.end)
            return
        if epoch is None or part.whole == self._world.lacks(stream, epoch):
            raise Violation(f"[7] {who} gets a part of epoch {epoch} of {stream} at {part.start} only")
        held = part.batch._held
        if part.start < self.committed[stream]:
            if self._doubtful.get(held) != held.lease_epoch:
                raise Violation(
                    f"[5] {who} gets {stream} from {part.start}, and {self.committed[stream]} was committed"
                )
            self._world.sometimes["a consumer does not know that a failover took its lease"] += 1
        between = self._world.written.now.streams.get(stream, {}).keys() & {
            *range(self.reached[stream], part.start)
        }
        if between and (stream, part.start) not in self._former_ends:
            raise Violation(f"[5] {who} gets {stream} from {part.start}, and {self.reached[stream]} was last")
        self.reached[stream] = max(self.reached[stream], part.end)
        if self._world.part_at(stream, part.start) != (epoch, part.end):
            raise Violation(f"[7] {who} gets {stream} from {part.start} to {part.end}: no part stands so")
        if self.parts.setdefault((stream, part.start), (epoch, texts, part.end)) != (epoch, texts, part.end):
            raise Violation(f"[7] {who} gets another part of {stream} at {part.start} than was there before")

    def told(self, who: str, reader: EpochGroupReader, lower: Antichain, before: Antichain | None) -> None:
        """A consumer is told the frontier."""
        if before is not None and not goes_on(before, lower):
            raise Violation(f"[13] the frontier of {who} goes back from {before} to {lower}")
        ends = self._world.ends_at(lower)
        for held in reader._reader.book.owned():
            to = held.delivered
            while to in held.skips:
                to = held.skips[to]
            if to < ends.get(held.stream, 0):
                raise Violation(
                    f"[13] {who} is told {lower}, and of {held.stream} it had {to} of {ends[held.stream]}"
                )

    def ended(self) -> None:
        """The group has had all."""
        if self._world.calm and self.handed_out > len(self.parts):
            raise Violation(f"[5] {self.handed_out - len(self.parts)} parts came again, and all ended well")
        found: dict[Epoch, list[str]] = {}
        for text in [text for _, texts, _ in self.parts.values() for text in texts]:
            if (of := self._world.truth.sent[text].epoch) is not None:
                found.setdefault(of, []).append(text)
        streams = self._world.written.now.streams
        stands = [streams.get(stream, {}).get(at) for stream, at in self._former]
        unsure = {one.epoch for one in stands if one is not None}
        for epoch, expected in self._world.truth.epochs.items():
            missing = sorted((Counter(expected) - Counter(found.get(epoch, []))).elements())
            if sorted([*found.get(epoch, []), *missing]) != expected or (missing and epoch not in unsure):
                raise Violation(f"[7] the group was handed out another epoch {epoch} than stands there")
