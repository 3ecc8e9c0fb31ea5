"""Pages: some messages behind a cursor, and the cursor behind them, in the forms that clients ask for.

A page that many clients get, as those who wait at the end of a space do, is one object: each form of it is
made once.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pydantic_core import to_json

from streamlease.gateway.core.cursors import Cursor, CursorCodec, mark
from streamlease.protocol.ids import StreamId
from streamlease.protocol.plain_values import iso, plain
from streamlease.streams.entries.delivered import Message
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA
from streamlease.streams.rows.shared_rows import Rows


class MessagePage:
    """Messages, in order.

    Args:
        batches: never empty ones.
        messages: of each batch the same as messages, or None if they are to be made.
        size: of all, in bytes.
        before: the cursor behind which they stand.
        next: the cursor behind them.
    """

    def __init__(
        self,
        batches: Sequence[pa.RecordBatch],
        messages: Sequence[Sequence[Message] | None],
        size: int,
        before: Cursor | None,
        next: Cursor,
        cursors: CursorCodec,
    ) -> None:
        self._at_hand = messages
        self._batches = batches
        self._before = before
        self.next = next
        self._cursors = cursors
        self.count = sum(batch.num_rows for batch in batches)
        self.bytes = size

    @cached_property
    def next_text(self) -> str:
        """`next` as the client gets it."""
        return self._cursors.text(self.next)

    @cached_property
    def json(self) -> bytes:
        """One JSON document."""
        return to_json({"messages": [*map(shown, self._messages)], "next": self.next_text})

    @cached_property
    def lines(self) -> bytes:
        """A JSON document for each message."""
        return b"".join(to_json(shown(one)) + b"\n" for one in self._messages)

    @cached_property
    def arrow(self) -> bytes:
        """An Arrow stream; its schema names the cursor too."""
        schema = self._batches[0].schema if self._batches else MESSAGE_SCHEMA
        schema = schema.with_metadata({**(schema.metadata or {}), "next": self.next_text})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in self._batches:
                writer.write_batch(batch.cast(schema) if batch.schema != schema else batch)
        whole: bytes = sink.getvalue().to_pybytes()
        return whole

    @cached_property
    def events(self) -> bytes:
        """Server-sent events, each with the cursor behind it and the mark of that before it.

        What the first one comes after depends on who gets the page: see ``event_streams``.
        """
        places, out, after = {} if self._before is None else dict(self._before.places), [], b""
        last = self.count - 1
        for place, message in enumerate(self._messages):
            stream = StreamId.parse(message.stream)
            places[stream] = (message.offset + 1, False)
            # The last one's cursor also stands behind what the filter does not match.
            id = self.next_text if place == last else self._cursors.text(Cursor(places))
            out.append(b"%bid: %b\ndata: %b\n\n" % (after, id.encode(), to_json(shown(message))))
            after = b"after: %b\n" % mark(id)
        return b"".join(out)

    @property
    def _messages(self) -> Iterator[Message]:
        for batch, at_hand in zip(self._batches, self._at_hand, strict=True):
            yield from Rows(batch).messages if at_hand is None else at_hand


def shown(message: Message) -> dict[str, Any]:
    """A message as JSON has it."""
    topic, key, payload, stream, offset, *_ = message
    out: dict[str, Any] = {"topic": topic}
    out.update(_text("key", key))
    if message.values is None:
        out.update(_text("payload", payload))
    else:
        out["values"] = plain(message.values)
    out["stream"] = stream
    out["offset"] = offset
    out["previous"] = offset - 1 if offset else None
    out["timestamp"] = iso(message.timestamp)
    out["headers"] = [[name, _header(value)] for name, value in message.headers]
    out["epoch"] = message.epoch
    return out


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _header(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
