"""A consumer of a group that reads whole epochs, as a Python program sees it.

::

    async with client.subscribe("$shared/g/clicks/#", epochs="atomic") as items:
        async for item in items:
            match item:
                case EpochPart(epoch): ...          # all messages of it in one stream
                    await item.commit()
                case Frontier(lower): ...           # what is behind it was handed out, of the streams held
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pyarrow as pa

from streamlease.agent.batch import Batch
from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier
from streamlease.agent.epochs.epoch_parts import EpochParts, PartRows
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import Verdict
from streamlease.streams.entries.delivered import Messages


class EpochPart:
    """All messages of one epoch in one stream, in order: what is committed together."""

    __slots__ = ("batch", "epoch", "whole")
    __match_args__ = ("epoch",)

    def __init__(self, batch: Batch) -> None:
        assert batch.of is not None
        self.batch = batch
        self.epoch: Epoch | None = batch.of.epoch
        """None: Redis has lost the boundary that says it; each message has its own."""
        self.whole = batch.of.whole
        """False: some of them are missing. The group was put into the middle of the epoch, or one message
        failed and these are those behind it, or Redis lost some.
        """

    def __len__(self) -> int:
        return len(self.batch)

    def __repr__(self) -> str:
        of = f"epoch={self.epoch}, whole={self.whole}, stream={self.stream}"
        return f"EpochPart({of}, start={self.start}, end={self.end}, messages={len(self)})"

    @property
    def stream(self) -> StreamId:
        """Where they stand."""
        return self.batch.stream

    @property
    def start(self) -> int:
        """Offsets ``start <= offset < end``; those that the filter does not match are left out."""
        return self.batch.start

    @property
    def end(self) -> int:
        """See `start`."""
        return self.batch.end

    @property
    def messages(self) -> Messages:
        """The messages, one by one."""
        return self.batch.messages

    def to_arrow(self) -> pa.Table:
        """The messages as one table, as of `EpochBatch.to_arrow`."""
        rows = self.batch.rows
        assert isinstance(rows, PartRows)
        return EpochBatch(self.epoch or (), rows.batches).to_arrow()

    async def commit(self) -> None:
        """All of it is done; see `Batch.commit`."""
        await self.batch.commit()

    def commit_soon(self) -> None:
        """The same, without a wait; see `Batch.commit_soon`."""
        self.batch.commit_soon()

    async def fail(self, offset: int, cause: BaseException | str) -> Verdict:
        """The message at `offset` could not be processed, and everything before it is done.

        So the part is divided: what follows comes again as another one, which is not `whole`. Who wants all
        of it again, or nothing, says ``fail(part.start, cause)``. See `Batch.fail`.
        """
        return await self.batch.fail(offset, cause)


class EpochGroupReader:
    """The async iterator over the parts of the streams that are held, and over what is told of the frontier.

    Everything else is that of `SharedReader`.
    """

    def __init__(self, reader: SharedReader, parts: EpochParts) -> None:
        self._reader = reader
        self._parts = parts

    @property
    def streams(self) -> list[str]:
        """The streams that are held now."""
        return self._reader.streams

    def __aiter__(self) -> AsyncIterator[EpochPart | Frontier]:
        return self

    async def __anext__(self) -> EpochPart | Frontier:
        """The next item.

        Raises:
            InvalidOption: the group got streams of a space whose epochs it does not read.
            And as of `SharedReader`.
        """
        found = await self._reader.next_item(self._parts.frontier)
        return EpochPart(found) if isinstance(found, Batch) else found

    async def flush(self) -> None:
        """See `SharedReader.flush`."""
        await self._reader.flush()

    async def close(self) -> None:
        """See `SharedReader.close`."""
        await self._reader.close()

    def finished(self) -> None:
        """See `SharedReader.finished`."""
        self._reader.finished()

    def not_seen(self) -> None:
        """See `SharedReader.not_seen`."""
        self._reader.not_seen()
