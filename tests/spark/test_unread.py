"""Looking only at streams that changed finds just what a look at all of them would find."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamlease.borrower.book import Held
from streamlease.borrower.lease import StreamEvent
from streamlease.spark.core.unread import UnreadMessages

stream = st.sampled_from(["s.0.0", "s.0.1", "s.0.2"])
offset = st.integers(0, 8)


class Streams(RuleBasedStateMachine):
    """The streams of a query, beside the plainest way to say what waits in them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, Held] = {}
        self.streams = UnreadMessages(self.held)
        self.ends: dict[str, int] = {}
        self.most: dict[str, int] | None = None

    @initialize(most=st.none() | st.dictionaries(stream, offset))
    def begin(self, most: dict[str, int] | None) -> None:
        self.most = most

    @rule(stream=stream, committed=offset, pinned=st.none() | offset)
    def hold(self, stream: str, committed: int, pinned: int | None) -> None:
        end = pinned if pinned is not None and pinned > committed else None
        self.held[stream] = Held.begin(0, stream, 1, committed)
        self.held[stream].pinned_end = end
        self.streams.look_at(stream)

    @rule(stream=stream)
    def drop(self, stream: str) -> None:
        if self.held.pop(stream, None) is not None:
            self.streams.look_at(stream)

    @rule(stream=stream, end=st.none() | offset)
    def end(self, stream: str, end: int | None) -> None:
        self.streams.ends_at(stream, end)
        self.ends.pop(stream, None)
        if end is not None:
            self.ends[stream] = end

    @rule(stream=stream, to=offset)
    def commit(self, stream: str, to: int) -> None:
        if stream in self.held:
            former = self.held[stream].committed
            self.held[stream].follow(to)
            if to < former:
                self.streams.look_at(stream)  # as `QueryCuts.believe` does

    @rule(stream=stream)
    def revoke(self, stream: str) -> None:
        if stream in self.held:
            self.held[stream].lease.move(StreamEvent.REVOKE)

    @rule(stream=stream)
    def end_of_its_borrower(self, stream: str) -> None:
        if stream in self.held:
            self.held[stream].lease.move(StreamEvent.ENDED)
            self.streams.look_at(stream)

    @rule()
    def forget(self) -> None:
        self.streams.forget_ends()
        self.ends = {stream: end for stream, end in self.ends.items() if stream in self.held}

    @invariant()
    def what_waits(self) -> None:
        ends = self.ends if self.most is None else self.most
        assert self.streams.counts(self.most) == self._waiting(ends)
        pinned = {
            stream: one.pinned_end
            for stream, one in self.held.items()
            if one.pinned_end is not None and not (one.revoking or one.limbo)
        }
        assert self.streams.pinned_ends() == pinned

    @invariant()
    def what_is_reported(self) -> None:
        own = {stream: one for stream, one in self.held.items() if not one.limbo}
        lag: int | None = None
        if own.keys() <= self.ends.keys():
            lag = sum(max(0, self.ends[stream] - one.committed) for stream, one in own.items())
        assert self.streams.held_and_lag() == (len(own), lag)
        assert self.streams.ends() == {s: end for s, end in self.ends.items() if s in own}

    def _waiting(self, ends: dict[str, int]) -> dict[str, int]:
        return {
            stream: ends.get(stream, 0) - one.committed
            for stream, one in self.held.items()
            if ends.get(stream, 0) > one.committed
            and not (one.revoking or one.limbo or one.pinned_end is not None)
        }


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)
