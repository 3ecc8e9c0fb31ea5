"""The trace that a request belongs to (W3C Trace Context), on the messages that it publishes. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa

from streamlease.gateway.core.bodies import Header, MessageColumns, MessageTable, Pairs, Parsed, SingleMessage
from streamlease.streams.entries.message_rows import HEADERS

CONTEXT = "traceparent"
STATE = "tracestate"
MOST_STATE = 512

_CONTEXT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


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
