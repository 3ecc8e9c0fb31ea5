"""All definitions, as they stand in Redis: read by many at once, written by one at a time.

Whoever changes a definition reads all of them with their version, and writes with that version as the
precondition; if anybody was faster, nothing is written, and it reads again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamlease.protocol.errors import NotDurable, StoreRefused, StreamleaseError
from streamlease.protocol.ids import check_name
from streamlease.streams import clock
from streamlease.streams.catalog.keys import SPACES, TOPICS, TOPICS_ORDER
from streamlease.streams.log.keys import SPACE_DEFINITIONS, SPACE_GENERATIONS, SPACE_NEWS, SPACE_VERSION
from streamlease.streams.redis.connection import Command, Redis, ask
from streamlease.streams.redis.damaged import number
from streamlease.streams.redis.durability import strongest
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.known import Known, read_definitions

CACHE_SECONDS = 1.0
"""How long a lookup that succeeds may use what was read before."""

ATTEMPTS = 50
"""So often a change is tried while others keep changing definitions."""


class Definitions(NamedTuple):
    """What was read at one moment."""

    version: int | None
    """None: it was read by somebody who changes nothing."""
    known: Known
    read_at: float

    @property
    def spaces(self) -> Mapping[str, Space]:
        """Those that can be read, by name."""
        return self.known.spaces


class DefinitionTable:
    """The definitions of all spaces in one Redis, and what this process read of them last.

    Args:
        wait_seconds: how long the server may take to make a change as durable as its space asks.
    """

    def __init__(self, redis: Redis, wait_seconds: float) -> None:
        self._redis = redis
        self._wait_seconds = wait_seconds
        self._newest: Definitions | None = None
        self._known: Known | None = None
        """What was read last, which may be out of date."""
        self._reading: asyncio.Future[Definitions] | None = None
        """What is being read now, for all who look for the space of a topic."""

    def forget(self) -> None:
        """Let the next lookup read anew."""
        self._newest = None

    def fresh(self) -> Definitions | None:
        """What was read within the last second."""
        newest = self._newest
        return newest if newest is not None and clock.seconds() - newest.read_at < CACHE_SECONDS else None

    async def read_all(self) -> Definitions:
        """All definitions as they are now, for whoever changes none.

        Raises:
            StoreUnavailable, StoreRefused: Redis does not answer, or with an error.
        """
        asked_at = clock.seconds()
        (definitions,) = await ask(self._redis, [("HGETALL", SPACE_DEFINITIONS)])
        self._newest = Definitions(None, self._read(definitions), asked_at)
        return self._newest

    async def read_together(self) -> Definitions:
        """All definitions; whoever wants them while they are being read gets the same answer, or error."""
        while (reading := self._reading) is not None:
            try:
                return await asyncio.shield(reading)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not reading.cancelled() or (task is not None and task.cancelling()):
                    raise  # else it was the reader who was cancelled
        reading = self._reading = asyncio.get_running_loop().create_future()
        try:
            found = await self.read_all()
        except StreamleaseError as error:
            reading.set_exception(error)
            reading.exception()  # looked at: perhaps nobody else waits
            raise
        else:
            reading.set_result(found)
            return found
        finally:
            self._reading = None
            reading.cancel()

    async def read_next(self) -> Definitions:
        """All definitions as they are now; whoever asks while they are being read shares the next reading.

        Raises:
            StoreUnavailable, StoreRefused: as `read_all`.
        """
        called = clock.seconds()
        while (found := await self.read_together()).read_at < called:
            pass  # they were asked for before
        return found

    async def read(self, name: str) -> tuple[Definitions, int]:
        """All definitions with their version, and the highest generation that `name` ever used, -1 if none.

        The version is read first: a definition written in between makes it too old, never too new.

        Raises:
            InvalidInput: `name` is no text.
            StoreUnavailable, StoreRefused.
        """
        if not isinstance(name, str):
            check_name("space", name)
        commands: list[Command] = [
            ("GET", SPACE_VERSION),
            ("HGETALL", SPACE_DEFINITIONS),
            ("HGET", SPACE_GENERATIONS, name),
        ]
        asked_at = clock.seconds()
        version, definitions, used = await ask(self._redis, commands)
        self._newest = Definitions(number(SPACE_VERSION, version), self._read(definitions), asked_at)
        return self._newest, number(SPACE_GENERATIONS, used, -1)

    def _read(self, definitions: Sequence[bytes]) -> Known:
        self._known = read_definitions(definitions, self._known)
        return self._known

    async def write(self, seen: Definitions, name: str | bytes, text: str, generation: int) -> bool:
        """Write a definition; False if another one changed since `seen` was read. No text: remove it."""
        assert seen.version is not None
        reply: Any = await load_script("streamlease.streams.spaces", "define").run(
            self._redis,
            [SPACE_DEFINITIONS, SPACE_GENERATIONS, SPACE_VERSION, SPACES.changes, TOPICS, TOPICS_ORDER],
            [seen.version, name, text, generation, SPACE_NEWS, SPACES.told],
        )
        self._newest = None
        return bool(reply[0] == b"written")

    async def make_durable(self, space: Space) -> Space:
        """See to it that a definition is as durable as the space's messages.

        Raises:
            NotDurable: it could not be made so.
        """
        touch = load_script("streamlease.streams.spaces", "touch").call([SPACE_DEFINITIONS, SPACE_VERSION])
        wanted = strongest([space.promised])
        _, why = await run_durably(self._redis, touch, wanted, self._wait_seconds) if wanted else (None, "")
        if why:
            raise NotDurable(
                f"the definition of space {space.name} is written, but not as durably as {space.promised} "
                f"demands: {why}; it may still exist: look at the server, then repeat"
            )
        return space


def too_busy(name: str) -> StreamleaseError:
    """The error of a change that was tried often enough."""
    return StoreRefused(f"space {name} was not written: others kept changing definitions; try again")
