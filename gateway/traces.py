"""Spans of a gateway's requests for OpenTelemetry, where the process has a tracer provider.

A span of kind *server* continues the trace that the request names (``traceparent``); the messages that it
publishes are made within it, and so carry it. Probes are not traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamlease.streams.publish.traces import active_tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from streamlease.gateway.http_calls import HttpCall


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
