"""``python -m tests.simulation --seeds A..B [--show SEED]``: run seeds, say how many and what happened."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulation.world import World


def say(text: str) -> None:
    """One line or more for whoever called."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(seed: int) -> World:
    """Run one seed.

    Raises:
        Violation: an invariant does not hold; the world is in its `world` attribute.
    """
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        error.world = world  # type: ignore[attr-defined]
        raise
    return world


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1..300", help="FIRST..LAST")
    parser.add_argument("--show", type=int, help="run this seed and print its transcript")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    options = parser.parse_args()
    if options.show is not None:
        first = last = options.show
    else:
        first, last = map(int, options.seeds.split(".."))
    sometimes: Counter[str] = Counter()
    failures: list[int] = []
    events = repeated = simulated = deliveries = 0
    began = time.monotonic()
    for seed in range(first, last + 1):
        try:
            world = run(seed)
        except Exception as error:
            failures.append(seed)
            failed: World = error.world  # type: ignore[attr-defined]
            lines = failed.kernel.transcript()
            say("\n".join(lines if options.show is not None else lines[-60:]))
            if options.show is not None:
                say(traceback.format_exc())
            say(f"seed {seed} failed: {type(error).__name__}: {error}")
            if not options.keep_going:
                break
            continue
        if options.show is not None:
            say("\n".join(world.kernel.transcript()))
        sometimes += world.sometimes
        events += world.kernel.events
        simulated += world.kernel.now
        deliveries += world.judge.deliveries
        if seed % 20 == 0:
            repeated += 1
            if run(seed).kernel.digest() != world.kernel.digest():
                say(f"seed {seed} failed: its transcript differs from run to run")
                failures.append(seed)
    took = time.monotonic() - began
    done = seed - first + 1
    for name, count in sorted(sometimes.items()):
        say(f"{count:>10} {name}")
    say(
        f"{done} seeds in {took:.1f} s, {done / took:.1f} seeds/s: {events} events, "
        f"{simulated / 1000:.0f} s of virtual time, {deliveries} deliveries, {repeated} seeds run twice, "
        f"{len(failures)} failed {failures or ''}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
