"""``python -m tests.shells --seeds A..B [--show SEED] [--bug NAME]``: run seeds, say what happened."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from contextlib import nullcontext

from tests.shells.bugs import PLANTED
from tests.shells.world import World, run


def say(text: str) -> None:
    """One line or more for whoever called."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.shells", description=__doc__)
    parser.add_argument("--seeds", default="1..40", help="FIRST..LAST")
    parser.add_argument("--show", type=int, help="run this seed and print its transcript")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--bug", choices=PLANTED, help="plant this bug first; the first failure finds it")
    options = parser.parse_args()
    with PLANTED[options.bug]() if options.bug else nullcontext():
        return scan(options)


def scan(options: argparse.Namespace) -> int:
    """Run the seeds."""
    first, last = (options.show, options.show) if options.show else map(int, options.seeds.split(".."))
    sometimes: Counter[str] = Counter()
    failures: list[int] = []
    commands = turns = deliveries = 0
    virtual = 0.0
    began = time.process_time()
    seed = first
    for seed in range(first, last + 1):
        try:
            world = run(seed)
        except Exception as error:
            failures.append(seed)
            failed: World = error.world  # type: ignore[attr-defined]
            lines = failed.kernel.transcript()
            say("\n".join(lines if options.show else lines[-40:]))
            say("".join(traceback.format_exception(error)) if options.show else "")
            say(f"seed {seed} failed: {type(error).__name__}: {error}")
            if not options.keep_going:
                break
            continue
        if options.show:
            say("\n".join(world.kernel.transcript()))
        sometimes += world.sometimes
        commands += world.server.commands
        turns += world.timeline.turns
        deliveries += world.judge.deliveries
        virtual += world.healed_at
    seconds = time.process_time() - began
    for name, times in sorted(sometimes.items()):
        say(f"{times:>8}  {name}")
    count = seed - first + 1
    say(
        f"{count} seeds, {count / seconds:.1f} in a second of processor time: {commands} commands, {turns} "
        f"turns, {virtual / 60:.0f} minutes of virtual time, {deliveries} deliveries"
    )
    say(f"failed: {failures}" if failures else "all invariants hold")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
