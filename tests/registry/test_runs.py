"""What is remembered of Spark queries: who reads for a run, whose checkpoint is late."""

from __future__ import annotations

import pytest

from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys, runs
from streamlease.registry.groups import Groups
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import SpaceStore

SUBSCRIPTION = SharedSubscription.parse("$shared/g/a")
GROUP = SUBSCRIPTION.id
REMEMBER = load_script("streamlease.registry", "remember")


async def remember(redis: AsyncRedis, name: str, word: str, seconds: int = 60) -> bytes:
    said: bytes = await REMEMBER.run(redis, [keys.readers(GROUP)], [name, word, seconds])
    return said


async def test_the_first_word_counts_for_its_time(redis: AsyncRedis) -> None:
    assert await remember(redis, "run", "one") == b"one"
    assert await remember(redis, "run", "two") == b"one"
    assert await remember(redis, "run", "one") == b"one"
    assert await remember(redis, "other", "two") == b"two"
    assert 0 < (await ask(redis, [("TTL", keys.readers(GROUP))]))[0] <= 60
    await ask(redis, [("HSET", keys.readers(GROUP), "run", "5 one")])  # long ago
    assert await remember(redis, "run", "two") == b"two"


async def test_what_is_over_goes_once_there_is_much(redis: AsyncRedis) -> None:
    old = [word for number in range(100) for word in (f"run-{number}", "5 one")]
    await ask(redis, [("HSET", keys.readers(GROUP), *old)])
    await remember(redis, "new", "one")
    assert await redis.hkeys(keys.readers(GROUP)) == [b"new"]


@pytest.mark.parametrize("noted", [True, False])
async def test_a_late_checkpoint_is_known_until_the_group_is_deleted(redis: AsyncRedis, noted: bool) -> None:
    await SpaceStore(redis).create("a", ["a/#"])
    groups = Groups(redis)
    await groups.declare(SUBSCRIPTION, "earliest")
    if noted:
        await runs.note_late(redis, GROUP, "session")
    assert await runs.is_late(redis, GROUP, "session") == noted
    await remember(redis, "run", "session")
    await runs.note_told(redis, GROUP, "session", {"a.0.0": 3})
    assert await runs.untold(redis, GROUP, "session", {"a.0.0": 3, "a.0.1": 3}) == {"a.0.1": 3}
    assert await runs.untold(redis, GROUP, "session", {"a.0.0": 4}) == {"a.0.0": 4}
    assert await runs.untold(redis, GROUP, "other", {"a.0.0": 3}) == {"a.0.0": 3}
    await groups.forget(SUBSCRIPTION)
    assert not await runs.is_late(redis, GROUP, "session")
    assert [key async for key in redis.scan_iter("sl:{g:*")] == []
