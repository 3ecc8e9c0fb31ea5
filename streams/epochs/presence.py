"""That a publisher is there: it enters a space with epochs, shows that it lives, and writes its lines.

A line is tried until the delivery time-out is over, and is written once, however often it is tried. Once its
writing has begun there is no way back: should no answer come, it goes with the next line, or with the next
sign of life. Signs of life come from a task: a program that keeps its event loop from running for the whole
time-out of the space is given up, as one that died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.errors import (
    Fenced,
    Indefinite,
    NotDurable,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.seldom import Seldom
from streamlease.streams.epochs.core.lines import StagedPart
from streamlease.streams.epochs.keeping import INCARNATIONS
from streamlease.streams.epochs.keys import staged_publishers, writer_text
from streamlease.streams.epochs.stored import read_fold
from streamlease.streams.epochs.writing import LinesLost, LineWriter
from streamlease.streams.redis.connection import AsyncRedis, Command, ask
from streamlease.streams.spaces.spaces import Space
from streamlease.streams.tasks import Supervisor

FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0

SIGNS = 3
"""So many signs of life in the time after which a silent publisher is given up."""

AGAIN = (StoreUnavailable, StoreRefused, Indefinite, NotDurable)
"""What is tried again after these errors."""

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Presence:
    """One incarnation of one publisher in its space. `enter` first; close it.

    Args:
        timeout: seconds for which a line is tried.
    """

    def __init__(self, redis: AsyncRedis, space: Space, name: str, timeout: float) -> None:
        self.space = space
        self.error: StreamleaseError | None = None
        """Why it is not there any more."""
        self._redis = redis
        self._timeout = timeout
        self._lines = LineWriter(
            redis,
            space.name,
            name,
            host=f"{socket.gethostname()}:{os.getpid()}",
            durability=space.promised,
        )
        self._one_line = asyncio.Lock()
        self._seldom = Seldom(_logger)
        self._loop = asyncio.get_running_loop()
        self._tasks = Supervisor(
            f"publisher {name} of space {space.name}", lambda _, error: self._note(error)
        )

    @property
    def writer(self) -> str:
        """Who stages: name and incarnation."""
        return writer_text(self._lines.name, self._lines.inc)

    @property
    def first_incarnation(self) -> int:
        """The first one under which its parts are appended to staged logs."""
        return self._lines.inc * INCARNATIONS

    async def enter(self) -> Antichain:
        """Enter under the next incarnation; what it holds.

        Raises:
            Fenced: another process entered under this name right behind it.
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: Redis did not let it.
        """
        name, space = self._lines.name, self.space
        above = await self._seen()
        number = await self._repeated(lambda: self._lines.enter(above))
        fold = await self._repeated(lambda: read_fold(self._redis, space.name, space.epochs, number))
        there = fold.present.get(name)
        if there is None or there.inc != self._lines.inc:
            raise self.end(Fenced("it entered, and is not there any more"))
        self._tasks.start("signs of life", self._live())
        return fold.frontier_of(name)

    async def advance(self, to: Antichain, parts: Sequence[StagedPart]) -> None:
        """Hold `to` from now on.

        Raises:
            Fenced, LinesLost: it is not there any more.
            NotDurable: it is written, but less durably.
            Indefinite: it is written, or will be.
        """
        await self._write(lambda: self._lines.advance(to, parts))

    async def leave(self, upper: Antichain, parts: Sequence[StagedPart]) -> None:
        """End well.

        Raises:
            As `advance`; after Indefinite it is written, or its time is over later.
        """
        await self._write(lambda: self._lines.leave(upper, parts))

    def check(self) -> None:
        """Whether it is there, as far as is known.

        Raises:
            Fenced: another process has this name now, or it was given up.
            StreamleaseError: Redis lost it, or a defect ended its signs of life.
        """
        if self.error is not None:
            raise self.error

    def end(self, error: StreamleaseError) -> StreamleaseError:
        """It is not there any more, because of `error`; what everybody is told from now on."""
        if self.error is None:
            if isinstance(error, Fenced):
                error = Fenced(
                    f"publisher {self._lines.name} of space {self.space.name} is not there any more: another "
                    f"process has its name now, or it was given up; what it had not given up is dropped "
                    f"({error})"
                )
            self.error = error
        return self.error

    async def close(self) -> None:
        """No more signs of life."""
        await self._tasks.close()

    def _note(self, error: StreamleaseError) -> None:
        self.end(error)

    async def _seen(self) -> int:
        """The highest incarnation that a staged log knows: more than the lines do, if Redis lost some."""
        asked: list[Command] = [
            ("HGET", staged_publishers(stream), self._lines.name) for stream in self.space.streams()
        ]
        records = await self._repeated(lambda: ask(self._redis, asked))
        return max((int(one.split()[0]) // INCARNATIONS for one in records if one), default=0)

    async def _live(self) -> None:
        every = self.space.epochs_timeout_ms / 1000 / SIGNS
        while self.error is None:
            await asyncio.sleep(every)
            try:
                async with self._one_line:
                    await self._lines.touch()
            except (Fenced, LinesLost) as error:
                _logger.warning("%s", self.end(error))
            except AGAIN as error:
                _logger.info("a sign of life of publisher %s failed: %s", self._lines.name, error)

    async def _write(self, line: Callable[[], Awaitable[int]]) -> None:
        self.check()
        try:
            async with self._one_line:
                await self._repeated(line)
        except (Fenced, LinesLost) as error:
            raise self.end(error) from None
        except (StoreUnavailable, StoreRefused) as error:
            raise Indefinite(
                f"a line of the publisher is written with the next one, or not: {error}"
            ) from None

    async def _repeated(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns, tried until the time-out is over."""
        deadline, wait = self._loop.time() + self._timeout, FIRST_WAIT
        while True:
            try:
                return await work()
            except AGAIN as error:
                if self._loop.time() + wait >= deadline:
                    raise
                text = "publisher %s: %s (tried again for %g s at most)"
                self._seldom.warning(text, self._lines.name, error, self._timeout)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(LONGEST_WAIT, 2 * wait)
