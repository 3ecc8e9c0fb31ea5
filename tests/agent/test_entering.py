"""What is entered once is not entered again while it is open, nor made by a client that is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamlease.agent.client import Client, connect
from streamlease.protocol.errors import InvalidInput, InvalidOption

MAKE: dict[str, Callable[[Client], Any]] = {
    "subscribe": lambda client: client.subscribe("$shared/g/s/#"),
    "subscribe whole": lambda client: client.subscribe("$shared/h/e/#", epochs="atomic"),
    "listen": lambda client: client.listen("s/#"),
    "history": lambda client: client.history("s/#"),
    "listen whole": lambda client: client.listen("e/#", epochs="atomic"),
    "collection": lambda client: client.collection("c/#"),
    "catalog": lambda client: client.catalog("spaces"),
}


@pytest.fixture
async def opened(embedded_redis_url: str) -> Client:
    client = connect(embedded_redis_url)
    await client.create_space("s", ["s/#"], streams=1)
    await client.create_space("e", ["e/#"], streams=1, epochs=1)
    await client.create_space("c", ["c/#"], streams=1, collection=True)
    return client


@pytest.mark.parametrize("kind", MAKE)
async def test_what_is_open_is_not_entered_again(opened: Client, kind: str) -> None:
    async with opened as client:
        made = MAKE[kind](client)
        async with made:
            with pytest.raises(InvalidOption, match=r"make another one by client\.\w+\("):
                await made.__aenter__()
        async with MAKE[kind](client):
            pass


async def test_a_group_that_was_left_may_be_joined_again(opened: Client) -> None:
    async with opened as client:
        made = client.subscribe("$shared/g/s/#", start="earliest")
        for number in range(2):
            async with made as reader, client.publisher() as publisher:
                await publisher.send("s/t", b"%d" % number)
                batch = await anext(reader)
                assert [one.payload for one in batch.messages] == [b"%d" % number]
                await batch.commit()


@pytest.mark.parametrize("kind", MAKE)
async def test_a_closed_client_opens_nothing(opened: Client, kind: str) -> None:
    """It would be left open for good."""
    await opened.close()
    await opened.close()
    with pytest.raises(InvalidOption, match="the client is closed: connect again"):
        MAKE[kind](opened)


async def test_a_closed_client_shows_no_new_topic(opened: Client) -> None:
    async with opened as client:
        publisher = client.publisher()
        await publisher.send("s/known", b"1")
    for topic in ("s/known", "s/new"):
        with pytest.raises(InvalidInput, match="the publisher is closed: make a new one"):
            await publisher.send(topic, b"1")
    await publisher.close()
    pool: Any = opened.redis.connection_pool
    assert [one for one in pool._available_connections if one.is_connected] == [], "it has not connected"
