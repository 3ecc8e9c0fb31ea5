"""The clock of tests that say how long nobody waited."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.awake import MOST, AwakeClock, awake, within


def test_what_the_machine_stood_still_is_not_counted() -> None:
    clock = AwakeClock(100.0)
    for now in (100.02, 100.04, 109.0, 109.02):
        clock.tick(now)
    assert clock.seconds == pytest.approx(0.06 + MOST)


def test_a_wait_is_counted_while_it_lasts_and_nothing_after_it() -> None:
    enough = threading.Event()
    with awake() as clock:
        while clock.seconds < 0.2:
            enough.wait(0.01)
    counted = clock.seconds
    assert not [one for one in threading.enumerate() if one.name == "awake"]
    assert clock.seconds == counted >= 0.2


def test_it_ends_with_what_goes_wrong_in_it() -> None:
    with pytest.raises(ZeroDivisionError), awake():
        raise ZeroDivisionError
    assert not [one for one in threading.enumerate() if one.name == "awake"]


async def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError):
        async with within(0.1):
            await asyncio.Event().wait()
    assert len(asyncio.all_tasks()) == 1


async def test_what_ends_in_time_is_left_alone() -> None:
    async with within(0.05):
        await asyncio.sleep(0)
    waiting = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, waiting.set)
    await waiting.wait()
    assert len(asyncio.all_tasks()) == 1
