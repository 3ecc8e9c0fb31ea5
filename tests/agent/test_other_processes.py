"""A client belongs to the process, and to the event loop, in which it was made or first used."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys

import pytest

from streamlease.agent.blocking import connect as connect_blocking
from streamlease.agent.client import Client, connect
from streamlease.protocol.errors import InvalidInput

SECONDS = 30.0


def test_a_forked_process_is_told_to_connect_again_and_harms_nothing(real_redis_url: str) -> None:
    """Its parent's connections are not touched, and its own client works."""
    program = [sys.executable, "-m", "tests.agent.forking_program", real_redis_url]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    *told, child, parent, last = done.stdout.splitlines()
    assert child.split()[:2] == parent.split()[:2] == ["shown", "as"]
    assert child != parent, "a client that was not used yet has a name of its own in each process"
    assert len(told) == 4
    for line in told:
        assert line.startswith("InvalidInput the client was made in process ")
        assert line.endswith("forked from it: connect again here")
    assert last == "102 [b'child', b'parent']"


def test_a_client_on_another_event_loop_is_told_so(redis_url: str) -> None:
    client = connect(redis_url)

    async def first() -> None:
        await client.create_space("s", ["s/#"], streams=1)
        async with client.publisher() as publisher:
            await publisher.send("s/t", b"1")
        await client.shown.close()
        await client.redis.aclose()  # or not: then Python warns of what is left open, too

    async def second() -> None:
        with pytest.raises(
            InvalidInput, match=r"first used on another event loop.*connect again on this one"
        ):
            client.publisher()
        with pytest.raises(InvalidInput, match="first used on another event loop"):
            async with client.subscribe("$shared/g/s/#"):
                pass
        with pytest.raises(InvalidInput, match="first used on another event loop"):
            await anext(await client.listen("s/#", start="earliest").__aenter__())

    async def third() -> None:
        async with connect(redis_url) as own, own.listen("s/#", start="earliest") as items:
            assert [one.payload for one in (await anext(items)).messages] == [b"1"]

    for act in (first, second, third):
        asyncio.run(act())


def test_what_belongs_to_a_client_is_not_pickled(embedded_redis_url: str) -> None:
    with connect_blocking(embedded_redis_url) as client:
        client.create_space("s", ["s/#"], streams=1)
        with client.publisher() as publisher, client.subscribe("$shared/g/s/#", start="earliest") as consumer:
            publisher.send("s/t", b"1")
            batch = consumer.poll(SECONDS)
            assert batch is not None
            for one in (client, publisher, consumer, batch):
                with pytest.raises(
                    TypeError, match=f"^{type(one).__name__} cannot be pickled .* Connect where"
                ):
                    pickle.dumps(one)
            assert pickle.loads(pickle.dumps([*batch.messages])) == [*batch.messages]
            assert pickle.loads(pickle.dumps(batch.to_arrow())) == batch.to_arrow()


async def test_a_cancelled_lease_ends_in_whatever_turn(client: Client) -> None:
    """Also in that in which what it waits for comes, as where a program ends in the middle."""
    client.shown.publication("s/t", "s")
    rows = client.shown._rows
    assert rows is not None
    await rows.settled()
    (task,) = [one for one in asyncio.all_tasks() if one.get_name() == "rows of this process: lease"]
    rows._changed.set()
    task.cancel()
    _, left = await asyncio.wait([task], timeout=SECONDS)
    assert not left
