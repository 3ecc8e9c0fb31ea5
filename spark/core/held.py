"""The streams that a query holds, and which of them have something to read: pure.

Of 10,000 streams few may have news, and Spark asks many times a second, so nothing here looks at all of them:
a stream is looked at from when its end, its lease or its progress changed until it is read to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamlease.spark.core.checkpoint import SlotRange


@dataclass(slots=True)
class Held:
    """One stream that the query holds."""

    slot: int
    lease_epoch: int
    committed: int
    pinned_end: int | None
    revoking: bool = False
    follows: int | None = None
    """The epoch of the lease before this one; None: not known."""
    limbo: bool = False
    """The borrower ended; the stream may come back to its successor."""
    since: int = 0
    """The lease epoch since which the query has had the stream without a break."""

    def commit(self, offset: int) -> None:
        """Everything below `offset` is committed."""
        self.committed = offset
        if self.pinned_end is not None and offset >= self.pinned_end:
            self.pinned_end = None

    def is_pinned_to(self, part: SlotRange) -> bool:
        """Whether the next cut must be what `part` was, and nobody had the stream since.

        A batch that is read in part leaves out only streams that were leased again, so the next epoch
        proves that `part` was not left out.
        """
        return (
            not self.limbo
            and self.follows == part.lease_epoch
            and (self.committed, self.pinned_end) == (part.start, part.end)
        )


class HeldStreams:
    """What is held, and the ends of streams as far as they are known."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self._ends: dict[str, int] = {}
        self._behind: dict[str, None] = {}
        """All streams that may have something to read, and some that have not."""
        self._pinned: dict[str, None] = {}
        """All streams that are pinned, and some that are not any more."""
        self._counted: tuple[int, bool] | None = None

    def hold(self, stream: str, held: Held) -> None:
        """The stream is the query's."""
        self.held[stream] = held
        self.look_at(stream)
        if held.pinned_end is not None:
            self._pinned[stream] = None

    def drop(self, stream: str) -> Held:
        """The stream is the query's no more; what was known of it."""
        self._counted = None
        return self.held.pop(stream)

    def look_at(self, stream: str) -> None:
        """What is known of the stream changed."""
        self._behind[stream] = None
        self._counted = None

    def ends_at(self, stream: str, end: int | None) -> None:
        """The next message of the stream will get that offset; None: that is not known any more."""
        if (end is None) is (stream in self._ends):
            self._counted = None
        if end is None:
            self._ends.pop(stream, None)
        else:
            self._ends[stream] = end
        self._behind[stream] = None

    def forget_ends(self) -> None:
        """Remember no ends of streams that are not held."""
        self._ends = {stream: end for stream, end in self._ends.items() if stream in self.held}

    def waiting(self, targets: Mapping[str, int] | None = None) -> dict[str, int]:
        """How many messages wait in each stream that may be put into a cut, as far as known.

        Args:
            targets: the offsets beyond which nothing is to be read; None: the ends.
        """
        held, ends = self.held, self._ends
        most = ends if targets is None else targets
        found: dict[str, int] = {}
        nothing = []
        for stream in self._behind:
            one = held.get(stream)
            if one is None:
                nothing.append(stream)
            elif (count := most.get(stream, 0) - one.committed) > 0:
                if not (one.revoking or one.limbo or one.pinned_end is not None):
                    found[stream] = count
            elif targets is None or ends.get(stream, 0) <= one.committed:
                nothing.append(stream)
        for stream in nothing:
            del self._behind[stream]
        return found

    def pinned(self) -> list[str]:
        """The streams that must be read up to where a former cut ended."""
        held = self.held
        for stream in list(self._pinned):
            if stream not in held or held[stream].pinned_end is None:
                del self._pinned[stream]
        return list(self._pinned)

    def pinned_ends(self) -> dict[str, int]:
        """Where the next cut must end in those of them that may be put into it."""
        return {
            stream: end
            for stream in self.pinned()
            if not ((one := self.held[stream]).revoking or one.limbo) and (end := one.pinned_end) is not None
        }

    def counted(self) -> tuple[int, int | None]:
        """How many streams are held, and how many messages wait in them; None while that is not known."""
        if self._counted is None:
            own = [stream for stream, one in list(self.held.items()) if not one.limbo]
            self._counted = len(own), all(stream in self._ends for stream in own)
        held, known = self._counted
        return held, self._lag(list(self._behind)) if known else None

    def _lag(self, streams: Iterable[str]) -> int:
        lag = 0
        for stream in streams:
            one = self.held.get(stream)
            if one is not None and not one.limbo:
                lag += max(0, self._ends.get(stream, 0) - one.committed)
        return lag

    def ends(self) -> dict[str, int]:
        """The ends of the streams held, as far as known."""
        return {stream: end for stream, end in sorted(self._ends.items()) if self._is_held(stream)}

    def _is_held(self, stream: str) -> bool:
        one = self.held.get(stream)
        return one is not None and not one.limbo
