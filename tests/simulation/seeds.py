"""One seed after the other, by one process or several: what came of each.

It is not in the module of the command, because a process that is spawned for it cannot find what is in a
``__main__`` of a package.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from tests.simulation.simulated import SimulatedWorld

TWICE = 20
"""Every seed that this divides is run twice."""

TAIL = 40
"""So many lines of the transcript of a seed that failed are shown."""


def rig(package: str) -> tuple[Callable[[int], SimulatedWorld], dict[str, Callable[[], Any]]]:
    """How a rig runs a seed, and the bugs that can be planted for it."""
    world, bugs = (import_module(f"{package}.{module}") for module in ("world", "bugs"))
    return world.run, bugs.PLANTED


@dataclass
class Outcome:
    """Of one seed, or of many."""

    seeds: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    """What a kind of world counts; ``virtual`` are seconds of virtual time."""
    processor: float = 0.0
    """Seconds of processor time."""
    sometimes: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    """What is to be told of each seed that failed."""

    def add(self, other: Outcome) -> None:
        """Count what another one has."""
        self.seeds += other.seeds
        self.figures += other.figures
        self.processor += other.processor
        self.sometimes += other.sometimes
        self.failed |= other.failed


def outcome_of(seed: int, package: str, bug: str | None = None) -> Outcome:
    """Run one seed of the rig in that package."""
    run, planted = rig(package)
    outcome, began = Outcome(seeds=1), time.process_time()
    try:
        with planted[bug]() if bug else nullcontext():
            world = run(seed)
            if seed % TWICE == 0 and run(seed).kernel.digest() != world.kernel.digest():
                outcome.failed[seed] = f"seed {seed} failed: its transcript differs from run to run"
    except Exception as error:
        failed: SimulatedWorld = error.world  # type: ignore[attr-defined]
        lines = failed.kernel.transcript()[-TAIL:]
        outcome.failed[seed] = "\n".join([*lines, f"seed {seed} failed: {type(error).__name__}: {error}"])
    else:
        outcome.figures, outcome.sometimes = world.figures(), world.sometimes
    outcome.processor = time.process_time() - began
    return outcome


@contextmanager
def outcomes(package: str, seeds: range, jobs: int, bug: str | None) -> Iterator[Iterator[Outcome]]:
    """Run seeds, by so many processes."""
    if jobs == 1:
        yield (outcome_of(seed, package, bug) for seed in seeds)
        return
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    try:
        yield pool.map(partial(outcome_of, package=package, bug=bug), seeds, chunksize=5)
    finally:
        pool.shutdown(cancel_futures=True)
