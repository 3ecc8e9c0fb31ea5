"""Turns at the archive of a space, for hosts, jobs with many writers, its removal.

::

    take --> go on, every few seconds --> give up; or it ends by itself, when its owner has died

A job that waits leaves word of that with the turn: a host that has it makes room as soon as it can.

A turn saves work and protects nothing: what two archivers do at once, the table decides (``archiver``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from streamlease.protocol.errors import ArchiveUnavailable, StreamleaseError
from streamlease.protocol.ids import random_token
from streamlease.streams.log.keys import archive_turn
from streamlease.streams.redis.connection import BlockingRedis, Redis, run_blocking
from streamlease.streams.redis.scripts import load_script

log = logging.getLogger(__name__)

TURN_SECONDS = 60.0
"""So long a turn lasts from when it was taken, or gone on with."""

WAIT_SECONDS = 600.0
"""How long a job waits for its turn. A host takes less, but for one slow file."""

LOOK_SECONDS = 0.2

PATIENCE_SECONDS = 2.0
"""Whoever waits for longer is told what for."""

_TURN = load_script("streamlease.streams.archive", "turn")


async def take(redis: Redis, space: str, whose: str, *, waiting: bool = False) -> bool:
    """Take a turn, or go on with it; False: somebody else has it.

    Args:
        waiting: who has it is to hear that somebody waits.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    return await _ask(redis, space, whose, waiting) != b"other"


async def wanted(redis: Redis, space: str, whose: str) -> bool:
    """Go on with a turn; whether somebody waits for it, or has it by now.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    return await _ask(redis, space, whose, False) != b"taken"


async def _ask(redis: Redis, space: str, whose: str, waiting: bool) -> bytes:
    arguments: list[str | int] = [whose, round(TURN_SECONDS * 1000), int(waiting)]
    answer: bytes = (await _TURN.run(redis, [archive_turn(space)], arguments))[0]
    return answer


async def give_up(redis: Redis, space: str, whose: str) -> None:
    """Let others have their turn.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: it ends by itself.
    """
    await _TURN.run(redis, [archive_turn(space)], [whose, 0, 0])


@contextmanager
def turn(redis: BlockingRedis, space: str) -> Generator[None]:
    """Wait for a turn, have it, and give it up. A wait that is not short is logged.

    Raises:
        ArchiveUnavailable: others have it all the time.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    whose, since, told = random_token(), time.monotonic(), False
    while not run_blocking(take(redis, space, whose, waiting=True)):
        waited = time.monotonic() - since
        if waited >= PATIENCE_SECONDS and not told:
            told = True
            what = f"archive of space {space}: others are at work there"
            log.warning("%s; waiting for %.0f s at most", what, WAIT_SECONDS)
        if waited >= WAIT_SECONDS:
            raise ArchiveUnavailable(
                f"the archive of space {space} has been at work for {WAIT_SECONDS:.0f} s: wait until what "
                f"archives it now is done, and repeat this"
            )
        time.sleep(LOOK_SECONDS)
    ended = threading.Event()
    renewing = threading.Thread(target=_go_on, args=(redis, space, whose, ended), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        try:
            run_blocking(give_up(redis, space, whose))
        except StreamleaseError as error:  # what was done is done
            log.warning("archive of space %s: its turn ends by itself: %s", space, error)


def _go_on(redis: BlockingRedis, space: str, whose: str, ended: threading.Event) -> None:
    while not ended.wait(TURN_SECONDS / 4):
        try:
            if not run_blocking(take(redis, space, whose)):
                log.warning("archive of space %s: somebody else has its turn now", space)
        except StreamleaseError as error:
            log.warning("archive of space %s: %s", space, error)
