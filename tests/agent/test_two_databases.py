"""Two databases of one server have nothing of each other, although pub/sub is the server's.

What is news of a stream in one of them is pushed to the readers of a stream of the same name in the other,
too, and names an end that this one does not have.
"""

from __future__ import annotations

import asyncio
import functools
from urllib.parse import urlsplit

from streamlease.agent.client import Client, connect
from streamlease.streams.log.tails import Tails
from tests.agent.helpers import SECONDS, SUB, publish, take, until

TURNS = 3
SMALL, LARGE = 3, 600


async def _heard(client: Client, count: int) -> list[int]:
    """The numbers of so many messages, without a group."""
    found: list[int] = []
    async with asyncio.timeout(SECONDS), client.listen("a/#", start="earliest") as reader:
        while len(found) < count:
            found += [int(message.payload) for message in (await anext(reader)).messages]
    return found


def _has_heard(tails: Tails, before: int) -> bool:
    """Whether more was pushed than this."""
    return tails.pushes > before


async def test_two_databases_of_a_server_have_nothing_of_each_other(real_redis_url: str) -> None:
    urls = [urlsplit(real_redis_url)._replace(path=f"/{number}").geturl() for number in (1, 2)]
    async with connect(urls[0]) as small, connect(urls[1]) as large:
        for client in (small, large):
            await client.create_space("s", ["a/#"], streams=2)
        async with (
            small.subscribe(SUB, start="earliest") as few,
            large.subscribe(SUB, start="earliest") as many,
            asyncio.TaskGroup() as tasks,
        ):
            heard = [tasks.create_task(_heard(one, count)) for one, count in ((small, SMALL), (large, LARGE))]
            taken: tuple[list[int], list[int]] = ([], [])
            await until(lambda: len(few.streams) == len(many.streams) == 2)
            for turn in range(TURNS):
                pushes = small.tails.pushes
                await publish(large, range(turn * LARGE // TURNS, (turn + 1) * LARGE // TURNS))
                await until(functools.partial(_has_heard, small.tails, pushes))
                await publish(small, [1_000_000 + turn])
                taken[0].extend(await take(few, 1))
                taken[1].extend(await take(many, LARGE // TURNS))
        assert taken[0] == heard[0].result() == [1_000_000, 1_000_001, 1_000_002]
        assert sorted(taken[1]) == sorted(heard[1].result()) == [*range(LARGE)]
