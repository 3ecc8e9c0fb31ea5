"""What a version leaves behind, in parts: each in a Redis of its own, and perhaps in files beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from tests.upgrade import archive_part, core_part, gateway_part, queries_part, sink_part, spark_part


class Part(NamedTuple):
    """All values that are not of a client are what JSON knows."""

    write: Callable[[str], Awaitable[Any]]
    """Gets a Redis; what is to be known later of what was done there."""
    read: Callable[[str, Any], Awaitable[Any]]
    """What is found there: what a version finds that has understood all."""
    go_on: Callable[[str, Any], Awaitable[None]]
    """Work goes on there."""
    beside: Callable[[Any], AbstractContextManager[None]] = lambda done: nullcontext()
    """What there is beside Redis while any of these runs, as it was left; of None, nothing yet."""


PARTS = {
    "core": Part(core_part.write, core_part.read, core_part.go_on),
    "archive": Part(archive_part.write, archive_part.read, archive_part.go_on, archive_part.bucket),
    "gateway": Part(gateway_part.write, gateway_part.read, gateway_part.go_on),
    "queries": Part(queries_part.write, queries_part.read, queries_part.go_on),
    "sink": Part(sink_part.write, sink_part.read, sink_part.go_on),
    "spark": Part(spark_part.write, spark_part.read, spark_part.go_on),
}
