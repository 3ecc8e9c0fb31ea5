"""Which gateway has a channel: one, until it is silent or somebody who knows of it takes it over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamlease.registry.members.channel_homes import ChannelHome, ChannelHomes, ChannelName
from streamlease.streams.redis.connection import AsyncRedis, ask, connect

OWN, OTHER, THIRD = (ChannelHome(f"gateway-{one}", f"http://x:{one}") for one in (1, 2, 3))
CHANNEL, SECOND = ChannelName(None, "mine"), ChannelName("token", "mine")


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


async def left(redis: AsyncRedis, channel: ChannelName) -> int:
    (found,) = await ask(redis, [("PTTL", channel.key)])
    return int(found)


async def test_a_channel_is_taken_once(redis: AsyncRedis) -> None:
    homes = ChannelHomes(redis)
    assert await homes.read(CHANNEL) is None
    assert await homes.take(CHANNEL, None, OWN, 9000)
    assert not await homes.take(CHANNEL, None, OTHER, 9000), "it has read that nobody has it"
    assert await homes.take(CHANNEL, None, OWN, 20_000), "its own"
    assert 9000 < await left(redis, CHANNEL) <= 20_000
    assert await homes.read(CHANNEL) == OWN
    assert await homes.read(SECOND) is None, "of somebody with a token"


async def test_who_knows_of_it_takes_it_over(redis: AsyncRedis) -> None:
    homes = ChannelHomes(redis)
    await homes.take(CHANNEL, None, OWN, 9000)
    assert await homes.take(CHANNEL, OWN, OTHER, 9000)
    assert not await homes.take(CHANNEL, OWN, THIRD, 9000), "somebody was faster"
    assert await homes.read(CHANNEL) == OTHER
    await ask(redis, [("DEL", CHANNEL.key)])
    assert await homes.take(CHANNEL, OTHER, THIRD, 9000), "its record is over"


async def test_what_is_kept_lasts_and_what_others_have_is_told(redis: AsyncRedis) -> None:
    homes = ChannelHomes(redis)
    await homes.take(CHANNEL, None, OWN, 5000)
    await homes.take(SECOND, None, OTHER, 5000)
    lost = ChannelName(None, "of which Redis has no record")
    assert await homes.keep({CHANNEL: OWN, SECOND: OWN, lost: OWN}, 60_000) == {SECOND}
    assert await left(redis, CHANNEL) > 5000 and await left(redis, lost) > 5000
    assert 0 < await left(redis, SECOND) <= 5000
    assert await homes.read(SECOND) == OTHER and await homes.read(lost) == OWN
