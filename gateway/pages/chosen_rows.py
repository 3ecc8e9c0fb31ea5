"""The messages of one piece of a feed, by filter: each is chosen once, however many clients want it.

A piece with few messages, as they come when somebody publishes one by one, becomes objects as a whole at the
first question: columns of one row each would cost a hundred times as much per message.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streamlease.protocol.topics import matches
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.entries.message_rows import filter_batch

FEW = 256
"""Messages of a piece that is read as a whole."""

MESSAGE_BYTES = 512
"""What a message takes as an object, beside its bytes."""

Chosen = tuple[pa.RecordBatch, Sequence[Message] | None]
"""Rows, and the same as messages, if those are at hand."""


class ChosenRows:
    """A piece.

    Args:
        whole: its messages, at least one.
    """

    __slots__ = ("_by_filter", "_indices", "_messages", "_places", "_topics", "_whole")

    def __init__(self, whole: pa.RecordBatch) -> None:
        self._whole = whole
        self._by_filter: dict[str, Chosen] = {}
        topics = whole.column("topic")
        if not pa.types.is_dictionary(topics.type):
            topics = pc.dictionary_encode(topics)
        self._topics: list[str] = topics.dictionary.to_pylist()
        """Perhaps also such as no message has."""
        self._indices = topics.indices
        self._messages: list[Message] | None = None
        self._places: dict[str, list[int]] | None = None

    @property
    def size(self) -> int:
        """Bytes that it takes, also when it has been asked."""
        few = self._whole.num_rows if self._whole.num_rows <= FEW else 0
        bytes: int = self._whole.nbytes
        return bytes + few * MESSAGE_BYTES

    def rows(self, filter: str, start: int) -> Chosen:
        """Those that `filter` matches, from the offset `start` on."""
        chosen = self._by_filter.get(filter)
        if chosen is None:
            chosen = self._by_filter[filter] = self._chosen(filter)
        rows, messages = chosen
        if not rows.num_rows:
            return chosen
        if messages is None:
            return _rows_from(rows, start), None
        if messages[0].offset >= start:
            return chosen
        before = next((place for place, one in enumerate(messages) if one.offset >= start), len(messages))
        return rows.slice(before), messages[before:]

    def rows_from(self, start: int) -> pa.RecordBatch:
        """All from the offset `start` on."""
        return _rows_from(self._whole, start)

    def topics(self) -> list[str]:
        """The topics of all messages, each once."""
        return self._topics

    def _chosen(self, filter: str) -> Chosen:
        wild = "+" in filter or "#" in filter
        if self._whole.num_rows <= FEW:
            if self._messages is None:
                self._messages = to_messages(self._whole)
            if len(self._topics) == 1 and matches(filter, self._topics[0]):
                return self._whole, self._messages
        elif wild or len(self._topics) == 1:
            return filter_batch(self._whole, filter), None
        if wild:
            places = sorted(
                place for topic, some in self._by_topic().items() if matches(filter, topic) for place in some
            )
        else:  # a topic, as each of a thousand clients may have its own: found without a look at all messages
            places = self._by_topic().get(filter, [])
        return self._at(places)

    def _by_topic(self) -> dict[str, list[int]]:
        """Where the messages of each topic stand."""
        if self._places is None:
            self._places = {}
            for place, index in enumerate(self._indices.to_pylist()):
                self._places.setdefault(self._topics[index], []).append(place)
        return self._places

    def _at(self, places: Sequence[int]) -> Chosen:
        if not places:
            return self._whole.slice(0, 0), None
        together = places[-1] - places[0] + 1 == len(places)
        rows = self._whole.slice(places[0], len(places)) if together else self._whole.take(pa.array(places))
        return rows, None if self._messages is None else [self._messages[place] for place in places]


def _rows_from(rows: pa.RecordBatch, start: int) -> pa.RecordBatch:
    if not rows.num_rows or rows.column("offset")[0].as_py() >= start:
        return rows
    return rows.slice(pc.less(rows.column("offset"), start).true_count)
