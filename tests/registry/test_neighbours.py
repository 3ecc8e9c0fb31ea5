"""Letters between neighbours, and where they stop being ones."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator

import pytest

from streamlease.protocol.messages import Message, Ping, SpawnWanted
from streamlease.registry.mail.mailbox import Letter, Mailbox
from streamlease.registry.mail.neighbours import Neighbours
from streamlease.registry.mail.postbox import Postbox
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.tasks import Supervisor

GROUP = "$shared/g/a"


def wanted(number: int) -> Message:
    return Ping(group=GROUP, borrower=f"b{number}", term=number)


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    redis = connect(embedded_redis_url)
    yield redis
    await redis.aclose()


async def turn() -> None:
    """Let the event loop do what it was asked to do until now."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    await done.wait()


async def test_a_neighbour_gets_its_letters_in_order_and_redis_none(redis: AsyncRedis) -> None:
    tasks, neighbours, taken = Supervisor("test", lambda name, error: None), Neighbours(), list[Letter]()
    mailbox = Mailbox(redis, "here", 100)
    await mailbox.open()
    neighbours.move_in("here", taken.append, tasks)
    postbox = Postbox(redis, "me", tasks, neighbours=neighbours)
    for number in range(3):
        postbox.post("here", wanted(number))
    assert len(postbox) == 0
    await turn()
    assert taken == [Letter("me", wanted(number)) for number in range(3)]

    neighbours.move_out("here")
    postbox.post("here", wanted(3))
    await postbox.empty()
    assert await mailbox.receive() == [Letter("me", wanted(3))]
    assert len(taken) == 3
    await mailbox.close()


async def test_nobody_is_called_in_the_middle_of_what_the_sender_does(redis: AsyncRedis) -> None:
    """Two machines that answer each other at once would be stepped within their own steps."""
    tasks, neighbours = Supervisor("test", lambda name, error: None), Neighbours()
    there = Postbox(redis, "there", tasks, neighbours=neighbours)
    here = Postbox(redis, "here", tasks, neighbours=neighbours)
    said: list[str] = []

    def answer(letter: Letter) -> None:
        said.append("there begins")
        there.post(letter.sender, letter.message)
        said.append("there ends")

    neighbours.move_in("there", answer, tasks)
    neighbours.move_in("here", lambda letter: said.append("here"), tasks)
    here.post("there", wanted(0))
    said.append("posted")
    await turn()
    await turn()
    assert said == ["posted", "there begins", "there ends", "here"]


async def test_what_the_sender_is_about_is_not_what_the_neighbour_is_about(redis: AsyncRedis) -> None:
    """The program's trace and the group in its log lines are not the leader's."""
    neighbours, seen = Neighbours(), list[str]()
    about = contextvars.ContextVar("about", default="nothing")
    tasks = Supervisor("test", lambda name, error: None)
    neighbours.move_in("here", lambda letter: seen.append(about.get()), tasks)
    postbox = Postbox(redis, "me", tasks, neighbours=neighbours)
    about.set("the program")
    postbox.post("here", wanted(0))
    await turn()
    assert seen == ["nothing"]


async def test_a_leader_takes_the_letters_for_it_and_its_host_all_others(redis: AsyncRedis) -> None:
    neighbours, led, others = Neighbours(), list[Message](), list[Message]()
    tasks = Supervisor("test", lambda name, error: None)
    neighbours.move_in("host", lambda letter: others.append(letter.message), tasks)
    postbox = Postbox(redis, "me", tasks, neighbours=neighbours)
    postbox.post("host", wanted(0))  # on its way when the leader begins: it comes before what follows
    neighbours.move_in("host", lambda letter: led.append(letter.message), tasks, GROUP)
    letters: list[Message] = [
        wanted(1),
        SpawnWanted(group=GROUP),
        Ping(group="$shared/g/b", borrower="b", term=1),
    ]
    for letter in letters:
        postbox.post("host", letter)
    await turn()
    assert led == letters[:1]
    assert others == [wanted(0), *letters[1:]]

    neighbours.move_out("host", GROUP)
    postbox.post("host", wanted(2))
    await turn()
    assert led == letters[:1]
    assert others[-1] == wanted(2)


async def test_the_owner_learns_of_a_letter_that_it_cannot_take(redis: AsyncRedis) -> None:
    """And the next letter is taken as if nothing had been."""
    failures, taken, neighbours = list[str](), list[Letter](), Neighbours()

    def take(letter: Letter) -> None:
        taken.append(letter)
        if len(taken) == 1:
            raise ValueError("a defect")

    neighbours.move_in("here", take, Supervisor("owner", lambda name, error: failures.append(str(error))))
    postbox = Postbox(redis, "me", Supervisor("sender", lambda name, error: None), neighbours=neighbours)
    postbox.post("here", wanted(0))
    postbox.post("here", wanted(1))
    await turn()
    assert len(taken) == 2
    assert failures == [
        "owner: hear ended by a defect (ValueError: a defect): start it again, and report this"
    ]
