"""``python -m tests.simulation.epochs --seeds A..B [--show SEED] [--bug NAME] [--keep-going]``: run seeds."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from contextlib import nullcontext

from tests.simulation.epochs.bugs import PLANTED
from tests.simulation.epochs.world import EpochWorld, run

HASH_SEED = "PYTHONHASHSEED"
TWICE = 20
"""Every seed that this divides is run twice, and must do the same."""


def say(text: str) -> None:
    """One line or more for whoever called."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def scan(options: argparse.Namespace) -> int:
    """Run the seeds."""
    first, last = map(int, options.seeds.split(".."))
    failed: list[int] = []
    sometimes: Counter[str] = Counter()
    began, epochs, sent = time.monotonic(), 0, 0
    for seed in range(first, last + 1):
        try:
            with PLANTED[options.bug]() if options.bug else nullcontext():
                world = run(seed)
                if seed % TWICE == 0 and run(seed).kernel.digest() != world.kernel.digest():
                    raise AssertionError("its transcript differs from run to run")
        except Exception as error:
            say(f"seed {seed} failed: {type(error).__name__}: {error}")
            failed.append(seed)
            if not options.keep_going:
                break
        else:
            sometimes += world.sometimes
            epochs, sent = epochs + len(world.truth.epochs), sent + len(world.truth.sent)
    for name, times in sorted(sometimes.items()):
        say(f"{times:>8}  {name}")
    seeds = last - first + 1
    seconds = time.monotonic() - began
    say(f"{seeds} seeds in {seconds:.0f} s: {sent} messages sent, {epochs} epochs with messages")
    say(f"failed: {failed}" if failed else "all invariants hold")
    return 1 if failed else 0


def show(seed: int, bug: str | None) -> int:
    """Run one seed, and print its transcript."""
    with PLANTED[bug]() if bug else nullcontext():
        try:
            world: EpochWorld = run(seed)
            error = None
        except Exception as found:
            world, error = found.world, found  # type: ignore[attr-defined]
    say("\n".join(world.kernel.transcript()))
    if error is not None:
        say("".join(traceback.format_exception(error)))
    return 1 if error is not None else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.epochs", description=__doc__)
    parser.add_argument("--seeds", default="1..40", help="FIRST..LAST")
    parser.add_argument("--show", type=int, help="run this seed and print its transcript")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--bug", choices=PLANTED, help="plant this bug first; the first failure finds it")
    options = parser.parse_args()
    if os.environ.get(HASH_SEED) != "0":
        # The order of a set of strings is a part of what a seed decides.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation.epochs", *sys.argv[1:]],
            os.environ | {HASH_SEED: "0"},
        )
    return scan(options) if options.show is None else show(options.show, options.bug)


if __name__ == "__main__":
    sys.exit(main())
