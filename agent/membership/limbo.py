"""Streams without a lease that may come back: after a leader's end the next one grants them anew.

Those that do not come back may be somebody else's: who waits for a commit learns it. One that nobody waits
for hands out no more, but is kept: if letters of the leader were lost, and it is granted after all, it goes
on where it was. After an error it must not: the program may have taken its work back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streamlease.agent.membership.session import Session
from streamlease.borrower.book import ConsumerBook, Held

LIMBO_SECONDS = 3.0
"""How long after the session is connected again a stream may still come back to it. The leader grants at once
what is to go on, and repeats that every second."""

LOOK_SECONDS = 1.0
"""So often it is looked what came back. A longer time between two looks counts as so much: a process that
stood still did not hear what came for it meanwhile."""


class CommitWaits(Protocol):
    """Knows who waits for commits."""

    session: Session | None

    def is_waited_for(self, held: Held) -> bool:
        """Whether somebody waits for an answer about this stream."""
        ...

    def lose(self, held: Held) -> None:
        """Nobody may wait for it any more."""
        ...


class Limbo:
    """The streams of one consumer that wait for a lease, and for how long they may.

    Args:
        restart: a stream is to be read again from what was handed out.
        gone: a stream does not come back.
        clock: seconds.
    """

    def __init__(
        self,
        book: ConsumerBook,
        waits: CommitWaits,
        restart: Callable[[Held], None],
        gone: Callable[[Held], None],
        clock: Callable[[], float],
    ) -> None:
        self._book = book
        self._waits = waits
        self._restart = restart
        self._gone = gone
        self._clock = clock
        self._looked_at: float | None = None

    @property
    def until_look(self) -> float:
        """Seconds until the next look."""
        return 0.0 if self._looked_at is None else LOOK_SECONDS - max(0.0, self._clock() - self._looked_at)

    def look(self, now: float) -> None:
        """Give up what did not come back in time, if it is time for a look."""
        if self._looked_at is not None and now - self._looked_at < LOOK_SECONDS:
            return
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, LOOK_SECONDS)
        self._looked_at = now
        session = self._waits.session
        if session is None:
            return
        for held in self._book.in_limbo():
            if not session.connected:
                held.waited = 0.0
                continue
            before, held.waited = held.waited, held.waited + passed
            if held.waited >= LIMBO_SECONDS and self._waits.is_waited_for(held):
                self._waits.lose(held)
                self._book.give_up(held)
                self._gone(held)
            elif before < LIMBO_SECONDS <= held.waited:
                self._restart(held)
