"""Which of the streams that a query holds have something to read: an index beside the consumer's book.

Of 10,000 streams few may have news, and Spark asks many times a second, so nothing here looks at all of them:
a stream is looked at from when its end, its lease or its progress changed until it is read to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlease.borrower.book import Held
from streamlease.borrower.lease import StreamState


class UnreadMessages:
    """What waits in the streams of a book.

    Args:
        held: those streams; whoever changes one says so by `look_at`.
    """

    def __init__(self, held: Mapping[str, Held]) -> None:
        self._held = held
        self._ends: dict[str, int] = {}
        self._behind: dict[str, None] = {}
        """All streams that may have something to read, and some that have not."""
        self._pinned: dict[str, None] = {}
        """All streams that are pinned, and some that are not any more."""
        self._counted: tuple[int, bool] | None = None

    def look_at(self, stream: str) -> None:
        """What is known of the stream changed: its lease, its progress, or whether it is held."""
        self._behind[stream] = None
        self._counted = None
        held = self._held.get(stream)
        if held is not None and held.pinned_end is not None:
            self._pinned[stream] = None

    def ends_at(self, stream: str, end: int | None) -> None:
        """The next message of the stream will get that offset; None: that is not known any more."""
        if (end is None) is (stream in self._ends):
            self._counted = None
        if end is None:
            self._ends.pop(stream, None)
        else:
            self._ends[stream] = end
        self._behind[stream] = None

    def end_of(self, stream: str) -> int | None:
        """Where the stream ends; None while that is not known."""
        return self._ends.get(stream)

    def forget_ends(self) -> None:
        """Remember no ends of streams that are not held."""
        self._ends = {stream: end for stream, end in self._ends.items() if stream in self._held}

    def counts(self, targets: Mapping[str, int] | None = None) -> dict[str, int]:
        """How many messages wait in each stream that may be put into a cut, as far as known.

        Args:
            targets: the offsets beyond which nothing is to be read; None: the ends.
        """
        held, ends, granted = self._held, self._ends, StreamState.GRANTED
        most = ends if targets is None else targets
        found: dict[str, int] = {}
        nothing = []
        for stream in self._behind:
            one = held.get(stream)
            if one is None:
                nothing.append(stream)
            elif (count := most.get(stream, 0) - one.committed) > 0:
                if one.lease.state is granted and one.pinned_end is None:
                    found[stream] = count
            elif targets is None or ends.get(stream, 0) <= one.committed:
                nothing.append(stream)
        for stream in nothing:
            del self._behind[stream]
        return found

    def pinned(self) -> list[str]:
        """The streams that must be read up to where a former cut ended."""
        held = self._held
        for stream in list(self._pinned):
            if stream not in held or held[stream].pinned_end is None:
                del self._pinned[stream]
        return list(self._pinned)

    def pinned_ends(self) -> dict[str, int]:
        """Where the next cut must end in those of them that may be put into it."""
        return {
            stream: end
            for stream in self.pinned()
            if (one := self._held[stream]).is_granted and (end := one.pinned_end) is not None
        }

    def is_known_of_streams(self) -> bool:
        """Whether streams are held, and where they end is known."""
        held, lag = self.held_and_lag()
        return held > 0 and lag is not None

    def held_and_lag(self) -> tuple[int, int | None]:
        """How many streams are held, and how many messages wait in them; None while that is not known.

        From any thread.
        """
        if self._counted is None:
            own = [stream for stream, one in list(self._held.items()) if not one.limbo]
            self._counted = len(own), all(stream in self._ends for stream in own)
        held, known = self._counted
        return held, self._lag(list(self._behind)) if known else None

    def _lag(self, streams: Iterable[str]) -> int:
        lag = 0
        for stream in streams:
            one = self._held.get(stream)
            if one is not None and not one.limbo:
                lag += max(0, self._ends.get(stream, 0) - one.committed)
        return lag

    def ends(self) -> dict[str, int]:
        """The ends of the streams held, as far as known."""
        return {stream: end for stream, end in sorted(self._ends.items()) if self._is_held(stream)}

    def _is_held(self, stream: str) -> bool:
        one = self._held.get(stream)
        return one is not None and not one.limbo
