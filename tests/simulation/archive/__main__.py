"""``python -m tests.simulation.archive --seeds A..B [--jobs N] [--show SEED] [--bug NAME]``: run seeds."""

import sys

from tests.simulation.command import main

if __name__ == "__main__":
    sys.exit(main("tests.simulation.archive"))
