"""What waits for one leader until it takes its next turn: bounded, however long that is.

A leader that cannot make its commits durable takes no turns, and borrowers, who hear nothing, say everything
again: their whole progress twice a second, for hours if need be. The protocol bears that a message is lost
if a later one says the same, so what is superseded while it waits is left out:

* progress is joined with what waits of the same borrower, the newest offset of each lease, at its place;
* a repetition of what waits (a ping, a failure, an operator's act, a finished revoke) adds nothing;
* of a name's requests to be connected, of a session's words about its cuts, and of listings, only the newest
  stays, at its own place: what a former borrower of that name said as it left is taken before.

The order of what one borrower says stays as it was: progress is not joined across anything else it said.
What waits is so bounded by what there is: names, leases, open failures, sessions. Beyond `MOST` a message is
dropped, as if it were lost on its way; what the host itself says never is.

Letters of neighbours come here at once (`registry/mail/neighbours.py`), all others by the host's mailbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from itertools import count
from typing import assert_never

from streamlease.leader.core.events import (
    DeadLetterRefused,
    DeadLetterWritten,
    Event,
    LeasesWritten,
    Measured,
    Received,
    Recovered,
    StepDownWanted,
    StreamsListed,
    Tick,
)
from streamlease.protocol.messages import (
    Command,
    Disconnect,
    FinishCut,
    FixCut,
    LeaderWanted,
    MessageFailed,
    Ping,
    Progress,
    ResumeCut,
    RevokeFinished,
    ToLeader,
    UpdateProgress,
)
from streamlease.registry.mail.mailbox import Letter

log = logging.getLogger(__name__)

MOST = 50_000
"""Messages that wait at most. A group of 100,000 streams hands each of them over in one message."""


class Waiting:
    """The events of the leader of `group`, in the order in which it takes them."""

    def __init__(self, group: str, most: int = MOST) -> None:
        self._group = group
        self.dropped = 0
        """Messages for which there was no room."""
        self._most = most
        self._events: dict[Hashable, Event] = {}
        self._said: dict[str, int] = {}
        """By borrower: how often it said, since the last turn, what progress may not be joined across."""
        self._joined: dict[Hashable, dict[tuple[str, int], Progress]] = {}
        """By key: what several messages say of progress, an entry for each lease."""
        self._numbers = count()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._events)

    def hear(self, letter: Letter) -> None:
        """Let what a neighbour says wait."""
        if isinstance(letter.message, ToLeader):
            self.put(Received(letter.sender, letter.message))
        else:
            log.warning("leader of %s got a %s, which is for others", self._group, letter.message.type)

    def put(self, event: Event) -> bool:
        """Let an event wait; False if there is no room for it."""
        match event:
            case Received(sender, message):
                if not self._received(sender, message):
                    return False
            case StreamsListed():
                self._events.pop("listed", None)
                self._events["listed"] = event
            case Measured():
                before = self._events.pop("measured", None)
                ends = {**before.ends, **event.ends} if isinstance(before, Measured) else event.ends
                self._events["measured"] = Measured(ends, event.at)
            case DeadLetterRefused():
                self._events["refused", event.stream] = event
            case DeadLetterWritten() | LeasesWritten() | Recovered() | StepDownWanted() | Tick():
                self._events[next(self._numbers)] = event
            case _:
                assert_never(event)
        self._some.set()
        return True

    async def take(self) -> list[Event]:
        """All that waits, as soon as there is something."""
        await self._some.wait()
        self._some.clear()
        for key, progress in self._joined.items():
            self._events[key] = _saying(self._events[key], progress)
        events = list(self._events.values())
        self._events.clear()
        self._joined.clear()
        self._said.clear()
        return events

    def _received(self, sender: str, message: ToLeader) -> bool:
        key = self._key(message)
        before = self._events.get(key)
        if before is None:
            if len(self._events) >= self._most:
                if not self.dropped:
                    log.warning("leader of %s has no room for more messages: they count as lost", self._group)
                self.dropped += 1
                return False
            if isinstance(message, RevokeFinished | MessageFailed | Disconnect):
                self._said[message.borrower] = self._said.get(message.borrower, 0) + 1
        elif isinstance(before, Received):
            if isinstance(message, UpdateProgress):
                if key not in self._joined:
                    _join(self._joined.setdefault(key, {}), before.message)
                _join(self._joined[key], message)
            elif _is_newer(before.message, message):
                del self._events[key]
            elif not isinstance(message, LeaderWanted) or not _is_repeated(before.message, message):
                return True
        self._events[key] = Received(sender, message)
        return True

    def _key(self, message: ToLeader) -> Hashable:
        kind = message.type
        match message:
            case UpdateProgress():
                return kind, message.borrower, self._said.get(message.borrower, 0)
            case Ping() | Disconnect():
                return kind, message.borrower
            case RevokeFinished():
                return kind, message.borrower, message.stream, message.lease_epoch
            case MessageFailed():
                return kind, message.borrower, message.failure
            case LeaderWanted():
                return kind, message.name
            case FixCut() | FinishCut() | ResumeCut():
                return kind, message.session
            case Command():
                return kind, message.request
            case _:
                assert_never(message)


def _is_newer(before: ToLeader, after: ToLeader) -> bool:
    """Whether `after` says something else than `before`, which has the same key. Pure."""
    return _order(after) > _order(before)


def _order(message: ToLeader) -> tuple[int, ...]:
    """Rises with what is said under one key; empty if what is said under it is always the same."""
    match message:
        case LeaderWanted():
            return message.arrival, message.attempt
        case FixCut():
            return message.arrival, message.cut, message.proposal
        case FinishCut():
            return message.arrival, message.finished
        case ResumeCut():
            return message.arrival, message.cut
        case Ping() | UpdateProgress() | RevokeFinished() | MessageFailed() | Disconnect() | Command():
            return ()
        case _:
            assert_never(message)


def _is_repeated(before: ToLeader, after: LeaderWanted) -> bool:
    """Whether one borrower asks again; it may attest more by now. Pure."""
    return isinstance(before, LeaderWanted) and before.borrower == after.borrower


def _join(found: dict[tuple[str, int], Progress], message: ToLeader) -> None:
    """Add what a message says of progress: of each lease the newest offset, and all else that is said."""
    assert isinstance(message, UpdateProgress)
    for entry in message.progress:
        lease = entry.stream, entry.lease_epoch
        known = found.get(lease)
        if known is None or known == entry:
            found[lease] = entry
            continue
        found[lease] = entry.model_copy(
            update={
                "offset": max(known.offset, entry.offset),
                "final": known.final or entry.final,
                "holes": tuple(sorted({*known.holes, *entry.holes})),
            }
        )


def _saying(event: Event, progress: dict[tuple[str, int], Progress]) -> Event:
    """The newest message of a borrower, with all its progress."""
    assert isinstance(event, Received)
    return Received(event.sender, event.message.model_copy(update={"progress": tuple(progress.values())}))
