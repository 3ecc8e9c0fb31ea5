"""Virtual time: processes with clocks of their own, stopped, killed, and the same in every run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from streamlease.protocol.errors import InvalidInput
from streamlease.testing import BusyLoop, Timeline, connect


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    with Timeline() as timeline:
        yield timeline


def test_time_jumps_to_the_next_timer_and_each_process_has_its_own_clock(timeline: Timeline) -> None:
    seen: list[tuple[str, float, float]] = []

    async def work(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(3600)
            seen.append((name, round(timeline.now), round(asyncio.get_running_loop().time())))

    timeline.process("right").start(work("right"))
    timeline.process("fast", rate=2.0, offset=100.0).start(work("fast"))
    assert not timeline.run(until=100_000)
    assert seen == [
        ("fast", 1800, 3700), ("right", 3600, 3600), ("fast", 3600, 7300),
        ("fast", 5400, 10_900), ("right", 7200, 7200), ("right", 10_800, 10_800),
    ]  # fmt: skip
    assert timeline.now == 100_000


def test_a_stopped_process_goes_on_with_everything_that_waited_and_its_clock_went_on(
    timeline: Timeline,
) -> None:
    process = timeline.process("p")
    seen: list[tuple[int, float]] = []

    async def work() -> None:
        async def note(number: int) -> None:
            await asyncio.sleep(number)
            seen.append((number, round(timeline.now, 6)))

        async with asyncio.TaskGroup() as group:
            for number in (3, 1, 2, 9):
                group.create_task(note(number))

    process.start(work())
    timeline.run(1.5)
    process.pause(4)
    timeline.run(20)
    assert seen == [(1, 1.0), (2, 5.5), (3, 5.5), (9, 9.0)]


def test_a_killed_process_does_nothing_more_and_leaves_nothing_behind(timeline: Timeline) -> None:
    process, other = timeline.process("p"), timeline.process("q")
    did: list[str] = []
    ended: list[str] = []
    process.ends.append(lambda: ended.append("p"))

    async def work(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                did.append(name)
        finally:
            ended.append(f"{name}: finally")

    process.start(work("p"))
    other.start(work("q"))
    timeline.run(2.5)
    process.kill()
    timeline.run(4.5)
    assert did == ["p", "q", "p", "q", "q", "q"]
    assert ended == ["p"]
    timeline.end()
    assert sorted(ended) == ["p", "p: finally", "q: finally"]
    assert not any(process.loop.tasks for process in timeline.processes)


def test_what_nobody_catches_is_known_and_threads_are_none(timeline: Timeline) -> None:
    process = timeline.process("p")
    found: list[int] = []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        found.append(await asyncio.to_thread(lambda: 7))
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        found.append(8)

    process.start(work())
    with pytest.raises(ZeroDivisionError) as told:
        timeline.run(1)
    assert told.value.__notes__ == ["in process p, 0.000 s after the world began"]
    assert not timeline.run(1)
    assert found == [7, 8]
    (trouble,) = process.loop.troubles
    assert trouble["exception"] is told.value


def test_what_ends_with_an_error_ends_the_run_at_that_moment(timeline: Timeline) -> None:
    async def work() -> None:
        await asyncio.sleep(5)
        raise KeyError("lost")

    timeline.process("p").start(work())
    assert not timeline.run(4)
    with pytest.raises(KeyError, match="lost"):
        timeline.run(100)
    assert round(timeline.now) == 5
    assert not timeline.run(100)


async def test_a_test_that_is_a_coroutine_goes_on_behind_it() -> None:
    seen: list[int] = []

    async def work() -> None:
        await asyncio.sleep(5)
        seen.append(5)

    with Timeline() as timeline:
        timeline.process("p").start(work())
        timeline.run(10)
    assert seen == [5]
    await asyncio.sleep(0.001)
    assert asyncio.get_running_loop().is_running()


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_clock_goes_forward(timeline: Timeline, rate: float) -> None:
    with pytest.raises(InvalidInput, match=r"^the clock of process p goes at the rate .*: give a number"):
        timeline.process("p", rate)


def test_a_url_is_no_server_in_memory() -> None:
    with pytest.raises(InvalidInput, match=r"^'redis://x' is no MemoryServer: for a URL"):
        connect("redis://x")  # type: ignore[arg-type]


def test_who_looks_by_itself_is_not_told(timeline: Timeline) -> None:
    async def work() -> None:
        raise KeyError("lost")

    timeline.raises = False
    task = timeline.process("p").start(work())
    assert not timeline.run(1)
    assert isinstance(task.exception(), KeyError)


def test_a_loop_that_never_waits_is_told(timeline: Timeline) -> None:

    async def work() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    timeline.process("spinner").start(work())
    with pytest.raises(BusyLoop, match="spinner never waits"):
        timeline.run(1)


def test_sets_of_tasks_have_the_same_order_in_every_run() -> None:
    def run() -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                order.append(number)

        async def work() -> None:
            tasks = {asyncio.create_task(one(number)) for number in range(40)}
            await asyncio.sleep(1)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        with Timeline() as timeline:
            timeline.process("p").start(work())
            timeline.run(5)
        return order

    first = run()
    assert len(first) == 40
    assert run() == first
