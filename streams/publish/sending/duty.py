"""Whose turn it is to send for a publisher: exactly one appends at a time, so a lane has one sequence.

======== ============================== ===========================================================
who      from                           until
======== ============================== ===========================================================
NOBODY                                  somebody has something to send
ROUNDS   NOBODY, once something is      nothing is left: NOBODY
         ready; LINE or THREAD, with
         what waited behind them
LINE     NOBODY, with a message that    it was appended, and nothing waits: NOBODY; else ROUNDS
         is awaited alone
THREAD   NOBODY, when it is lent        it is given back: NOBODY, or ROUNDS if something waits
ENDED    any                            for good
======== ============================== ===========================================================
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum, auto


class Who(Enum):
    """Who sends."""

    NOBODY = auto()
    ROUNDS = auto()
    LINE = auto()
    THREAD = auto()
    ENDED = auto()


class Duty:
    """Whose turn it is. All but :attr:`who` belongs to the event loop."""

    def __init__(self) -> None:
        self.who = Who.NOBODY
        self._work = asyncio.Event()
        self._loan = 0
        """The number of the last loan."""
        self._wanted: Callable[[], None] = _nobody

    # ------------------------------------------------------------ rounds

    def call(self) -> None:
        """Something is ready, or may be looked at again: rounds are due as soon as it is their turn."""
        if self.who is Who.NOBODY:
            self.who = Who.ROUNDS
        elif self.who is Who.THREAD:
            self._wanted()
        self._work.set()

    async def called(self) -> None:
        """Wait until it is the turn of rounds."""
        while self.who is not Who.ROUNDS:
            self._work.clear()
            await self._work.wait()

    async def called_again(self, until: float) -> None:
        """Within a round: wait for the next call, or until `until` on the clock of the event loop."""
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._work.wait()

    def rest(self) -> None:
        """The rounds left nothing."""
        self.who = Who.NOBODY

    # ------------------------------------------------------------ a line

    def begin_line(self) -> None:
        """Nobody sends, and from now on a line does."""
        self.who = Who.LINE

    def end_line(self, *, rounds: bool) -> None:
        """What was on the line has come to an end; `rounds`: something is left for these."""
        self._pass_on(rounds)

    # ------------------------------------------------------------ a thread

    def lend(self, wanted: Callable[[], None]) -> int:
        """Leave it to a thread, if nobody sends; the number of the loan, or 0.

        Args:
            wanted: called, on the event loop, when something is to be sent here: give the loan back.
        """
        if self.who is not Who.NOBODY:
            return 0
        self.who, self._wanted = Who.THREAD, wanted
        self._loan += 1
        return self._loan

    def has(self, loan: int) -> bool:
        """Whether a loan has not ended."""
        return self.who is Who.THREAD and self._loan == loan

    def end_loan(self, *, rounds: bool) -> None:
        """The thread sends no more; `rounds`: something is left for these."""
        self._wanted = _nobody
        self._pass_on(rounds)

    # ------------------------------------------------------------

    def end(self) -> None:
        """Nobody sends any more."""
        self.who = Who.ENDED

    def _pass_on(self, rounds: bool) -> None:
        if self.who is Who.ENDED:
            return
        self.who = Who.NOBODY
        if rounds:
            self.call()


def _nobody() -> None:
    """Nobody has a loan."""
