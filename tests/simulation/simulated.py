"""What both rigs share: a server in memory, processes in virtual time, faults, and who notices defects.

A rig is a world of its own kind (`tests.simulation.world`, `tests.simulation.epochs.world`): it says what
lives there, what happens, and what must be true. Here stands how a seed is run, and what is wrong in any
world: a defect that the product itself logs, an error that nobody caught, a coroutine that nobody awaited, a
warning, a loop that never waits.
"""

from __future__ import annotations

import gc
import logging
import random
import secrets
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar
from unittest import mock

from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.timelines.loops import BusyLoop, Process, Timeline
from tests.simulation.archive.threads import this_thread
from tests.simulation.judge import Violation
from tests.simulation.kernel import Kernel
from tests.simulation.network import Faults, FaultyLine

LIVE_SECONDS = 120.0
"""Within so much time after the last fault everything must be well."""

BEGAN_AT = 1_000_000.0

DRAWS = (
    "random",
    "uniform",
    "randint",
    "randrange",
    "choice",
    "sample",
    "shuffle",
    "getrandbits",
    "expovariate",
)
"""How the product, and the packages that it uses, draw random numbers."""


class SimulatedWorld:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.drawn = random.Random(seed)
        """What the product draws from."""
        self.timeline = Timeline(raises=False)  # what goes wrong is a defect (`_look_for_defects`)
        self.kernel = Kernel(seed, self.timeline)
        self.random = self.kernel.random
        self.sometimes: Counter[str] = Counter()
        self.faults = Faults()
        self.server = MemoryServer(lambda: BEGAN_AT + self.timeline.now, replicated=True)
        self.defects: list[str] = []
        """What the product itself calls one, or what nobody caught."""
        self.causes: list[BaseException | None] = []
        self.healing = False
        self.over = False
        self.why = ""
        """Why not all is well."""
        self._down_until = 0.0
        self._processes = 0

    # ------------------------------------------------------------ what a kind of world says

    def course(self) -> None:
        """What happens, from the beginning until all is well.

        Raises:
            Violation: an invariant does not hold.
        """
        raise NotImplementedError

    def watched(self) -> AbstractContextManager[None]:
        """What is looked at, or happens more often than in production, for as long as it runs."""
        raise NotImplementedError

    def figures(self) -> Counter[str]:
        """What there was of it, for a summary of many seeds."""
        raise NotImplementedError

    def own_defects(self) -> Iterator[str]:
        """Further defects, looked for all the time."""
        return iter(())

    def rate(self) -> float:
        """How fast the clock of the next process goes."""
        return 1.0

    # ------------------------------------------------------------ processes and the store

    @property
    def down(self) -> bool:
        """Whether the store answers nothing now."""
        return self._down_until > self.timeline.now

    def be_down(self, seconds: float) -> None:
        """The store answers nothing for so long."""
        self._down_until = self.timeline.now + seconds

    def process(self, kind: str) -> tuple[Process, FaultyLine]:
        """A new process and its line."""
        self._processes += 1
        rate = self.rate()
        process = self.timeline.process(f"{kind}{self._processes}", rate, self.random.randint(0, 10**5))
        line = FaultyLine(self, process)
        process.ends.append(lambda: line.cut_off(1e9))
        return process, line

    def crash(self, process: Process) -> None:
        """The process is killed."""
        if process.alive and not self.over:
            self.kernel.note(process.name, "is killed")
            process.kill()

    def stop_faults(self) -> None:
        """Nothing goes wrong any more."""
        self.kernel.note("world", "heals")
        self.healing = True
        self.faults.stop()
        self._down_until = 0.0

    # ------------------------------------------------------------ a run

    def run(self) -> None:
        """Everything, from the beginning to the end.

        Raises:
            Violation: an invariant does not hold.
        """
        gc.disable()  # next to nothing here is cyclic, and looking for it takes a tenth of the time
        try:
            with seeded(self), self.watched(), defects_noted(self):
                try:
                    self.course()
                finally:
                    self.over = True
                    self.timeline.end()
                if self.defects:
                    raise Violation(self.defects[0])
        finally:
            gc.enable()

    def until(self, at: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen up to that time; whether `done` came true."""

        def look() -> bool:
            self._look_for_defects()
            return done()

        try:
            return self.timeline.run(at, look)
        except BusyLoop as busy:
            raise Violation(str(busy)) from None
        finally:
            self._look_for_defects()

    def becomes_well(self, is_well: Callable[[], bool]) -> None:
        """Let things happen until all is well.

        Raises:
            Violation: that takes too long.
        """
        if not self.until(self.timeline.now + LIVE_SECONDS, is_well):
            raise Violation(f"not well within {LIVE_SECONDS:.0f} s after the last fault: {self.why}")

    def _look_for_defects(self) -> None:
        """A defect that the product itself noticed, or that nobody did; the judge's own word comes first."""
        for cause in self.causes:
            if isinstance(cause, Violation):
                raise cause
        for process in self.timeline.processes:
            for trouble in process.loop.troubles:
                error = trouble.get("exception")
                if isinstance(error, Violation):
                    raise error
                self.defects.append(f"{process.name}: {trouble.get('message')}: {error!r}")
            process.loop.troubles.clear()
        self.defects += self.own_defects()
        if self.defects:
            raise Violation(self.defects[0])


@contextmanager
def seeded(world: SimulatedWorld) -> Iterator[None]:
    """The product draws its random numbers from the seed.

    Other threads, such as a test before this one may have left, draw theirs from elsewhere, and tokens too:
    what they took, the world would miss.
    """
    here = threading.get_ident()

    def split(own: Callable[..., Any], others: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*about: Any, **more: Any) -> Any:
            is_own = threading.get_ident() == here or this_thread() is not None
            return (own if is_own else others)(*about, **more)

        return draw

    with ExitStack() as stack:
        token = split(lambda size=16: world.random.randbytes(size).hex(), secrets.token_hex)
        stack.enter_context(mock.patch.object(secrets, "token_hex", token))
        state = random.getstate()
        stack.callback(random.setstate, state)
        random.seed(world.seed)  # for whatever draws in another way
        for name in DRAWS:
            drawn = split(getattr(world.drawn, name), getattr(random, name))
            stack.enter_context(mock.patch.object(random, name, drawn))
        yield


@contextmanager
def defects_noted(world: SimulatedWorld) -> Iterator[None]:
    """What the product logs as an error, what Python can tell nobody, and any warning, is a defect."""
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(warnings.catch_warnings())
        warnings.simplefilter("error")
        enter(mock.patch.object(sys, "unraisablehook", lambda raised: _note_unraisable(world, raised)))
        handler = _Defects(world)
        logger = logging.getLogger("streamlease")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        stack.callback(logger.removeHandler, handler)
        stack.callback(setattr, logger, "propagate", propagate)
        stack.callback(logger.setLevel, level)
        yield


def _note_unraisable(world: SimulatedWorld, raised: Any) -> None:
    """What Python can tell nobody is a defect: a coroutine that was never awaited, say."""
    world.defects.append(f"{raised.err_msg or 'nobody can be told'}: {raised.exc_value!r}")


class _Defects(logging.Handler):
    """What the product itself calls a defect is one here."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it for the next look at the world."""
        if record.exc_info and not self._world.over:
            cause = record.exc_info[1]
            self._world.defects.append(f"{record.getMessage()}: {cause!r}")
            self._world.causes.append(cause)


W = TypeVar("W", bound=SimulatedWorld)


def run_world(world: W) -> W:
    """Run a world.

    Raises:
        Violation: an invariant does not hold; the world is in its `world` attribute.
    """
    try:
        world.run()
    except Exception as error:
        error.world = world  # type: ignore[attr-defined]
        raise
    return world
