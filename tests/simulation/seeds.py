"""One seed after the other, by one process or several: what came of each.

It is not in the module of the command, because a process that is spawned for it cannot find what is in a
``__main__`` of a package.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.bugs import PLANTED
from tests.simulation.world import World, run

TWICE = 20
"""Every seed that this divides is run twice."""

TAIL = 40
"""So many lines of the transcript of a seed that failed are shown."""


@dataclass
class Outcome:
    """Of one seed, or of many."""

    seeds: int = 0
    commands: int = 0
    deliveries: int = 0
    virtual: float = 0.0
    """Seconds of virtual time."""
    processor: float = 0.0
    """Seconds of processor time."""
    sometimes: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    """What is to be told of each seed that failed."""

    def add(self, other: Outcome) -> None:
        """Count what another one has."""
        self.seeds += other.seeds
        self.commands += other.commands
        self.deliveries += other.deliveries
        self.virtual += other.virtual
        self.processor += other.processor
        self.sometimes += other.sometimes
        self.failed |= other.failed


def outcome_of(seed: int, bug: str | None = None) -> Outcome:
    """Run one seed."""
    outcome, began = Outcome(seeds=1), time.process_time()
    try:
        with PLANTED[bug]() if bug else nullcontext():
            world = run(seed)
            if seed % TWICE == 0 and run(seed).kernel.digest() != world.kernel.digest():
                outcome.failed[seed] = f"seed {seed} failed: its transcript differs from run to run"
    except Exception as error:
        failed: World = error.world  # type: ignore[attr-defined]
        lines = failed.kernel.transcript()[-TAIL:]
        outcome.failed[seed] = "\n".join([*lines, f"seed {seed} failed: {type(error).__name__}: {error}"])
    else:
        outcome.commands, outcome.deliveries = world.server.commands, world.judge.deliveries
        outcome.virtual, outcome.sometimes = world.healed_at, world.sometimes
    outcome.processor = time.process_time() - began
    return outcome


@contextmanager
def outcomes(seeds: range, jobs: int, bug: str | None) -> Iterator[Iterator[Outcome]]:
    """Run seeds, by so many processes."""
    if jobs == 1:
        yield (outcome_of(seed, bug) for seed in seeds)
        return
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    try:
        yield pool.map(partial(outcome_of, bug=bug), seeds, chunksize=5)
    finally:
        pool.shutdown(cancel_futures=True)
