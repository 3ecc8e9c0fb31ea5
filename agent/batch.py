"""Batches of a shared subscription: read ahead, handed to a program in turns of the streams, committed, or
given up at a message that failed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from streamlease.borrower.book import Held
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import MAX_CAUSE, Verdict
from streamlease.protocol.offsets import offset_of
from streamlease.streams.entries.delivered import Messages


class OfEpoch(NamedTuple):
    """What a batch has of its epoch."""

    epoch: Epoch | None
    """None: Redis has lost the boundary that says it."""
    whole: bool
    """Whether it is all that the stream has of it."""
    number: int
    """The boundary at which it came."""


class BatchRows(Protocol):
    """Messages of one stream."""

    def __len__(self) -> int: ...

    @property
    def messages(self) -> Messages:
        """One by one."""
        ...

    @property
    def batch(self) -> pa.RecordBatch:
        """As a record batch; the topics may be a dictionary."""
        ...

    def plain(self) -> BatchRows:
        """The same with texts in the column topic."""
        ...

    def offset(self, place: int) -> int:
        """That of a message."""
        ...

    def slice(self, first: int, last: int) -> BatchRows:
        """Those from `first` to before `last`."""
        ...


class Owner(Protocol):
    """Who has handed out a batch, and takes what the program says about it."""

    async def commit(self, held: Held, end: int, received: Any) -> None:
        """All below `end` is done; `received` is the span context of the delivery."""

    def commit_soon(self, held: Held, end: int, received: Any) -> None:
        """The same, without a wait."""

    def failed_later(self, held: Held, error: StreamleaseError) -> None:
        """A commit failed of which nobody can be told now."""

    async def fail(self, held: Held, offset: int, cause: str) -> Verdict:
        """The message at `offset` could not be processed."""
        ...


class Batch:
    """Some messages of one stream, in order."""

    __slots__ = (
        "_held", "_owner", "_rows", "began", "end", "more", "of", "received", "size", "start", "stream",
        "turn",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, held: Held, stream: StreamId, start: int, end: int, rows: BatchRows
    ) -> None:
        self.stream: StreamId = stream
        """Where they stand."""
        self.start: int = start
        """The offset of the first that was read."""
        self.end: int = end
        """Offsets ``start <= offset < end`` were read; those that the filter does not match are left out."""
        self._owner = owner
        self._held = held
        self._rows = rows
        self.turn = held.turn
        self.began = 0
        """When it was read, in ns since 1970; 0 where nothing is traced."""
        self.received: Any = None
        """The span context of its delivery, where the program traces."""
        self.size = 0
        """In bytes, as it counts while it waits."""
        self.more = False
        """Whether the stream had more behind it when it was read."""
        self.of: OfEpoch | None = None
        """What it has of an epoch, where epochs are read whole."""

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Batch(stream={self.stream}, start={self.start}, end={self.end}, messages={len(self)})"

    def parted(self, most: int) -> tuple[Batch, Batch | None]:
        """Its first messages, at most `most`, and the rest if there is any; in equal parts."""
        rows = len(self)
        parts = -(-rows // most)
        if parts <= 1:
            return self, None
        first = -(-rows // parts)
        middle = self._rows.offset(first)
        begin, rest = self._part(self.start, middle, 0, first), self._part(middle, self.end, first, rows)
        begin.size = self.size - rest.size
        return begin, rest

    def _part(self, start: int, end: int, first: int, last: int) -> Batch:
        part = Batch(self._owner, self._held, self.stream, start, end, self._rows.slice(first, last))
        part.turn, part.began, part.received, part.of = self.turn, self.began, self.received, self.of
        part.size, part.more = self.size * (last - first) // len(self), self.more or end < self.end
        return part

    @property
    def messages(self) -> Messages:
        """The messages, one by one."""
        return self._rows.messages

    def to_arrow(self) -> pa.RecordBatch:
        """The messages as one record batch of ``streamlease.streams.entries.message_rows.MESSAGE_SCHEMA``.

        Behind its columns come the typed ones of a space with a schema.
        """
        self._rows = self._rows.plain()
        return self._rows.batch

    async def commit(self, end: int | None = None) -> None:
        """Everything up to the end of this batch is done; returns when that is durable.

        Who cancels it has entered it all the same: it is written, unless the process dies before.

        Args:
            end: only what is below this offset of the batch is done.

        Raises:
            InvalidOption: `end` does not lie in the batch.
            InvalidInput: a message of the stream failed after the batch was handed out: it comes again.
            Fenced: the stream was taken away meanwhile; its messages may be delivered to somebody else. Or
                an earlier `commit_soon` of the stream has failed so; a note says that this one is durable.
            Indefinite: neither Redis nor a leader confirmed it in time: it was committed, or it was not.
        """
        end = self._to_commit(end)
        await self._owner.commit(self._held, end, self.received)

    def commit_soon(self, end: int | None = None) -> None:
        """Everything up to the end of this batch is done; returns at once, and is not durable yet.

        It is written as soon as no write of the subscription is under way, with all that was entered until
        then; of each stream one offset is kept. A crash before that repeats these messages; a revocation and
        the end of the subscription wait for them. What goes wrong is raised once, by the next ``flush`` of
        the subscription, by the next `commit` of the stream, or where the subscription ends.

        Args:
            end: only what is below this offset of the batch is done.

        Raises:
            InvalidOption, InvalidInput: as `commit`.
            Fenced: the stream was taken away already; its messages may be delivered to somebody else.
        """
        end = self._to_commit(end)
        self._owner.commit_soon(self._held, end, self.received)

    def commit_later(self, end: int | None = None) -> None:
        """As `commit_soon`, for who cannot be told at once what goes wrong."""
        try:
            self.commit_soon(end)
        except StreamleaseError as error:
            self._owner.failed_later(self._held, error)

    def check_end(self, end: int | None) -> int:
        """The offset that is meant; that behind the batch if none is given.

        Raises:
            InvalidOption: it is none, or does not lie in the batch.
        """
        if end is None:
            return self.end
        offset = offset_of("end", end)
        if not self.start <= offset <= self.end:
            raise InvalidOption(f"end is {offset}: this batch has offsets {self.start} to {self.end}")
        return offset

    def _to_commit(self, end: int | None) -> int:
        end = self.check_end(end)
        if end > self._held.committed:
            self._check_turn()
        return end

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
        offset = offset_of("offset", offset)
        if not self.start <= offset < self.end:
            raise InvalidOption(f"offset is {offset}: this batch has offsets {self.start} to {self.end - 1}")
        self._check_turn()
        text = cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
        return await self._owner.fail(self._held, offset, writable(text)[:MAX_CAUSE])

    @property
    def is_void(self) -> bool:
        """Whether a message of the stream failed after the batch was handed out: it comes again."""
        return self.turn != self._held.turn or self._held.failing is not None

    def _check_turn(self) -> None:
        if self.is_void:
            raise InvalidInput(
                f"a message of stream {self.stream} failed after this batch was handed out: "
                f"drop the batch, its messages come again"
            )

    @property
    def held(self) -> Held:
        """The lease under which the batch was read."""
        return self._held

    @property
    def rows(self) -> BatchRows:
        """What the messages are made of."""
        return self._rows


class ReadAhead:
    """Batches that wait; some may be of streams that are not the consumer's any more.

    Args:
        most_messages, most_bytes, most_batches: so much is to wait at most. The last read may exceed it.
    """

    def __init__(self, most_messages: int, most_bytes: int, most_batches: int) -> None:
        self._most = (most_messages, most_bytes, most_batches)
        self.messages = self.bytes = self.batches = 0
        """How much waits."""
        self._streams: OrderedDict[Held, deque[Batch]] = OrderedDict()
        """In the order of their turns; of each stream a batch at least, in order."""

    @property
    def has_room(self) -> bool:
        """Whether half of what may wait is free: rounds that read a little each would cost more."""
        messages, size, batches = self._most
        return 2 * self.messages <= messages and 2 * self.bytes <= size and 2 * self.batches <= batches

    @property
    def room(self) -> tuple[int, int]:
        """How many messages and batches may still come."""
        messages, _, batches = self._most
        return messages - self.messages, batches - self.batches

    def rests(self, held: Held) -> bool:
        """Whether a batch of a stream that was read to its end waits."""
        waiting = self._streams.get(held)
        return waiting is not None and not waiting[-1].more

    def put(self, batch: Batch, size: int, *, more: bool) -> None:
        """Keep `batch`, of `size` bytes, behind what waits of its stream.

        Args:
            more: whether the stream has more behind it.
        """
        batch.size, batch.more = size, more
        waiting = self._streams.get(batch.held)
        if waiting is None:
            self._streams[batch.held] = deque((batch,))
        else:
            waiting.append(batch)
        self._count(len(batch), size, 1)

    def take(self, most: int) -> Batch | None:
        """The next batch, or a part of it with at most `most` messages."""
        if not self._streams:
            return None
        held, waiting = self._streams.popitem(last=False)
        batch, rest = waiting.popleft().parted(most)
        if rest is not None:
            waiting.appendleft(rest)
        if waiting:
            self._streams[held] = waiting
        self._count(-len(batch), -batch.size, 0 if rest is not None else -1)
        return batch

    def void(self, held: Held, position: int = 0) -> None:
        """Forget what waits of a stream behind `position`."""
        waiting = self._streams.get(held)
        while waiting and waiting[-1].end > position:
            batch = waiting.pop()
            self._count(-len(batch), -batch.size, -1)
        if waiting is not None and not waiting:
            del self._streams[held]

    def _count(self, messages: int, size: int, batches: int) -> None:
        self.messages += messages
        self.bytes += size
        self.batches += batches


def writable(text: str) -> str:
    """`text` without lone surrogates, which no message can carry."""
    return text.encode("utf-8", "backslashreplace").decode()
