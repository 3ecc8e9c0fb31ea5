"""Virtual time, one queue of events, and processes that may be slow, stopped or dead.

Everything that happens is one event of one queue, in the order of (time, number): the same seed gives the
same run. A process has a clock of its own, with a rate and an offset. While it is paused its events wait, and
come all at once, late and in their order, when it goes on, as for a process that was stopped by a signal.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Generator
from typing import Any

Wait = Any
"""What a routine yields: milliseconds of its own clock, or a function that is given its `Task`."""

Done = Callable[[Any, BaseException | None], None]
"""Is told the result of a routine, or the error that ended it."""

Routine = Generator[Wait, Any, Any]


class Kernel:
    """The queue of events, the clock of the world, its randomness, and what is written down about it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.events = 0
        self.notes: list[tuple[int, str, tuple[Any, ...]]] = []
        self._queue: list[tuple[int, int, Process | None, Callable[[], None]]] = []
        self._number = 0

    def at(self, time: int, act: Callable[[], None], process: Process | None = None) -> None:
        """Do `act` at `time`, if `process` lives then."""
        self._number += 1
        heapq.heappush(self._queue, (time if time > self.now else self.now, self._number, process, act))

    def after(self, ms: int, act: Callable[[], None]) -> None:
        """Do `act` in `ms`."""
        self.at(self.now + ms, act)

    def run(self, until: int, done: Callable[[], bool] | None = None) -> bool:
        """Let things happen up to the time `until`; whether `done` came true, which is asked every 100 ms."""
        ask_at = self.now
        while self._queue and self._queue[0][0] <= until:
            time, number, process, act = heapq.heappop(self._queue)
            self.now = max(self.now, time)
            if process is not None:
                if not process.alive:
                    continue
                if process.paused_until > self.now:
                    heapq.heappush(self._queue, (process.paused_until, number, process, act))
                    continue
            self.events += 1
            act()
            if done is not None and self.now >= ask_at:
                if done():
                    return True
                ask_at = self.now + 100
        self.now = max(self.now, until)
        return done is not None and done()

    def note(self, who: str, *what: Any) -> None:
        """Write down that something happened. Nothing that changes later may be handed in."""
        self.notes.append((self.now, who, what))

    def transcript(self) -> list[str]:
        """What happened, one line each."""
        return [f"{now:>8} {who:<12} {' '.join(map(str, what))}" for now, who, what in self.notes]

    def digest(self) -> str:
        """Tells two transcripts apart."""
        return hashlib.blake2b("\n".join(self.transcript()).encode(), digest_size=16).hexdigest()

    def token(self) -> str:
        """A fresh token, the same in every run of the seed."""
        return f"{self.random.getrandbits(48):012x}"

    def chance(self, probability: float) -> bool:
        """Whether something of that probability happens."""
        return probability > 0 and self.random.random() < probability


class Process:
    """One process of an operating system."""

    def __init__(self, kernel: Kernel, name: str, rate: float = 1.0, offset: int = 0) -> None:
        self.kernel = kernel
        self.name = name
        self.rate = rate
        self.offset = offset
        self.alive = True
        self.paused_until = 0
        self.cut_off_until = 0
        self.ends: list[Callable[[], None]] = []
        """What happens at its end, whatever ends it."""

    def clock(self) -> int:
        """Milliseconds of its own clock."""
        return int(self.kernel.now * self.rate) + self.offset

    def after(self, ms: int, act: Callable[[], None]) -> None:
        """Do `act` in `ms` of its own clock."""
        self.kernel.at(self.kernel.now + (ms if self.rate == 1.0 else round(ms / self.rate)), act, self)

    def pause(self, ms: int) -> None:
        """Stop it for a while."""
        self.paused_until = max(self.paused_until, self.kernel.now + ms)

    def cut_off(self, ms: int) -> None:
        """Nothing that it sends arrives, and no answer either."""
        self.cut_off_until = max(self.cut_off_until, self.kernel.now + ms)

    @property
    def is_cut_off(self) -> bool:
        """Whether it cannot reach the store now."""
        return self.cut_off_until > self.kernel.now

    def end(self) -> None:
        """It is gone at once, and says nothing more."""
        if self.alive:
            self.alive = False
            for act in self.ends:
                act()

    def start(self, routine: Routine, done: Done | None = None) -> Task:
        """Begin a routine in this process."""
        task = Task(self, routine, done)
        task.resume()
        return task


class Task:
    """One routine under way. An error that it does not catch, and that nobody waits for, is a defect."""

    def __init__(self, process: Process, routine: Routine, done: Done | None) -> None:
        self.process = process
        self.over = False
        self._routine = routine
        self._done = done
        self._busy = False

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Go on with what was waited for."""
        if self.over or not self.process.alive:
            return
        self._busy = True
        try:
            wait = self._routine.throw(error) if error is not None else self._routine.send(value)
        except StopIteration as stopped:
            self._finish(stopped.value, None)
            return
        except Exception as failed:
            if self._done is None:
                raise
            self._finish(None, failed)
            return
        finally:
            self._busy = False
        if self.over:
            self._routine.close()
        elif isinstance(wait, int | float):
            self.process.after(wait, self.resume)
        else:
            wait(self)

    def cancel(self) -> None:
        """Stop it where it waits."""
        if not self.over:
            self.over = True
            if not self._busy:
                self._routine.close()

    def _finish(self, value: Any, error: BaseException | None) -> None:
        if not self.over:
            self.over = True
            if self._done is not None:
                self._done(value, error)
