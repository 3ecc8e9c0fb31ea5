"""The command line of an example: what it takes, and one line where it cannot go on."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import NamedTuple

from streamlease.protocol.errors import StreamleaseError


class Argument(NamedTuple):
    """What is given to an example.

    Args:
        about: what it is, for people.
        kind: makes it of a text, or raises ValueError.
    """

    name: str
    about: str
    kind: Callable[[str], object] = str


URL = Argument("URL", "of Redis, such as redis://127.0.0.1:6379")
FOLDER = Argument("FOLDER", "where results and checkpoints go")


def start(work: Callable[..., object], *takes: Argument) -> None:
    """Call `work` with the arguments of this program, in their order; ends it where that fails."""
    main = sys.modules["__main__"]
    parser = ArgumentParser(
        prog=f"python -m {main.__spec__.name}" if main.__spec__ is not None else None,
        description=main.__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    for one in takes:
        parser.add_argument(one.name, help=one.about, type=one.kind)
    given = vars(parser.parse_args())
    try:
        work(*given.values())
    except StreamleaseError as error:
        sys.exit(f"error: {error}")
    except Exception as error:
        if not type(error).__module__.startswith("pyspark."):
            raise
        from streamlease.spark.setup.spark_errors import cause_of

        sys.exit(f"error: {cause_of(error)}")
    if FOLDER.name in given:
        print(f"what it wrote is in {given[FOLDER.name]}")  # noqa: T201 (for whoever started it)
