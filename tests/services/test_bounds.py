"""How much one process may ask for at once: calls, and bytes of requests."""

from __future__ import annotations

import asyncio

import pytest

import streamlease
from streamlease.protocol.errors import ServiceBusy
from streamlease.services import caller
from tests.services.models import Blob, Scored


@pytest.mark.parametrize(
    ("bound", "value", "said"),
    [
        ("MOST_CALLS", 3, "3 calls of this process are under way: at most 3"),
        ("MOST_BYTES", 3 << 20, "3 calls of this process are under way: .* with 3 MiB of requests; wait"),
    ],
)
async def test_more_calls_than_a_process_may_have_are_refused_until_some_are_answered(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, said: str
) -> None:
    monkeypatch.setattr(caller, bound, value)
    go, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def wait(request: Blob) -> Scored:
        begun.release()
        await go.wait()
        return Scored(y=len(request.data))

    large = Blob(data="x" * 1_000_000)
    async with (
        streamlease.connect(embedded_redis_url) as client,
        streamlease.connect(embedded_redis_url) as server,
        server.serve("waits", {Blob: wait}),
    ):
        calls = [asyncio.create_task(client.call("waits", large, answer=Scored)) for _ in range(3)]
        for _ in range(3):
            await begun.acquire()
        with pytest.raises(ServiceBusy, match=said) as refused:
            await client.call("waits", large, answer=Scored)
        assert refused.value.retriable
        go.set()
        assert [(await call).y for call in calls] == [1_000_000.0] * 3
        assert (await client.call("waits", large, answer=Scored)).y == 1_000_000.0


def test_the_bounds_are_those_of_the_page() -> None:
    assert (caller.MOST_CALLS, caller.MOST_BYTES) == (20_000, 64 * 1024 * 1024)
