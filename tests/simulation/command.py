"""The command of a rig: ``--seeds A..B [--jobs N] [--show SEED] [--bug NAME]``: run seeds.

Every 20th seed is run twice, and must do the same in both runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from contextlib import nullcontext

from tests.simulation.seeds import Outcome, outcomes, rig

HASH_SEED = "PYTHONHASHSEED"
PROGRESS = 1000


def say(text: str) -> None:
    """One line or more for whoever called."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def scan(package: str, options: argparse.Namespace) -> int:
    """Run the seeds."""
    first, last = map(int, options.seeds.split(".."))
    total, began = Outcome(), time.monotonic()
    with outcomes(package, range(first, last + 1), options.jobs, options.bug) as found:
        for outcome in found:
            total.add(outcome)
            for text in outcome.failed.values():
                say(text)
            if outcome.failed and not options.keep_going:
                break
            if total.seeds % PROGRESS == 0:
                say(f"{total.seeds} seeds in {time.monotonic() - began:.0f} s, {len(total.failed)} failed")
    for name, times in sorted(total.sometimes.items()):
        say(f"{times:>8}  {name}")
    virtual = total.figures.pop("virtual", 0) / 3600
    say(
        f"{total.seeds} seeds in {time.monotonic() - began:.0f} s, "
        f"{total.seeds / total.processor:.1f} in a second of processor time: "
        f"{', '.join(f'{number} {what}' for what, number in total.figures.items())}, "
        f"{virtual:.1f} hours of virtual time"
    )
    say(f"failed: {list(total.failed)}" if total.failed else "all invariants hold")
    return 1 if total.failed else 0


def show(package: str, seed: int, bug: str | None) -> int:
    """Run one seed, and print its transcript."""
    run, planted = rig(package)
    with planted[bug]() if bug else nullcontext():
        try:
            world, error = run(seed), None
        except Exception as failed:
            world, error = failed.world, failed  # type: ignore[attr-defined]
    say("\n".join(world.kernel.transcript()))
    if error is not None:
        say("".join(traceback.format_exception(error)))
    return 1 if error is not None else 0


def main(package: str) -> int:
    """The command of the rig in that package."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=__doc__)
    parser.add_argument("--seeds", default="1..40", help="FIRST..LAST")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes run them")
    parser.add_argument("--show", type=int, help="run this seed and print its transcript")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument(
        "--bug", choices=rig(package)[1], help="plant this bug first; the first failure finds it"
    )
    options = parser.parse_args()
    if os.environ.get(HASH_SEED) != "0":
        # The order of a set of strings is a part of what a seed decides.
        os.execve(
            sys.executable,
            [sys.executable, "-m", package, *sys.argv[1:]],
            os.environ | {HASH_SEED: "0"},
        )
    return scan(package, options) if options.show is None else show(package, options.show, options.bug)
