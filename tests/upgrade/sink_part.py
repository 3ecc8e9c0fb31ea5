"""What Spark's sink keeps, with a micro-batch that is half written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlease.protocol.errors import NotDurable
from tests.spark.test_sink_faults import Sink, content, once

BATCH = 40


async def write(url: str) -> dict[str, Any]:
    """One micro-batch that was written, and one of which one stream has its rows."""
    await asyncio.to_thread(_write, url)
    return {}


def _write(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        sink = Sink(url, patch)
        sink.run(range(BATCH), 2)
        sink.batch = 1
        writer = sink.query()
        sink.failing(NotDurable("not yet"), 1)
        with pytest.raises(NotDurable):
            writer.commit(sink.staged(writer, range(BATCH, 2 * BATCH), 2), 1)


async def read(url: str, done: Any) -> dict[str, Any]:
    """What is written."""
    return {"written": sorted((await content(url)).items())}


async def go_on(url: str, done: Any) -> None:
    """The batch is repeated, and another one comes: each row once."""
    await asyncio.to_thread(_go_on, url)


def _go_on(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        sink = Sink(url, patch)
        sink.batch = 1
        sink.run(range(BATCH, 2 * BATCH), 3)
        sink.batch = 2
        sink.run(range(2 * BATCH, 3 * BATCH), 2)
        assert sink.content() == once(range(3 * BATCH))
