"""A postbox sends in order, one batch at a time, and holds a bounded number of letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable

import pytest

from streamlease.protocol.errors import StoreUnavailable, StreamleaseError
from streamlease.protocol.messages import Message, Ping
from streamlease.registry.mail import mailbox, postbox
from streamlease.registry.mail.mailbox import Mailbox
from streamlease.registry.mail.postbox import Postbox
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

Letters = list[tuple[str, Message]]


def ping(number: int) -> Ping:
    return Ping(group="g/a", borrower=f"b{number}", term=number)


def numbers(letters: Iterable[tuple[str, Message]]) -> list[int]:
    return [int(getattr(message, "term", -1)) for _, message in letters]


class Post:
    """Stands for Redis: takes batches, one at each `take`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Letters] = []
        self.in_flight = 0
        self.errors: list[StreamleaseError] = []
        self._arrived = asyncio.Semaphore(0)
        self._go = asyncio.Semaphore(0)
        monkeypatch.setattr(mailbox, "send", self._send)

    async def _send(self, redis: AsyncRedis, sender: str, letters: Iterable[tuple[str, Message]]) -> set[str]:
        self.in_flight += 1
        assert self.in_flight == 1, "a batch was sent before the one before had an answer"
        self._arrived.release()
        await self._go.acquire()
        self.in_flight -= 1
        if self.errors:
            raise self.errors.pop()
        self.batches.append([*letters])
        return set()

    async def in_hand(self) -> None:
        """Wait until a batch is in flight."""
        await self._arrived.acquire()

    def answer(self) -> None:
        self._go.release()


@pytest.fixture
async def tasks() -> AsyncIterator[Supervisor]:
    failures: list[str] = []
    owner = Supervisor("postbox", lambda name, error: failures.append(f"{name}: {error}"))
    yield owner
    await owner.close()
    assert failures == []


async def forever(box: Postbox) -> None:
    while True:
        await box.work()


async def test_letters_arrive_in_order_and_empty_waits_for_them(redis: AsyncRedis, tasks: Supervisor) -> None:
    mine = Mailbox(redis, "me")
    await mine.open()
    box = Postbox(redis, "you", tasks)
    tasks.start("send", forever(box), endless=True)
    for number in range(1, 1001):
        box.post("me", ping(number))
    await box.empty()
    assert len(box) == 0
    letters = await mine.receive()
    while len(letters) < 1000:
        letters += await mine.receive()
    assert [letter.message for letter in letters] == [ping(number) for number in range(1, 1001)]
    assert {letter.sender for letter in letters} == {"you"}
    assert (box.dropped, box.trouble) == (0, "")


async def test_what_is_posted_while_a_batch_is_in_flight_leaves_with_the_next(
    redis: AsyncRedis, tasks: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, box = Post(monkeypatch), Postbox(redis, "you", tasks)
    tasks.start("send", forever(box), endless=True)
    box.post("me", ping(1))
    await post.in_hand()
    for number in range(2, 6):
        box.post("me" if number % 2 else "she", ping(number))
    emptied = asyncio.create_task(box.empty())  # does not overtake, and returns last of all
    post.answer()
    await post.in_hand()
    assert not emptied.done()
    post.answer()
    await emptied
    assert [numbers(batch) for batch in post.batches] == [[1], [2, 3, 4, 5]]


async def test_beyond_the_bound_the_oldest_letters_are_dropped_and_counted(
    redis: AsyncRedis, tasks: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    post, box = Post(monkeypatch), Postbox(redis, "you", tasks, most=10)
    tasks.start("send", forever(box), endless=True)
    box.post("me", ping(0))
    await post.in_hand()  # and it is not answered for long
    for number in range(1, 1001):
        box.post("me", ping(number))
        assert len(box) <= 10
    assert box.dropped == 990
    assert caplog.messages.count("you drops messages: 10 wait to be sent already") == 1
    post.answer()
    post.answer()
    await box.empty()
    assert [numbers(batch) for batch in post.batches] == [[0], [*range(991, 1001)]]


async def test_a_batch_that_is_not_taken_is_lost_and_the_next_one_leaves(
    redis: AsyncRedis, tasks: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postbox, "RETRY_SECONDS", 0.0)
    post, box = Post(monkeypatch), Postbox(redis, "you", tasks)
    tasks.start("send", forever(box), endless=True)
    post.errors.append(StoreUnavailable("it is away"))
    box.post("me", ping(1))
    await post.in_hand()
    post.answer()
    await box.empty()
    assert (post.batches, box.trouble) == ([], "it is away")
    box.post("me", ping(2))
    post.answer()
    await box.empty()
    assert [numbers(batch) for batch in post.batches] == [[2]]
    assert box.trouble == ""


async def test_why_letters_are_lost_is_said_once_a_minute(
    redis: AsyncRedis, tasks: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postbox, "RETRY_SECONDS", 0.0)
    post, box = Post(monkeypatch), Postbox(redis, "you", tasks)
    for letters, why in ((2, "it is away"), (1, "it is away"), (1, "it takes no writes")):
        post.errors.append(StoreUnavailable(why))
        for number in range(letters):
            box.post("me", ping(number))
        post.answer()
        await box.empty()
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == [
        "you lost 2 messages: it is away",
        "you lost 1 message: it takes no writes",
    ]
