"""Waits that take too long are ended, each when it is due, with one timer for all."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.agent.deadlines import Deadlines
from streamlease.testing.timelines.loops import Timeline


def test_each_wait_ends_when_it_is_due_and_one_that_is_over_stays_as_it_is() -> None:
    ended: dict[str, float] = {}

    async def wait(deadlines: Deadlines, name: str, after: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(after)
        began, future = loop.time(), loop.create_future()
        deadlines.add(future, 30)
        if name == "quick":
            loop.call_later(1, future.set_result, None)
            await future
        else:
            with pytest.raises(TimeoutError):
                await future
        ended[name] = loop.time() - began

    async def main() -> None:
        deadlines = Deadlines()
        await asyncio.gather(
            *(wait(deadlines, name, after) for name, after in (("first", 0), ("quick", 1), ("last", 20)))
        )
        assert not deadlines._waits
        assert deadlines._alarm is None

    with Timeline() as timeline:
        task = timeline.process("p").start(main())
        assert timeline.run(100, task.done)
        task.result()
    assert ended == {"first": pytest.approx(30), "quick": pytest.approx(1), "last": pytest.approx(30)}


async def test_what_is_over_is_kept_no_longer_than_what_was_added_before_it() -> None:
    deadlines = Deadlines()
    loop = asyncio.get_running_loop()
    for _ in range(1000):
        future: asyncio.Future[None] = loop.create_future()
        deadlines.add(future, 30)
        future.set_result(None)
    assert len(deadlines._waits) == 1
    deadlines.close()
    assert deadlines._alarm is None
