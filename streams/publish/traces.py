"""Traces of OpenTelemetry: what a message went through, from its publisher to the commit of its consumer.

Theory of operation. Nothing is traced unless the program has set a tracer provider before it makes its
publisher or subscription: `active` looks for one once, then. OpenTelemetry need not be installed, and is not
imported here before the program has done so. The spans,
named as OpenTelemetry's conventions for messaging say:

========================= ========== =================================================================
``send SPACE``            producer   from the first message of an entry until Redis answered for it
``receive SPACE``         consumer   from the read of a batch until the program has it
``settle SPACE``          client     a commit of the program, until it is durable
``lease`` ``hand-over``   internal   of a leader: a lease becomes durable; a stream reaches its next owner
========================= ========== =================================================================

The context in which a message is published travels in its headers (``traceparent``, as W3C writes it), unless
it has one already. ``send`` and ``receive`` are linked with all contexts that their messages have; where
there is only one and no span is open, ``receive`` is its child, so that a trace goes on by itself. A program
that works message by message makes its spans under `context_of`.

If no code of the program runs during a span, the span is made at its end, with the time at which it began.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamlease.streams.entries.delivered import Message
from streamlease.streams.entries.message_rows import HEADERS, HeadersInput, pack_headers

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext, Tracer

    from streamlease.protocol.errors import StreamleaseError
    from streamlease.protocol.ids import StreamId
    from streamlease.streams.publish.parts import Part

CARRIED = "traceparent"
MOST_LINKS = 128
"""What the SDK keeps by default of the links of one span."""


def active() -> Traces | None:
    """What makes spans, if the program has set a tracer provider; else None."""
    tracer = active_tracer()
    return None if tracer is None else Traces(tracer)


def active_tracer() -> Tracer | None:
    """A tracer, if the program has set a tracer provider; else None."""
    # Who has set a provider has imported the package.
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer_provider().get_tracer("streamlease")


def context_of(message: Message) -> Context:
    """The context in which a message was published: the parent for spans of its processing.

    Needs the extra ``otel``.
    """
    from opentelemetry import propagate

    return propagate.extract(_texts(message.headers))


class Traces:
    """Makes the spans of publishers and consumers."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    # ------------------------------------------------------------ publishing

    def carried(self, headers: HeadersInput | None) -> HeadersInput | None:
        """The headers with the present context, unless there is none, or they have one."""
        found = self._present()
        if not found:
            return headers
        packed = pack_headers(headers) or ()
        return headers if any(name == CARRIED for name, _ in packed) else (*packed, *found)

    def carried_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the present context; a batch with a column of headers stays as it is."""
        found = self._present()
        if not found or "headers" in batch.schema.names:
            return batch
        pairs = [{"key": name, "value": value} for name, value in found]
        column = pa.repeat(pa.scalar(pairs, HEADERS), batch.num_rows)
        return batch.append_column("headers", column)

    def join(self, part: Part) -> None:
        """The present context has a message in `part`."""
        from opentelemetry import trace

        now = trace.get_current_span().get_span_context()
        if now.is_valid and now not in part.origins and len(part.origins) < MOST_LINKS:
            part.origins = (*part.origins, now)

    def sent(
        self, stream: StreamId | None, part: Part, error: StreamleaseError | None, seconds: float
    ) -> None:
        """A part was written, or has failed, `seconds` after its first message."""
        from opentelemetry.trace import SpanKind

        attributes = _about(stream, part.count, "send")
        if error is not None:
            attributes["error.type"] = type(error).__name__
        self._make(
            f"send {stream.space if stream else '?'}",
            SpanKind.PRODUCER,
            round(time.time_ns() - seconds * 1e9),
            attributes,
            part.origins,
            error,
        )

    # ------------------------------------------------------------ consuming

    def received(self, stream: StreamId, data: pa.RecordBatch, start: int, began: int) -> SpanContext:
        """A batch from offset `start` on, read since `began` (ns since 1970), is handed to the program."""
        from opentelemetry.trace import SpanKind

        attributes = {**_about(stream, data.num_rows, "receive"), "streamlease.offset": start}
        return self._make(f"receive {stream.space}", SpanKind.CONSUMER, began, attributes, _contexts(data))

    @contextlib.contextmanager
    def settling(self, stream: StreamId, end: int, of: SpanContext | None) -> Iterator[None]:
        """Within, everything below offset `end` is committed; `of` is the span of its ``receive``."""
        from opentelemetry.trace import Link, SpanKind

        attributes = {**_about(stream, None, "settle"), "streamlease.offset": end}
        links = [Link(of)] if of is not None else []
        with self._tracer.start_as_current_span(
            f"settle {stream.space}", kind=SpanKind.CLIENT, attributes=attributes, links=links
        ):
            yield

    def settled(
        self,
        stream: StreamId,
        end: int,
        of: SpanContext | None,
        entered: int,
        error: StreamleaseError | None,
    ) -> None:
        """What nobody waited for since `entered` (ns since 1970) is committed, or has failed."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        span = self._tracer.start_span(
            f"settle {stream.space}",
            context=Context(),  # whoever waits for the write that it went with has nothing to do with it
            kind=trace.SpanKind.CLIENT,
            attributes={**_about(stream, None, "settle"), "streamlease.offset": end},
            links=[trace.Link(of)] if of is not None else [],
            start_time=entered,
        )
        if error is not None:
            span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
        span.end()

    # ------------------------------------------------------------ inside

    def _present(self) -> tuple[tuple[str, bytes], ...]:
        from opentelemetry import propagate

        texts: dict[str, str] = {}
        propagate.inject(texts)
        return tuple((name, text.encode()) for name, text in texts.items())

    def _make(
        self,
        name: str,
        kind: Any,
        began: int,
        attributes: Mapping[str, Any],
        origins: tuple[SpanContext, ...],
        error: StreamleaseError | None = None,
    ) -> SpanContext:
        """A span that is over."""
        from opentelemetry import trace

        parent = None
        if len(origins) == 1 and not trace.get_current_span().get_span_context().is_valid:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(origins[0]))
        links: list[Link] = [trace.Link(origin) for origin in origins]
        span = self._tracer.start_span(
            name, context=parent, kind=kind, attributes=dict(attributes), links=links, start_time=began
        )
        if error is not None:
            span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
        span.end()
        return span.get_span_context()


def _about(stream: StreamId | None, count: int | None, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.system": "streamlease",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
    }
    if stream is not None:
        found["messaging.destination.name"] = stream.space
        found["messaging.destination.partition.id"] = str(stream)
    if count is not None:
        found["messaging.batch.message_count"] = count
    return found


def _texts(headers: Any) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in headers}


def _contexts(data: pa.RecordBatch) -> tuple[SpanContext, ...]:
    """The different contexts that the messages of a batch carry, at most `MOST_LINKS`."""
    from opentelemetry import propagate, trace

    column = data.column("headers")
    if column.null_count == len(column):
        return ()
    found: list[SpanContext] = []
    seen: set[bytes] = set()
    for headers in column.to_pylist():
        pairs = [(one["key"], one["value"]) for one in headers or ()]
        carried = dict(pairs).get(CARRIED)
        if carried is None or carried in seen:
            continue
        seen.add(carried)
        context = propagate.extract(_texts(pairs))
        one = trace.get_current_span(context).get_span_context()
        if one.is_valid:
            found.append(one)
        if len(found) == MOST_LINKS:
            break
    return tuple(found)
