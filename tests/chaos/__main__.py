"""``python -m tests.chaos``: real processes on loopback, faults by seed, and a judge of what was delivered.

Exit status: 0 all is well, 1 the judge found something, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.run import Result, run
from tests.chaos.stage import Shape
from tests.servers import REAL_KINDS, Kind

SHOWN = 40
"""Most findings that are printed."""


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="how many, on all servers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--servers", nargs="+", choices=[str(kind) for kind in REAL_KINDS], default=[str(Kind.EMBEDDED)]
    )
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep logs there")
    options = parser.parse_args(words)
    if options.faults < 1:
        parser.error(f"--faults is {options.faults}: give at least 1")
    if options.keep is not None and options.keep.exists() and any(options.keep.iterdir()):
        parser.error(f"--keep is {options.keep}: give a directory that is empty or not there")
    return options


def show(results: list[Result], console: Console) -> None:
    table = Table(title="Chaos", title_justify="left")
    for column, right in (("", False), *((f"{r.kind}, seed {r.seed}", True) for r in results)):
        table.add_column(column, justify="right" if right else "left")
    rows = {
        "faults": [str(r.faults.total()) for r in results],
        "seconds": [f"{r.seconds:.0f}" for r in results],
        "messages in the log": [f"{r.verdict.messages:,}" for r in results],
        "of these acknowledged": [f"{r.verdict.acknowledged:,}" for r in results],
        "deliveries": [f"{r.verdict.delivered:,}" for r in results],
        "confirmed commits": [f"{r.verdict.commits:,}" for r in results],
        "again, explained by a fault": [f"{r.verdict.again:,}" for r in results],
        "late in a process that was cut off": [f"{r.verdict.stale:,}" for r in results],
        "stood still without a fault": [
            f"{len(r.verdict.still)}, longest {max(r.verdict.still, default=0):.1f} s" for r in results
        ],
        "longest way back to calm": [f"{max(r.settled, default=0):.1f} s" for r in results],
        "epochs": [f"{r.epochs.epochs:,} of {r.epochs.messages:,} messages" for r in results],
        "handed out of them": [f"{r.epochs.handed_out:,}" for r in results],
        "aborted parts of epochs": [f"{r.epochs.aborted:,}" for r in results],
        "wrong": [str(len(r.wrong)) for r in results],
    }
    for name, values in rows.items():
        table.add_row(name, *values)
    console.print(table)
    for r in results:
        console.print(", ".join(f"{kind} {n}" for kind, n in sorted(r.faults.items())), highlight=False)
        for line in r.wrong[:SHOWN]:
            console.print(f"WRONG  {line}", highlight=False, markup=False)
        if len(r.wrong) > SHOWN:
            console.print(f"WRONG  ... and {len(r.wrong) - SHOWN} more")


async def main(options: argparse.Namespace, directory: Path) -> list[Result]:
    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    kinds = [Kind(name) for name in options.servers]
    share, rest = divmod(options.faults, len(kinds))
    results = []
    for number, kind in enumerate(kinds):
        count = share + (number < rest)
        results.append(await run(kind, count, options.seed + number, directory / str(kind), say, Shape()))
    return results


def command(words: list[str]) -> int:
    options = parse(words)
    with tempfile.TemporaryDirectory(prefix="streamlease-chaos-") as temporary:
        directory = options.keep or Path(temporary)
        results = asyncio.run(main(options, directory))
    show(results, Console(width=130))
    return 1 if any(result.wrong for result in results) else 0


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
