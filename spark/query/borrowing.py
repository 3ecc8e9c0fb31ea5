"""What a query has from its beginning to its end: a session that borrows, and a watch on what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from streamlease.agent.client import Client
from streamlease.agent.membership.agent import Agent
from streamlease.agent.membership.borrower_slot import SessionConfig
from streamlease.agent.membership.session import Session
from streamlease.borrower.book import Held
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.life import BorrowerConfig
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import CutRead, LeaderToSession
from streamlease.spark.core import query_events as q
from streamlease.spark.options import SourceOptions

WATCH_SECONDS = 0.005
"""Many grants in a row make one new set of streams that are watched."""

Step = Callable[[q.Event], None]


class SessionEvents:
    """The handler of the session: what it is told are events of the machine."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """A stream came."""
        self._step(q.StreamCame(slot, grant))

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """Cuts are acknowledged on their own."""

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """A query fails as a whole, by itself: it reports no single message."""

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """A stream is asked back."""
        self._step(revoking)

    def gone(self, slot: int, gone: StreamGone) -> None:
        """A stream is the borrower's no more."""
        self._step(gone)

    def received(self, message: LeaderToSession | CutRead) -> None:
        """Answers about cuts, and reports of tasks."""
        self._step(q.Heard(message))

    def failed(self, error: StreamleaseError) -> None:
        """The session is over."""
        self._step(q.SessionOver(error))

    def ended(self) -> None:
        """The session has left."""
        self._step(q.SessionOver())


class Borrowing:
    """The session of a query and its watch.

    Args:
        held: the streams that the query holds.
        step: takes an event of the session, and may raise: a defect ends the session.
        surely: takes any other event, and never raises.
    """

    def __init__(
        self,
        client: Client,
        agent: Agent,
        options: SourceOptions,
        opening: q.OpenSession,
        held: Mapping[str, Held],
        step: Step,
        surely: Step,
    ) -> None:
        self._agent = agent
        self._group = options.subscription.id
        self._held = held
        self._surely = surely
        self._tails = client.tails.watch(self._tail_moved)
        self._watching: asyncio.TimerHandle | None = None
        self.session = Session(
            agent,
            SessionConfig(
                options.subscription,
                opening.session,
                tuple(f"{opening.session}/{slot}" for slot in range(options.slots)),
                opening.arrival,
                BorrowerConfig(session_timeout=options.session_timeout_ms),
                options.query_name,
            ),
            SessionEvents(step),
        )
        agent.mail.saw_term(self._group, opening.term)

    def start(self) -> None:
        """Begin to borrow."""
        self.session.start()
        self._agent.add_ticker(self._tick)

    def close(self) -> None:
        """Watch no more."""
        self._agent.remove_ticker(self._tick)
        if self._watching is not None:
            self._watching.cancel()
        self._tails.close()

    def around(self) -> q.Surroundings:
        """What is seen of the leader and of Redis."""
        led = self.session.connected
        trouble = "" if led else self._agent.leaders.trouble(self._group)
        return q.Surroundings(led, self.session.term, trouble, self._tails.error)

    def watch_ends(self) -> None:
        """Watch the ends of the streams that are held now, in a moment."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._watch_now)

    def attest(self, attest: q.Attest) -> None:
        """Keep for a leader that has lost it how far the streams of a cut are consumed."""
        streams, lease_epochs, starts, ends = attest.ranges.columns
        self.session.attested.add_cut(streams, lease_epochs, ends if attest.finished else starts)

    def _watch_now(self) -> None:
        self._watching = None
        self._tails.set_streams([StreamId.parse(stream) for stream in self._held])
        self._surely(q.EndsWatched())

    def _tail_moved(self, stream: StreamId, next: int | None) -> None:
        self._surely(q.EndMoved(str(stream), next))

    def _tick(self, now: int) -> None:
        lowered = frozenset(map(str, self._tails.lowered))
        self._tails.lowered.clear()
        self._surely(q.Moment(lowered))
