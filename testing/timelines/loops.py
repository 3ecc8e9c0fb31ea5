"""Processes with event loops of virtual time, all on one thread: the same seed gives the same run.

::

    with Timeline() as timeline:
        process = timeline.process("consumer")
        process.start(main())
        timeline.run(until=60.0)       # seconds of virtual time; takes as long as the work in them

An error that ends what was started, or that nobody caught, comes out of ``run``.

Each process has an event loop of its own, so it has a clock of its own (with a rate and an offset), can be
stopped and go on as if nothing had been, and can be killed: from one moment on none of its code runs. Time
passes only when no loop has anything left to do; then it jumps to the next timer of any of them. What happens
at one moment happens in a fixed order.

There are no sockets and no threads: what is handed to an executor is done at once, in its place.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any

from streamlease.protocol.errors import InvalidInput

RESOLUTION = 1e-6
AT_ONCE = 100_000
"""So many steps at one moment are a loop that never waits."""

AT_A_TURN = 1000
"""So many steps a loop makes before the others have their turn."""

BURIAL_SECONDS = 60.0

BEGAN_AT = 1_700_000_000.0
"""When worlds begin, in seconds since 1970."""


class BusyLoop(AssertionError):
    """Something happens again and again without any time passing."""


class Timeline:
    """The clock of the world, and what happens when.

    Args:
        raises: whether what goes wrong in a process comes out of `run`; else it is for the test to look.
    """

    def __init__(self, *, raises: bool = True) -> None:
        self.raises = raises
        self.failed: list[BaseException] = []
        """What is to come out of `run`."""
        self.now: float = 0.0
        """Seconds since the world began."""
        self.turns = 0
        self.processes: list[Process] = []
        self.living: list[Process] = []
        """Those that were not killed, in the order in which they began."""
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()
        _Task.number = 0  # where a task stands in a set depends on it

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, *about: object) -> None:
        self.end()

    def process(self, name: str, rate: float = 1.0, offset: float = 0.0) -> Process:
        """A new process; its clock goes `rate` times as fast as the world's, and is `offset` s ahead.

        Raises:
            InvalidInput: its clock would stand still, or go backwards.
        """
        if not rate > 0:
            raise InvalidInput(f"the clock of process {name} goes at the rate {rate}: give a number above 0")
        process = Process(self, name, rate, offset)
        self.processes.append(process)
        self.living.append(process)
        return process

    def clock(self) -> float:
        """Seconds since 1970, for servers: a `MemoryServer` is given this."""
        return BEGAN_AT + self.now

    def after(self, seconds: float, act: Callable[[], None]) -> Event:
        """Do `act` in so many seconds, whatever becomes of any process."""
        event = Event(act)
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))
        return event

    def run(self, until: float, done: Callable[[], bool] | None = None, every: float = 0.1) -> bool:
        """Let things happen up to the time `until`; whether `done` came true, which is asked now and then.

        Raises:
            BusyLoop: time does not pass.
            What ended something that was started, or was not caught, at once.
        """
        ask_at = self.now
        at_once, moment = 0, self.now
        while True:
            at, process = self._next()
            if at > until:
                break
            if at > moment:
                at_once, moment = 0, at
                self.now = at
            self.turns += 1
            if process is not None:
                at_once += process.loop.turn()
            else:
                at_once += 1
                heapq.heappop(self._events)[2].happen()
            if self.failed:
                raise self.failed.pop(0)
            if at_once > AT_ONCE:
                raise BusyLoop(f"{process.name if process else 'the world'} never waits at {self.now:.3f} s")
            if done is not None and self.now >= ask_at:
                if done():
                    return True
                ask_at = self.now + every
        self.now = max(self.now, until)
        return done is not None and done()

    def _next(self) -> tuple[float, Process | None]:
        """When something happens next, and whose turn it is then."""
        events, now = self._events, self.now
        while events and events[0][2].is_cancelled:
            heapq.heappop(events)
        best = events[0][0] if events else float("inf")
        chosen: Process | None = None
        for process in self.living:
            loop = process.loop
            at = now if loop._ready else loop.wakes_at()
            if at < best and (at := max(at, process.paused_until)) < best:
                best, chosen = at, process
        return (best if best > now else now), chosen

    def end(self) -> None:
        """End all that still runs in any process, the killed ones too, and forget it.

        So no coroutine is left that Python would end by itself, at a moment that nobody knows.
        """
        self.living = list(self.processes)
        self.raises = False
        for process in self.processes:
            process.bury()
        self._events.clear()
        try:
            self.run(self.now + BURIAL_SECONDS, lambda: not any(p.loop.tasks for p in self.processes))
        finally:
            for process in self.processes:
                process.loop.forget()


class Event:
    """Something that is to happen."""

    __slots__ = ("_act", "is_cancelled")

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.is_cancelled = False

    def cancel(self) -> None:
        """Let it not happen."""
        self.is_cancelled = True

    def happen(self) -> None:
        """It happens."""
        self._act()


class Process:
    """One process of an operating system."""

    def __init__(self, timeline: Timeline, name: str, rate: float, offset: float) -> None:
        self.timeline = timeline
        self.name = name
        self.rate = rate
        self.offset = offset
        self.alive = True
        self.paused_until = 0.0
        self.ends: list[Callable[[], None]] = []
        """What happens at its end, whatever ends it."""
        self.loop = VirtualLoop(self)

    def clock(self) -> float:
        """Seconds of its own clock."""
        return self.timeline.now * self.rate + self.offset

    def start(self, work: Coroutine[Any, Any, Any], name: str = "main") -> asyncio.Task[Any]:
        """Let it do `work`, beside what it does already."""
        task = self.loop.create_task(work, name=f"{self.name}: {name}")
        if self.timeline.raises:
            task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """It went wrong, and nobody caught that."""
        if self.timeline.raises:
            error.add_note(f"in process {self.name}, {self.timeline.now:.3f} s after the world began")
            self.timeline.failed.append(error)

    def pause(self, seconds: float) -> None:
        """Stop it for a while; what waits for it then comes all at once."""
        self.paused_until = max(self.paused_until, self.timeline.now + seconds)

    def kill(self) -> None:
        """None of its code runs from now on."""
        if self.alive:
            self.alive = False
            self.timeline.living.remove(self)
            for act in self.ends:
                act()

    def bury(self) -> None:
        """Let what it was about end, now that nobody looks any more."""
        self.alive = True
        self.paused_until = 0.0
        for task in list(self.loop.tasks):
            task.cancel()


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _NoSelector:
    """There is nothing to wait for: time jumps."""

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def close(self) -> None:
        return None


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one process; the timeline gives it its turns."""

    _selector: Any
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process
        """That it runs."""
        self._selector = _NoSelector()
        self._clock_resolution = RESOLUTION
        self._first: tuple[asyncio.TimerHandle | None, float] = (None, float("inf"))
        """The next timer, and when that is in seconds of the world."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Those that have not ended, in the order in which they began."""
        self.troubles: list[dict[str, Any]] = []
        """What nobody caught."""
        self.set_task_factory(self._new_task)
        self.set_exception_handler(lambda loop, context: self._uncaught(context))

    def time(self) -> float:
        """Seconds of the process' own clock."""
        process = self.process
        return process.timeline.now * process.rate + process.offset

    def _uncaught(self, context: dict[str, Any]) -> None:
        self.troubles.append(context)
        if (error := context.get("exception")) is not None:
            self.process.fail(error)

    def wakes_at(self) -> float:
        """When its next timer is due, in seconds of the world."""
        timer = self._scheduled[0] if self._scheduled else None
        if timer is not self._first[0]:
            process, at = self.process, float("inf")
            if timer is not None:
                # A moment later than due: clocks are rounded, and a loop that is early by that would wait for
                # ever.
                at = (timer.when() - process.offset) / process.rate + RESOLUTION / 1000
            self._first = timer, at
        return self._first[1]

    def turn(self) -> int:
        """Do what is to be done now; how many steps that took."""
        timers, ready = self._scheduled, self._ready
        due = self.time() + RESOLUTION
        steps = 0
        around = events._get_running_loop()  # that of a test which is a coroutine
        events._set_running_loop(self)
        try:
            while timers and timers[0].when() < due:
                ready.append(self._taken())
            while ready and steps < AT_A_TURN:
                steps += 1
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(around)
        while timers and timers[0].cancelled():
            self._taken()
        return steps

    def _taken(self) -> asyncio.TimerHandle:
        """The next timer, which is none any more."""
        timer: Any = heapq.heappop(self._scheduled)
        timer._scheduled = False
        return timer  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Nothing is left to be done."""
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        _Task.number += 1
        task = _Task(work, loop=self, context=context, **options)
        task.number = _Task.number
        self.tasks[task] = None
        task.add_done_callback(lambda ended: self.tasks.pop(ended, None))
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do it at once."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It leaves when its time comes, or when it is the next."""

    def _process_events(self, event_list: list[Any]) -> None:
        return None

    def _write_to_self(self) -> None:
        return None
