"""Tasks and their owner: every end that nobody asked for is told, once, in one line."""

from __future__ import annotations

import asyncio
import logging

import pytest

from streamlease.protocol.errors import StoreUnavailable, StreamleaseError, TaskFailed
from streamlease.streams.tasks import MOST_ROUNDS, Supervisor, stop_all


class Owner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, StreamleaseError]] = []
        self.tasks = Supervisor("owner", lambda name, error: self.told.append((name, error)))


async def fails(error: BaseException) -> None:
    raise error


async def test_a_defect_is_told_in_one_line_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    owner, defect = Owner(), OverflowError("too\nlarge")
    task = owner.tasks.start("work", fails(defect))
    await asyncio.wait([task])
    ((name, error),) = owner.told
    assert name == "work"
    assert isinstance(error, TaskFailed)
    assert error.__cause__ is defect
    assert str(error) == (
        "owner: work ended by a defect (OverflowError: too large): start it again, and report this"
    )
    assert len(owner.tasks) == 0
    (record,) = (one for one in caplog.records if one.levelno == logging.ERROR)
    assert record.exc_info is not None


async def test_a_known_error_is_handed_on_as_it_is() -> None:
    owner, error = Owner(), StoreUnavailable("Redis is away")
    await asyncio.wait([owner.tasks.start("work", fails(error))])
    assert owner.told == [("work", error)]


async def test_a_task_may_return_unless_it_is_endless() -> None:
    owner = Owner()
    assert await owner.tasks.start("once", asyncio.sleep(0, "done")) == "done"
    await asyncio.sleep(0)
    assert not owner.told
    await owner.tasks.start("always", asyncio.sleep(0), endless=True)
    await asyncio.sleep(0)
    assert [name for name, _ in owner.told] == ["always"]


async def test_a_cancellation_that_nobody_asked_for_is_told() -> None:
    """It comes from what the task waited for, and a task that ends so looks as if it was stopped."""
    owner = Owner()
    other = asyncio.create_task(asyncio.sleep(60))

    async def waits() -> None:
        await other

    task = owner.tasks.start("wait", waits())
    await asyncio.sleep(0)
    other.cancel()
    await asyncio.wait([task])
    ((name, error),) = owner.told
    assert name == "wait"
    assert "CancelledError" in str(error)


async def test_who_is_stopped_is_not_told() -> None:
    owner, complained = Owner(), False

    async def complains() -> None:
        nonlocal complained
        try:
            await asyncio.sleep(60)
        finally:
            complained = True
            raise ValueError("while stopping")

    owner.tasks.start("quiet", asyncio.sleep(60), endless=True)
    owner.tasks.start("loud", complains())
    await asyncio.sleep(0)
    assert len(owner.tasks) == 2
    await owner.tasks.close()
    assert len(owner.tasks) == 0
    assert complained
    assert not owner.told


async def test_a_task_may_close_its_own_supervisor() -> None:
    owner = Owner()

    async def closes() -> str:
        await owner.tasks.close()
        return "closed"

    owner.tasks.start("other", asyncio.sleep(60))
    async with asyncio.timeout(30):
        assert await owner.tasks.start("closer", closes()) == "closed"
    assert not owner.told


async def test_tasks_are_stopped_in_the_order_in_which_they_were_started() -> None:
    owner, ended = Owner(), list[int]()
    pieces = []

    async def waits(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    for number in range(40):
        owner.tasks.start(f"number {number}", waits(number))
        pieces.append([bytearray(number)])  # so that they do not lie one behind the other
    await asyncio.sleep(0)
    await owner.tasks.close()
    assert ended == [*range(40)]


async def forever() -> None:
    await asyncio.Event().wait()


async def test_tasks_that_begin_while_all_are_stopped_are_stopped_too() -> None:
    begun: list[asyncio.Task[None]] = []

    async def followed() -> None:
        try:
            await forever()
        finally:
            begun.append(asyncio.create_task(forever()))

    begun.append(asyncio.create_task(followed()))
    await asyncio.sleep(0)
    await stop_all()
    assert [task.cancelled() for task in begun] == [True, True]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_what_is_overdue_on_a_loop_that_stood_still_is_stopped_too() -> None:
    begun: list[asyncio.Task[None]] = []
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.call_at(loop.time(), lambda: begun.append(loop.create_task(forever())))
        assert not begun
        runner.run(stop_all())
        assert [task.cancelled() for task in begun] == [True]
        assert not asyncio.all_tasks(loop)


async def test_tasks_that_begin_again_and_again_are_left_in_the_end() -> None:
    most = 5 * MOST_ROUNDS
    begun: list[asyncio.Task[None]] = []

    async def again() -> None:
        try:
            await forever()
        finally:
            if len(begun) < most:
                begun.append(asyncio.create_task(again()))

    begun.append(asyncio.create_task(again()))
    await asyncio.sleep(0)
    await stop_all()
    assert 1 < len(begun) <= MOST_ROUNDS + 1
    assert not begun[-1].done()
    most = 0
    await stop_all()
    assert asyncio.all_tasks() == {asyncio.current_task()}
