"""``python -m bench [NAME...]``: Streamlease beside plain redis-py, subject by subject.

The contenders of a subject take turns, several times, with the same messages, on one Redis that the
benchmark starts and stops (or on ``--redis URL``). Printed are medians, and their ratios to plain redis-py.
"""

from __future__ import annotations

import argparse
import ast
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from bench.frame import Frame, Table

USUAL = ("publish", "consume", "latency", "memory")
"""What runs if no subject is named."""

_ROOM = Path(__file__).parent


def subjects() -> dict[str, str]:
    """The subjects and what they compare: the first line of each module, which is not imported for that."""
    found = {}
    for path in sorted(_ROOM.glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(one, ast.FunctionDef) and one.name == "measure" for one in module.body):
            found[path.stem] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def _print(console: Console, table: Table) -> None:
    grid = Grid(title=table.title, title_justify="left")
    for place, name in enumerate(table.columns):
        grid.add_column(name, justify="right" if place else "left")
    for row in table.rows:
        grid.add_row(*row)
    console.print(grid)


def main() -> None:
    """Parse the options, measure, print."""
    known = subjects()
    width = max(map(len, known)) + 2
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="subjects:\n" + "\n".join(f"  {name:<{width}}{text}" for name, text in known.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help=f"a subject, or 'all'; without one {', '.join(USUAL)}"
    )
    parser.add_argument("--messages", type=int, default=Frame().messages, help="messages per run")
    parser.add_argument("--runs", type=int, default=Frame().runs, help="runs of each contender")
    parser.add_argument("--redis", help="URL of a Redis to use; its bench:* and sl:* keys are removed")
    options = parser.parse_args()
    if options.messages < 1 or options.runs < 1:
        parser.error("--messages and --runs must be at least 1")
    names = [*known] if "all" in options.names else options.names or [*USUAL]
    for name in names:
        if name not in known:
            parser.error(f"there is no subject {name}: give {', '.join(known)} or all")
    console = Console(width=110)
    for name in names:
        for table in import_module(f"bench.{name}").measure(
            Frame(options.messages, options.runs, options.redis)
        ):
            _print(console, table)


if __name__ == "__main__":
    main()
