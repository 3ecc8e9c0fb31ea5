"""Writes the dead letters of one leader, beside all its other work; one at a time for each stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from streamlease.leader.core.events import DeadLetter, DeadLetterRefused, DeadLetterWritten
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry.dead_letters import DeadLetters, Poisoned
from streamlease.registry.groups import Declaration
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor, task_failed

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""How long it waits before it tries again to write a dead letter."""


@dataclass(slots=True)
class LetterWriter:
    """Has dead letters written until they stand; `post` is told what comes of it."""

    redis: AsyncRedis
    host: str
    post: Callable[[DeadLetterWritten | DeadLetterRefused], None]
    supervisor: Supervisor
    """Owns the tasks that write."""
    writing: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Stream -> the task that writes its dead letter."""

    def begin(self, letter: DeadLetter, declaration: Declaration) -> None:
        """Write a dead letter, in place of the one of its stream that is being written."""
        before = self.writing.pop(letter.stream, None)
        if before is not None:
            before.cancel()
        name = f"dead letter of {letter.stream}"
        self.writing[letter.stream] = self.supervisor.start(name, self._write(letter, declaration))

    async def _write(self, letter: DeadLetter, declaration: Declaration) -> None:
        logs.begin(stream=letter.stream, borrower=letter.borrower)
        poisoned = Poisoned(
            declaration.shared,
            declaration.options,
            StreamId.parse(letter.stream),
            letter.offset,
            letter.lease_epoch,
            letter.failures,
            letter.borrower,
            letter.cause,
        )
        while True:
            try:
                into, at = await DeadLetters(self.redis).write(poisoned)
                break
            except StreamleaseError as error:
                log.warning("dead letter of %s, offset %d: %s", letter.stream, letter.offset, error)
                why = str(error)
            except Exception as error:
                # Whatever it is: who waits for it learns why, and it is tried again, perhaps by another host.
                log.exception("dead letter of %s, offset %d", letter.stream, letter.offset)
                why = str(task_failed(f"host {self.host}", "a dead letter", error))
            self.post(DeadLetterRefused(letter.stream, letter.offset, why))
            await asyncio.sleep(AGAIN_SECONDS)
        log.warning(
            "offset %d of %s failed %d times (%s): dead letter at offset %d of %s",
            letter.offset, letter.stream, letter.failures, letter.cause, at, into,
        )  # fmt: skip
        self.post(DeadLetterWritten(letter.stream, letter.offset, str(into), at))
