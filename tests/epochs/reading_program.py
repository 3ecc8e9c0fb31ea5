"""A program that reads whole epochs, and prints each with the positions behind it, until it is killed.

``python -m tests.epochs.reading_program URL START``: START is JSON, a mapping of positions or a text.
"""

from __future__ import annotations

import json
import sys

from streamlease.agent import blocking
from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier


def main(url: str, start: str) -> None:
    with (
        blocking.connect(url) as client,
        client.listen("clicks/#", start=json.loads(start), epochs="atomic") as items,
    ):
        for item in items:
            match item:
                case EpochBatch():
                    what = {
                        "epoch": item.epoch[0],
                        "texts": sorted(m.payload.decode() for m in item.messages),
                    }
                case Frontier():
                    what = {"frontier": [one[0] for one in item.lower]}
                case _:
                    continue
            sys.stdout.write(json.dumps(what | {"positions": items.positions}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
