"""Messages behind a cursor, taken until there are enough for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.gateway.pages.message_page import MessagePage
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.delivered import Message

ROW_BYTES = 64
"""About as much is each message beside its contents."""

ANSWER_BYTES = 8 * 1024 * 1024
"""An answer ends with the batch that brings so much."""


class PageTaking:
    """Takes messages behind a cursor until there are enough.

    Args:
        limit: most messages.
    """

    def __init__(self, after: Cursor | None, limit: int) -> None:
        self._before = after
        self.places = {} if after is None else dict(after.places)
        self._batches: list[pa.RecordBatch] = []
        self._messages: list[Sequence[Message] | None] = []
        self._left = limit
        self._bytes_left = ANSWER_BYTES

    @property
    def count(self) -> int:
        """How many messages were taken."""
        return sum(batch.num_rows for batch in self._batches)

    def next_of(self, stream: StreamId) -> int:
        """The offset that comes next of a stream."""
        return self.places.get(stream, (0, False))[0]

    def take(
        self, stream: StreamId, end: int, rows: pa.RecordBatch, messages: Sequence[Message] | None = None
    ) -> bool:
        """The chosen messages of a stream up to the offset `end`; whether more may be taken.

        Args:
            messages: the same as `rows`, if they are at hand.
        """
        if not rows.num_rows:
            self.places[stream] = (end, False)
            return True
        if self._batches and rows.schema != self._batches[0].schema:
            return False  # one answer has one schema
        if rows.num_rows > self._left:
            rows = rows.slice(0, self._left)
            messages = None if messages is None else messages[: self._left]
            end = rows.column("offset")[-1].as_py() + 1
        self._batches.append(rows)
        self._messages.append(messages)
        self.places[stream] = (end, False)
        self._left -= rows.num_rows
        self._bytes_left -= _size(rows, messages)
        return self._left > 0 and self._bytes_left > 0

    def end(self, ended: Iterable[tuple[StreamId, int]]) -> None:
        """Note which streams were read to their sealed ends."""
        for stream, end in ended:
            if self.places.get(stream, (-1, False))[0] == end:
                self.places[stream] = (end, True)

    def page(self, cursors: CursorCodec) -> MessagePage:
        """What was taken."""
        size = ANSWER_BYTES - self._bytes_left
        return MessagePage(self._batches, self._messages, size, self._before, Cursor(self.places), cursors)


def _size(rows: pa.RecordBatch, messages: Sequence[Message] | None) -> int:
    """Bytes; of messages that are at hand their contents, for Arrow takes long to count a single row."""
    if messages is None or messages[0].values is not None:
        size: int = rows.nbytes
        return size
    return sum(len(one.payload) + sum(len(value) for _, value in one.headers) + ROW_BYTES for one in messages)
