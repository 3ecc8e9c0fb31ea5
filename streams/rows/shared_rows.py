"""Rows of one stream as they are handed on: what was decoded together stays together until it is looked at.

With a few messages in each of many streams, a call of Arrow for each stream costs more than all its rows. So
the streams of a round share one record batch (``together``), each with some rows of it; and what is asked of
one of them, which topics match or the messages as objects, is worked out for all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from streamlease.streams.entries.arrays import flags
from streamlease.streams.entries.delivered import Message, Messages, to_messages
from streamlease.streams.entries.message_rows import filter_batch, rows_matched, with_plain_topics


class _Shared:
    """A record batch of several streams, and what was worked out of it."""

    __slots__ = ("_filter", "_matched", "_messages", "batch")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._messages: list[Message] | None = None
        self._filter: str | None = None
        self._matched: list[bool] | None = None

    def some(self, first: int, rows: int) -> list[Message]:
        """Of the messages, which are made for all streams together."""
        if self._messages is None:
            self._messages = to_messages(self.batch)
        return self._messages[first : first + rows]

    def matched(self, filter: str) -> list[bool] | None:
        if self._filter != filter:
            self._filter, self._matched = filter, rows_matched(self.batch, filter)
        return self._matched


class Rows:
    """Some rows of one stream, in order; not changed any more.

    Args:
        batch: these rows, with at least the column topic; perhaps as a dictionary.
    """

    __slots__ = ("_batch", "_first", "_messages", "_rows", "_shared")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch: pa.RecordBatch | None = batch
        self._messages: Messages | None = None
        self._shared: _Shared | None = None
        self._first, self._rows = 0, int(batch.num_rows)

    @classmethod
    def parts(cls, batch: pa.RecordBatch, lengths: Sequence[int]) -> list[Rows]:
        """The rows of several streams, which stand in `batch` one behind the other."""
        shared, parts, first = _Shared(batch), [], 0
        for length in lengths:
            part = cls.__new__(cls)
            part._batch, part._shared, part._first, part._rows = None, shared, first, length
            part._messages = None
            parts.append(part)
            first += length
        return parts

    def __len__(self) -> int:
        return self._rows

    @property
    def batch(self) -> pa.RecordBatch:
        """These rows alone; their topics may be a dictionary."""
        if self._batch is None:
            assert self._shared is not None
            self._batch = self._shared.batch.slice(self._first, self._rows)
        return self._batch

    def plain(self) -> Rows:
        """The same with texts in the column topic."""
        batch = with_plain_topics(self.batch)
        return self if batch is self._batch else Rows(batch)

    def offset(self, place: int) -> int:
        """That of a row."""
        offset: int = self.batch.column("offset")[place].as_py()
        return offset

    def slice(self, first: int, last: int) -> Rows:
        """Those from `first` to before `last`."""
        return Rows(self.batch.slice(first, last - first))

    def filtered(self, filter: str) -> Rows:
        """Those whose topic is matched by `filter`."""
        if self._shared is None:
            chosen = filter_batch(self.batch, filter)
            return self if chosen is self._batch else Rows(chosen)
        matched = self._shared.matched(filter)
        mine = matched[self._first : self._first + self._rows] if matched is not None else ()
        return self if all(mine) else Rows(self.batch.filter(flags(mine)))

    @property
    def messages(self) -> Messages:
        """The rows as messages."""
        messages = self._messages
        if messages is None:
            if self._shared is None:
                make = partial(to_messages, self.batch)
            else:
                make = partial(self._shared.some, self._first, self._rows)
            messages = self._messages = Messages(self._rows, make)
        return messages
