"""A few messages of one stream, as they are handed on where they were read without Arrow. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain, compress, repeat
from typing import Any

import pyarrow as pa

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import begin_of
from streamlease.streams.entries.decoding import Single, decode_singles
from streamlease.streams.entries.delivered import Message, Messages
from streamlease.streams.entries.message_rows import topic_selected
from streamlease.streams.rows.shared_rows import Rows

_message = partial(tuple.__new__, Message)
"""A message of all its fields; `Message` itself takes three times as long."""


class FewMessages:
    """Messages of one stream, in order, as columns of Python values.

    The messages themselves are made when somebody asks for them. What waits to be handed out would otherwise
    be an object for each message, through which Python's garbage collector looks again and again; it soon
    leaves tuples of bytes and numbers alone.
    """

    __slots__ = (
        "_appended",
        "_batch",
        "_epochs",
        "_keys",
        "_messages",
        "_offsets",
        "_payloads",
        "_stream",
        "_times",
        "_topics",
    )

    def __init__(
        self,
        stream: StreamId,
        topics: Sequence[str] = (),
        keys: Sequence[bytes | None] = (),
        payloads: Sequence[bytes] = (),
        offsets: Sequence[int] = (),
        times: Sequence[int] = (),
        appended: Sequence[int] = (),
        epochs: Sequence[Epoch | None] = (),
    ) -> None:
        self._stream = stream
        self._topics = tuple(topics)
        self._keys = tuple(keys)
        self._payloads = tuple(payloads)
        self._offsets = offsets
        self._times = tuple(times)
        self._appended = tuple(appended)
        self._epochs = tuple(epochs)
        self._batch: pa.RecordBatch | None = None
        self._messages: Messages | None = None

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def _columns(self) -> tuple[Sequence[Any], ...]:
        return (
            self._topics,
            self._keys,
            self._payloads,
            self._offsets,
            self._times,
            self._appended,
            self._epochs,
        )

    @property
    def batch(self) -> pa.RecordBatch:
        """The messages as a record batch of ``MESSAGE_SCHEMA``."""
        if self._batch is None:
            topics, keys, payloads, *others = self._columns
            singles = [*map(Single, topics, keys, payloads, repeat(None), *others)]
            self._batch = decode_singles(None, [self._stream], [singles])
        return self._batch

    @property
    def messages(self) -> Messages:
        """The messages."""
        messages = self._messages
        if messages is None:
            make = partial(_made, self._stream, self._columns)
            messages = self._messages = Messages(len(self._payloads), make)
        return messages

    def plain(self) -> FewMessages:
        """The same, with texts in the column topic."""
        return self

    def offset(self, place: int) -> int:
        """That of a message."""
        return self._offsets[place]

    def slice(self, first: int, last: int) -> FewMessages:
        """Those from `first` to before `last`."""
        return FewMessages(self._stream, *(column[first:last] for column in self._columns))

    def filtered(self, filter: str) -> FewMessages:
        """Those whose topic is matched by `filter`."""
        begin = begin_of(filter)
        if begin is None:
            chosen = [topic_selected((filter,), topic) for topic in self._topics]
        elif self._topics and min(self._topics).startswith(begin) and max(self._topics).startswith(begin):
            return self  # and so do all that are in between
        else:
            chosen = [topic.startswith(begin) or topic == begin[:-1] for topic in self._topics]
        if all(chosen):
            return self
        return FewMessages(self._stream, *((*compress(column, chosen),) for column in self._columns))

    @classmethod
    def joined(cls, parts: Sequence[FewMessages]) -> FewMessages:
        """Those of `parts`, of one stream, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part._columns for part in parts), strict=True)
        return cls(parts[0]._stream, *((*chain.from_iterable(some),) for some in columns))


def _made(stream: StreamId, columns: tuple[Sequence[Any], ...]) -> list[Message]:
    topics, keys, payloads, offsets, times, appended, epochs = columns
    name = repeat(str(stream))
    all = (topics, keys, payloads, name, offsets, times, appended, repeat(()), epochs, repeat(None))
    return [*map(_message, zip(*all, strict=False))]


StreamRows = Rows | FewMessages
"""What was read of one stream."""
