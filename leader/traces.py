"""Spans of what leaders decide, when the program traces at all; see ``streams.publish.traces``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamlease.leader.core.state.records import HandedOver, Leased, Record

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def committed(tracer: Tracer, group: str, term: int, records: Iterable[Record], began: int) -> None:
    """A group commit that began at `began` (ns since 1970) is durable: spans of its leases and hand-overs."""
    now = time.time_ns()
    for record in records:
        if isinstance(record, Leased):
            name, start = "lease", began
            more: dict[str, str | int] = {"lease_epoch": record.lease_epoch, "borrower": record.name}
        elif isinstance(record, HandedOver):
            name, start = "hand-over", now - record.milliseconds * 1_000_000
            more = {"how": "hand-over" if record.clean else "take-over"}
        else:
            continue
        about = {"group": group, "term": term, "stream": record.stream, **more}
        attributes = {f"streamlease.{key}": value for key, value in about.items()}
        tracer.start_span(name, attributes=attributes, start_time=start).end(now)
