"""A program that forks with a blocking client open: ``python -m tests.agent.forking_program URL``.

Prints what the forked process is told, and then what its own client and the parent's go on to do.
"""

from __future__ import annotations

import os
import sys
import warnings

import streamlease
from streamlease.agent.blocking import Client, Publisher, Subscription, connect
from streamlease.protocol.errors import StreamleaseError

FILTER = "forked/#"


UNUSED = streamlease.connect("redis://127.0.0.1:1")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def forked(url: str, client: Client, publisher: Publisher, consumer: Subscription) -> None:
    """The forked process: nothing of its parent's can be used, and leaving a block does nothing there."""
    for act in (
        client.publisher,
        lambda: publisher.send("forked/t", b"of the parent's publisher"),
        lambda: consumer.poll(1),
        client.close,
    ):
        try:
            act()
        except StreamleaseError as error:
            say(f"{type(error).__name__} {error}")
    publisher.__exit__(None, None, None)
    client.__exit__(None, None, None)
    with connect(url) as own, own.publisher() as sending:
        sending.send("forked/t", b"child")
    say(f"shown as {UNUSED.shown.process}")


def main(url: str) -> None:
    """Fork in the middle of everything."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn of forks beside threads
    with connect(url) as client:
        client.create_space("forked", ["forked/#"], streams=1)
        with client.publisher() as publisher, client.subscribe("$shared/g/forked/#", start="earliest") as sub:
            for number in range(100):  # after some the thread sends by itself, on a line of its own
                publisher.send("forked/t", b"%d" % number)
            process = os.fork()
            if not process:
                forked(url, client, publisher, sub)
                os._exit(0)
            os.waitpid(process, 0)
            say(f"shown as {UNUSED.shown.process}")
            publisher.send("forked/t", b"parent")
            found: list[bytes] = []
            while not found or found[-1] != b"parent":
                batch = sub.poll(30)
                assert batch is not None
                found += [one.payload for one in batch.messages]
                batch.commit()
            say(f"{len(found)} {found[100:]}")


if __name__ == "__main__":
    main(sys.argv[1])
