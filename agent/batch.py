"""Batches of a shared subscription: handed to a program, committed, or given up at a message that failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import MAX_CAUSE, Verdict
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.entries.messages import Message, to_messages
from streamlease.streams.log.ranges import FIRST_COUNT

if TYPE_CHECKING:
    from streamlease.agent.subscription import SharedReader


MOST_HOLES = 100
"""So many holes of one stream are reported apart."""


@dataclass(slots=True, eq=False)
class Failing:
    """A failure that was reported and is not answered yet."""

    offset: int
    failure: str
    cause: str
    waiter: asyncio.Future[Verdict]


@dataclass(slots=True, eq=False)
class Held:
    """One stream that the subscription holds."""

    slot: int
    lease_epoch: int
    position: int
    """Next offset to fetch."""
    delivered: int
    """Next offset to hand to the program."""
    committed: int
    """Next offset that the program has not committed."""
    acknowledged: int
    """Next offset that is not durably committed."""
    revoking: bool = False
    limbo: bool = False
    """The borrower ended; the stream may come back to its successor."""
    waited: float = 0.0
    """In limbo: for how many seconds the session has been connected again."""
    skips: dict[int, int] = field(default_factory=dict)
    """Start -> end of ranges in which the filter matched nothing, above what is committed."""
    holes: dict[int, int] = field(default_factory=dict)
    """Start -> end of what Redis lost, above what is acknowledged."""
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)
    failing: Failing | None = None
    """While it waits, nothing of the stream is handed out."""
    damaged: DamagedEntry | None = None
    """What was read next cannot be decoded; it fails by itself once all before it is committed."""
    damaged_until: int = 0
    """Of a damaged entry a message is among the dead letters: the others up to here need not wait."""
    entries: int = FIRST_COUNT
    """How many entries the next read asks for at first."""
    retry_at: float | None = None
    """Nothing is fetched before, by the reader's clock in seconds: the next message failed."""
    turn: int = 0
    """Rises when messages that were handed out are to be handed out again."""

    def reading_end(self, next: int) -> int:
        """Up to where a read may go: to the end of the stream, or to a hole that is known."""
        return min((next, *(start for start in self.holes if start > self.position)))

    def lost(self) -> tuple[tuple[int, int], ...]:
        """The holes below what is committed; the oldest ones joined, if they are many."""
        found = sorted((start, end) for start, end in self.holes.items() if end <= self.committed)
        if len(found) > MOST_HOLES:
            joined = found[: 1 - MOST_HOLES]
            last = joined[-1][1]
            found = [(last - sum(end - start for start, end in joined), last), *found[1 - MOST_HOLES :]]
        return tuple(found)

    def advance(self, end: int) -> None:
        """Everything below `end` is done, and what is skipped right behind it."""
        self.committed = max(self.committed, end)
        while (skipped := self.skips.pop(self.committed, None)) is not None:
            self.committed = skipped
        self.delivered = max(self.delivered, self.committed)

    @property
    def is_fetched(self) -> bool:
        """Whether more of the stream may be read now."""
        waits = self.failing is not None or self.damaged is not None or self.retry_at is not None
        return not (self.limbo or self.revoking or waits)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for an answer about this lease."""
        return self.failing is not None or any(not waiter.done() for _, waiter in self.waiters)

    def fail(self, error: StreamleaseError) -> None:
        """Nobody may wait for this lease any more."""
        for _, waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self.waiters.clear()
        if self.failing is not None and not self.failing.waiter.done():
            self.failing.waiter.set_exception(error)
        self.failing = None


class Batch:
    """Some messages of one stream, in order."""

    def __init__(
        self, owner: SharedReader, held: Held, stream: StreamId, start: int, end: int, data: pa.RecordBatch
    ) -> None:
        self.stream = stream
        self.start = start
        self.end = end
        """Offsets ``start <= offset < end`` were read; those that the filter does not match are left out."""
        self._owner = owner
        self._held = held
        self._data = data
        self.turn = held.turn
        self.began = 0
        """When it was read, in ns since 1970; 0 where nothing is traced."""
        self.received: Any = None
        """The span context of its delivery, where the program traces."""

    def __len__(self) -> int:
        return int(self._data.num_rows)

    @property
    def messages(self) -> list[Message]:
        """The messages, one by one."""
        return to_messages(self._data)

    def to_arrow(self) -> pa.RecordBatch:
        """The messages as one record batch of ``streamlease.streams.entries.messages.MESSAGE_SCHEMA``.

        Behind its columns come the typed ones of a space with a schema.
        """
        return self._data

    async def commit(self, end: int | None = None) -> None:
        """Everything up to the end of this batch is done; returns when that is durable.

        Args:
            end: only what is below this offset of the batch is done.

        Raises:
            InvalidOption: `end` does not lie in the batch.
            InvalidInput: a message of the stream failed after the batch was handed out: it comes again.
            Fenced: the stream was taken away meanwhile; its messages may be delivered to somebody else.
            Indefinite: no leader answered in time: it was committed, or it was not.
        """
        if end is not None and not self.start <= end <= self.end:
            raise InvalidOption(f"end is {end}: this batch has offsets {self.start} to {self.end}")
        end = self.end if end is None else end
        if end > self._held.committed:
            self._check_turn()
        await self._owner.commit(self._held, self.stream, end, self.received)

    async def fail(self, offset: int, cause: BaseException | str) -> Verdict:
        """The message at `offset` could not be processed, and everything before it is done.

        Returns when the failure is counted durably. The batch is over then, and so is every other of its
        stream: what the stream has behind the message comes again, in a new batch.

        Args:
            cause: an error, or a text; kept with a dead letter, up to 2000 characters.

        Returns:
            ``retry``: the message comes again, the later the more often it failed; other streams go on
            meanwhile. ``passed``: it failed as often as the group allows and stands
            durably among the dead letters; the next message comes. ``stopped``: the stream is given back and
            nobody gets it, until an operator decides.

        Raises:
            InvalidOption: `offset` does not lie in the batch, or is committed already.
            InvalidInput: a message of the stream failed after the batch was handed out: it comes again.
            Fenced: the stream was taken away meanwhile; whoever gets it gets the message again.
            Indefinite: no leader answered in time, or the dead letter cannot be written now: the failure
                counts, or it does not; the subscription keeps asking.
        """
        if not self.start <= offset < self.end:
            raise InvalidOption(f"offset is {offset}: this batch has offsets {self.start} to {self.end - 1}")
        self._check_turn()
        text = cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
        return await self._owner.fail(self._held, self.stream, offset, writable(text)[:MAX_CAUSE])

    def _check_turn(self) -> None:
        if self.turn != self._held.turn or self._held.failing is not None:
            raise InvalidInput(
                f"a message of stream {self.stream} failed after this batch was handed out: "
                f"drop the batch, its messages come again"
            )

    @property
    def held(self) -> Held:
        """The lease under which the batch was read."""
        return self._held


def writable(text: str) -> str:
    """`text` without lone surrogates, which no message can carry."""
    return text.encode("utf-8", "backslashreplace").decode()
