"""What is in the air, as the collection says it, is what the file says, at each hour."""

from __future__ import annotations

import asyncio
from collections import Counter

import streamlease
from streamlease.examples.flights_in_the_air import HOUR, Flight, flights, publish, seen_at, watch
from streamlease.streams.tasks import stop

DAYS = 2


def in_the_air(known: list[Flight], minute: int) -> dict[str, int]:
    """By the file: who departed before `minute`, and lands then or later."""
    counts = Counter(one.topic for one in known if one.departs < minute <= one.lands)
    return dict(sorted(counts.items()))


async def test_the_collection_says_what_the_file_says(embedded_redis_url: str) -> None:
    known = [*flights(DAYS)]
    assert len(known) > 1600 and max(one.lands for one in known) > 24 * HOUR * DAYS
    seen: dict[int, dict[str, int]] = {}

    async def follow() -> None:
        async for minute, counts in watch(watching):
            seen[minute] = {topic: count for topic, count in sorted(counts.items()) if count}

    async with (
        streamlease.connect(embedded_redis_url) as client,
        streamlease.connect(embedded_redis_url) as watching,
    ):
        follower, late, minutes = None, 0, []
        async for minute in publish(client, DAYS):
            minutes.append(minute)
            follower = follower or asyncio.create_task(follow())
            if minute % (3 * HOUR) == 0:
                assert await seen_at(client, minute) == in_the_air(known, minute), minute
                late += 1
        assert late >= 15 and await seen_at(client, minutes[-1]) == {}, "all have landed"
        assert follower is not None
        async with asyncio.timeout(20):
            # `watch` tells of an hour with the first change behind it, and there is none behind the last one.
            while max(seen, default=0) < minutes[-2]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await stop([follower])
    wrong = {minute for minute, counts in seen.items() if counts != in_the_air(known, minute)}
    assert not wrong and len(seen) >= 15 and {*seen} <= {0, *minutes}
    assert max(sum(counts.values()) for counts in seen.values()) > 100
