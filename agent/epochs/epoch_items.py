"""What a subscription to epochs hands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import SchemaMismatch
from streamlease.streams.entries.delivered import Message, Messages, to_messages


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand where a subscription begins; the first item, unless that is the earliest."""

    lower: Antichain
    """What is not at or above an element of it was completed before."""
    upper: Antichain
    """What is at or below an element of it may have had messages. Who begins at the latest gets none of that;
    who begins elsewhere gets what was not completed there."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """The lower frontier moved: what is not at or above an element of it is completed, and was handed out."""

    lower: Antichain
    """Empty: everything is completed."""
    changes: Mapping[Epoch, int]
    """-1 for each epoch that went, +1 for each that came."""


@dataclass(frozen=True, slots=True)
class EpochBatch:
    """Messages of one epoch: all of them where epochs are read whole, else some of one publisher."""

    epoch: Epoch
    batches: Sequence[pa.RecordBatch]
    """The messages as they were read, stream by stream."""
    publisher: str | None = None
    """Who sent them, where they are read as they come; None where epochs are whole."""
    incarnation: int | None = None
    """Which incarnation of the publisher that was."""
    messages: Messages = field(init=False, repr=False, compare=False)
    """The messages, one by one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", Messages(len(self), partial(_made, self.batches)))

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def __repr__(self) -> str:
        who = f", publisher={self.publisher!r}, incarnation={self.incarnation}" if self.publisher else ""
        return f"EpochBatch(epoch={self.epoch}{who}, messages={len(self)})"

    def to_arrow(self) -> pa.Table:
        """The messages as one table of ``streamlease.streams.entries.message_rows.MESSAGE_SCHEMA``.

        Behind its columns come the typed ones of a space with a schema; of several spaces those of all.

        Raises:
            SchemaMismatch: two spaces have a column of one name and different types.
        """
        tables = [pa.Table.from_batches([batch]) for batch in self.batches]
        try:
            return pa.concat_tables(tables, promote_options="default")
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"epoch {list(self.epoch)} has messages of several spaces, whose columns do not fit together "
                f"({' '.join(str(error).split())}): listen to one space, or name the columns that are wanted"
            ) from None


def _made(batches: Sequence[pa.RecordBatch]) -> list[Message]:
    return [message for batch in batches for message in to_messages(batch)]


@dataclass(frozen=True, slots=True)
class Aborted:
    """A publisher was given up, or came back: what it had open is dropped, and is of no epoch.

    Only who reads data as it comes is told. What was handed out of these epochs with this publisher and this
    incarnation, or an older one, is not valid any more.
    """

    publisher: str
    incarnation: int
    epochs: Antichain
    """Those at or above an element of it."""


EpochItem = Snapshot | Frontier | EpochBatch | Aborted
