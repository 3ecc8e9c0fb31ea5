"""A consumer of a group that reads whole epochs: ``python -m tests.epochs.sharing_program URL``.

It prints each part as it gets it, and once more when it is committed, until it is killed. It may lead the
group, and keep the space.
"""

from __future__ import annotations

import json
import sys

from streamlease.agent import blocking


def main(url: str) -> None:
    with (
        blocking.connect(url) as client,
        client.subscribe("$shared/g/clicks/#", start="earliest", epochs="atomic", session_timeout=3) as items,
    ):
        for item in items:
            if not isinstance(item, blocking.EpochPart):
                continue
            assert item.epoch is not None
            part = {
                "epoch": item.epoch[0],
                "stream": str(item.stream),
                "start": item.start,
                "whole": item.whole,
                "texts": [message.payload.decode() for message in item.messages],
            }
            for told in (part, {"committed": [str(item.stream), item.start]}):
                sys.stdout.write(json.dumps(told) + "\n")
                sys.stdout.flush()
                if told is part:
                    item.commit()


if __name__ == "__main__":
    main(*sys.argv[1:])
