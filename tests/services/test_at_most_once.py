"""What a server takes of what is in its stream: each entry once, nothing whose caller has given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

import streamlease
from streamlease.services import keys
from streamlease.services.core.frames import cancel_head, request_head
from streamlease.services.core.shapes import shape_of
from streamlease.services.outbox import Outbox
from streamlease.streams.redis.connection import Command, ask
from tests.services.load import until
from tests.services.models import Score, Scored, Scorer

OWN = shape_of(Score).fingerprint


def _entry(
    key: str, number: int, x: int, seconds: float = 60.0, own: str = OWN, judged: str = OWN
) -> Command:
    expires = int((time.time() + seconds) * 1000)  # the servers of the tests have this machine's clock
    head = request_head(x, expires, own, judged, "scorer", "Score")
    return ("XADD", key, "*", "f", "somebody", "n", number, head, b'{"x":%d}' % x)


async def test_an_entry_that_is_sent_again_is_taken_once(redis_url: str) -> None:
    scorer = Scorer()
    async with streamlease.connect(redis_url) as server, server.serve("scorer", {Score: scorer.score}):
        key = keys.requests((await server._services.endpoint()).address)
        await ask(server.redis, [_entry(key, 1, 1), _entry(key, 1, 1), _entry(key, 2, 2), _entry(key, 1, 1)])
        await ask(server.redis, [_entry(key, 2, 2), _entry(key, 7, 3), _entry(key, 4, 4), _entry(key, 8, 5)])
        await until(lambda: scorer.ran[5])
        assert scorer.ran == {1: 1, 2: 1, 3: 1, 5: 1}, "also none from before what came already"


async def test_what_came_too_late_is_not_begun(redis_url: str) -> None:
    scorer = Scorer()
    async with streamlease.connect(redis_url) as server, server.serve("scorer", {Score: scorer.score}):
        endpoint = await server._services.endpoint()
        key = keys.requests(endpoint.address)
        await ask(server.redis, [_entry(key, 1, 1, seconds=-5.0), _entry(key, 2, 2)])
        await until(lambda: scorer.ran[2])
        assert scorer.ran == {2: 1}
        assert endpoint.dropped == 1


async def test_a_payload_of_another_type_is_not_begun_unless_it_was_judged(redis_url: str) -> None:
    scorer = Scorer()
    async with streamlease.connect(redis_url) as server, server.serve("scorer", {Score: scorer.score}):
        key = keys.requests((await server._services.endpoint()).address)
        strange, judged = _entry(key, 1, 1, own="a", judged="b"), _entry(key, 2, 2, own="a")
        await ask(server.redis, [strange, judged])
        await until(lambda: scorer.ran[2])
        assert scorer.ran == {2: 1}


async def test_a_cancellation_before_its_request_or_of_nothing_does_nothing(redis_url: str) -> None:
    scorer = Scorer()
    async with streamlease.connect(redis_url) as server, server.serve("scorer", {Score: scorer.score}):
        key = keys.requests((await server._services.endpoint()).address)
        cancel: Command = ("XADD", key, "*", "f", "somebody", "n", 1, cancel_head(2), b"")
        await ask(server.redis, [cancel, _entry(key, 2, 2)])
        await until(lambda: scorer.ran[2])
        assert (await server.call("scorer", Score(x=4), answer=Scored)).y == 2.0


async def test_what_is_sent_again_because_no_reply_came_runs_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry is appended, nobody hears of it, and it is appended again."""
    told = Outbox._answered
    again = 0

    def deaf(self: Outbox, entries: Sequence[Any], replies: list[Any] | None) -> None:
        nonlocal again
        again += 1
        told(self, entries, None)

    monkeypatch.setattr(Outbox, "_answered", deaf)
    scorer = Scorer()
    async with (
        streamlease.connect(redis_url) as server,
        streamlease.connect(redis_url) as caller,
        server.serve("scorer", {Score: scorer.score}),
    ):
        for first in range(0, 100, 10):
            calls = (
                caller.call("scorer", Score(x=x), answer=Scored, wait=5) for x in range(first, first + 10)
            )
            assert [answer.y for answer in await asyncio.gather(*calls)] == [
                x / 2 for x in range(first, first + 10)
            ]
    assert again > 1
    assert scorer.ran == dict.fromkeys(range(100), 1)
