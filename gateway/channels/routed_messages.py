"""Messages on their way to keys: whom each of a batch concerns, its JSON, and the cursors behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pydantic_core import to_json

from streamlease.gateway.core.cursors import Cursor, CursorCodec, Places
from streamlease.gateway.core.interests import Interests
from streamlease.gateway.pages.message_page import shown
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries import kernels as pc
from streamlease.streams.rows.shared_rows import Rows

W = TypeVar("W")


class RoutedMessage(NamedTuple):
    """A message that somebody wants."""

    offset: int
    body: bytes
    """As JSON; one object, however many want it."""


def routed(data: pa.RecordBatch, interests: Interests[W]) -> Iterator[tuple[RoutedMessage, list[W]]]:
    """The messages of a batch that anybody wants, and who."""
    topics = data.column("topic")
    distinct: list[str] = pc.unique(topics).to_pylist()
    whom = {topic: some for topic in distinct if (some := interests.of((topic,)))}
    if not whom:
        return
    if len(whom) < len(distinct):
        data = data.filter(pc.is_in(topics, value_set=pa.array([*whom], topics.type)))
    for message in Rows(data).messages:
        yield RoutedMessage(message.offset, to_json(shown(message))), whom[message.topic]


class CursorLine:
    """The cursors of one point in the log, while one stream goes on from there.

    Args:
        places: those of the point.
        stream: the one that goes on.
    """

    __slots__ = ("_cursors", "_places", "_stream", "_texts")

    def __init__(self, cursors: CursorCodec, places: Places, stream: StreamId) -> None:
        self._cursors = cursors
        self._places = places
        self._stream = stream
        self._texts: dict[int, str] = {}

    def text(self, next: int) -> str:
        """The cursor at the offset `next` of the stream."""
        text = self._texts.get(next)
        if text is None:
            text = self._cursors.text(Cursor({**self._places, self._stream: (next, False)}))
            self._texts[next] = text
        return text
