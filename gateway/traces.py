"""The trace of a request, which goes on in the messages that it publishes.

Where the process has a tracer provider, a span of kind *server* continues the trace that the request names
(``traceparent``); its messages are made within it, and so carry it. Probes are not traced. Without a provider
the messages carry the context of the request as it came (W3C Trace Context).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from streamlease.gateway.core.bodies import Header, MessageColumns, MessageTable, Pairs, Parsed, SingleMessage
from streamlease.streams.entries.message_rows import HEADERS
from streamlease.streams.publish.traces import active_tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from streamlease.gateway.http_calls import HttpCall


CONTEXT = "traceparent"
STATE = "tracestate"
MOST_STATE = 512

_CONTEXT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class RequestTraces:
    """Makes the spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @classmethod
    def active(cls) -> RequestTraces | None:
        """What makes spans, if the program has set a tracer provider; else None."""
        tracer = active_tracer()
        return None if tracer is None else cls(tracer)

    @contextmanager
    def request(self, call: HttpCall) -> Iterator[None]:
        """Within, the request is answered."""
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind, StatusCode

        method = call.scope["method"]
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
        with self._tracer.start_as_current_span(
            method, propagate.extract(given), SpanKind.SERVER, {"http.request.method": method}
        ) as span:
            yield
            span.update_name(f"{method} {call.route}")
            span.set_attribute("http.route", call.route)
            if call.status:
                span.set_attribute("http.response.status_code", call.status)
            if call.status >= 500:
                span.set_status(StatusCode.ERROR)


def context_headers(header: Header) -> Pairs:
    """The headers that a message of this request carries; none where the request has no valid context."""
    context = header(CONTEXT.encode())
    if context is None or _CONTEXT.fullmatch(context) is None:
        return []
    found: Pairs = [(CONTEXT, context.encode())]
    state = header(STATE.encode())
    if state and len(state) <= MOST_STATE and state.isascii() and state.isprintable():
        found.append((STATE, state.encode()))
    return found


def with_context(parsed: Parsed, context: Pairs) -> Parsed:
    """The messages with that context, except those that have one of their own."""
    match parsed:
        case SingleMessage():
            return replace(parsed, headers=_joined(parsed.headers, context))
        case MessageColumns():
            given = parsed.headers or [None] * len(parsed.payloads)
            return replace(parsed, headers=[_joined(one, context) for one in given])
        case MessageTable() if "headers" not in parsed.rows.schema.names:
            pairs = [{"key": name, "value": value} for name, value in context]
            column = pa.repeat(pa.scalar(pairs, HEADERS), parsed.rows.num_rows)
            return replace(parsed, rows=parsed.rows.append_column("headers", column))
    return parsed


def _joined(headers: Pairs | None, context: Pairs) -> Pairs:
    own = headers or []
    return own if any(name == CONTEXT for name, _ in own) else [*own, *context]
