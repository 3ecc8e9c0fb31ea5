"""What a session says that it has seen, to leaders that may have lost it; no Redis, no leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlease.agent.membership.borrower_slot import SessionConfig
from streamlease.agent.membership.session import Session
from streamlease.borrower.attested import MOST_ATTESTED
from streamlease.borrower.life import BorrowerConfig
from streamlease.catalog.shown import Shown
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.messages import Grant, LeaderConnectResponse, LeaderWanted
from streamlease.protocol.topics import SharedSubscription

SUBSCRIPTION = SharedSubscription.parse("$shared/g/#")
S0 = "s.0.0"


class Agent:
    """Finds a leader at once, and keeps what is sent to it."""

    where = "here"

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.receivers: dict[str, Callable[[Any], None]] = {}
        self.ends: list[Callable[[StreamleaseError], None]] = []

    def post(self, receiver: str, message: Any) -> None:
        self.sent.append(message)

    @property
    def mail(self) -> Agent:
        return self

    @property
    def leaders(self) -> Agent:
        return self

    def find(self, group: str, found: Callable[[str, int], None]) -> None:
        found("leader", 0)

    def register(self, receiver: str, receive: Callable[[Any], None]) -> None:
        self.receivers[receiver] = receive

    def unregister(self, receiver: str) -> None:
        self.receivers.pop(receiver, None)

    def add_ticker(self, tick: Callable[[int], None]) -> None:
        """Nothing is due here."""

    def remove_ticker(self, tick: Callable[[int], None]) -> None:
        """Nothing is due here."""

    def add_session(self, group: str, end: Callable[[StreamleaseError], None]) -> None:
        self.ends.append(end)

    def remove_session(self, end: Callable[[StreamleaseError], None]) -> None:
        self.ends.remove(end)

    shown = Shown()


class Handler:
    """Takes everything and answers nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


class Led(Session):
    """A session of one slot, and its leader's side."""

    def __init__(self) -> None:
        self.agent = Agent()
        config = SessionConfig(SUBSCRIPTION, "s1", ("s1/0",), 1, BorrowerConfig())
        super().__init__(self.agent, config, Handler(), clock=lambda: 0)
        self.start()

    @property
    def wanted(self) -> LeaderWanted:
        return [message for message in self.agent.sent if isinstance(message, LeaderWanted)][-1]

    def connect(self, term: int) -> None:
        borrower = self.wanted.borrower
        answer = LeaderConnectResponse(group="g/#", borrower=borrower, term=term, leader="h")
        self.agent.receivers[borrower](answer)

    def grant(self, term: int, lease_epoch: int, progress: int) -> None:
        borrower = self.wanted.borrower
        grant = Grant(
            group="g/#", borrower=borrower, term=term, stream=S0, lease_epoch=lease_epoch, progress=progress
        )
        self.agent.receivers[borrower](grant)

    def attests(self) -> list[tuple[int, int]]:
        """What it tells the leader of the next term."""
        self.connect(self.term + 1)
        return [(entry.lease_epoch, entry.offset) for entry in self.wanted.attested]


def test_what_was_committed_before_a_reset_is_not_said_of_the_lease_that_follows_it() -> None:
    session = Led()
    session.connect(1)
    session.grant(1, lease_epoch=1, progress=0)
    session.attested.add(0, S0, 1, 11)
    session.grant(1, lease_epoch=3, progress=4)  # reset
    assert session.attests() == [(1, 11), (3, 4)]


def test_an_older_word_is_dropped_once_a_newer_lease_has_come_as_far() -> None:
    session = Led()
    session.connect(1)
    session.attested.add(0, S0, 1, 11)
    session.attested.add(0, S0, 3, 4)
    session.attested.add(0, S0, 3, 11)
    session.attested.add(0, S0, 1, 9)  # late
    assert session.attests() == [(3, 11)]


def test_of_many_resets_the_newest_are_remembered() -> None:
    session = Led()
    session.connect(1)
    for lease_epoch in range(1, 100):
        session.attested.add(0, S0, lease_epoch, 1000 - lease_epoch)
    newest = [(lease_epoch, 1000 - lease_epoch) for lease_epoch in range(1, 100)][-MOST_ATTESTED:]
    assert session.attests() == newest
