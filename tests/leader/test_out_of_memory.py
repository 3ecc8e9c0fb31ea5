"""A Redis at its `maxmemory`: what frees memory works, leaders stay, groups go on; only messages are refused.

The simulation cannot see this: its in-memory server never refuses a write for want of memory. So
these run on real servers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from streamlease.agent.client import Client, connect
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.trimming import CLAIM, Retainer
from streamlease.leader.journal import TailLost, recover
from streamlease.protocol.errors import NotDurable, StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import group_needs, hosts, keys, leadership
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.registry.mail import mailbox
from streamlease.registry.mail.mailbox import Mailbox
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.spaces.retention import Retention, kept
from tests.leader.test_host import until
from tests.streams.helpers import full

SUB = "$shared/g/a/#"
SHARED = SharedSubscription.parse(SUB)
STREAM = StreamId("s", 0, 0)
QUICK = LeadershipConfig(ttl=1500, renew_interval=300)


@pytest.fixture
async def client(real_redis_url: str) -> AsyncIterator[Client]:
    async with connect(real_redis_url) as client:
        yield client


async def filled(client: Client, messages: int = 10, retention: Retention | None = None) -> None:
    await client.create_space("s", ["a/#"], retention=retention)
    async with client.publisher() as publisher:
        for number in range(messages):
            await publisher.send("a/b", b"%d" % number)  # awaited: an entry each


async def floor(client: Client) -> int:
    return (await kept(client.redis, [STREAM]))[STREAM].state.floor


async def trimmed_to(client: Client, offset: int) -> bool:
    return await floor(client) >= offset


async def leading(host: LeaderHost, group: str) -> bool:
    """Whether it leads the group and has recovered it."""
    runner = host._runners.get(group)
    return runner is not None and runner._leading is not None


async def publish_is_refused(client: Client) -> None:
    async with client.publisher(delivery_timeout=0.2) as publisher:
        with pytest.raises(StoreRefused, match="out of memory"):
            await publisher.send("a/b", b"no")


async def test_retention_frees_memory_when_there_is_none(client: Client) -> None:
    await filled(client, retention=Retention(messages=6))
    retainer = Retainer(client.redis, "h", lambda: 0)
    with full(client.url):
        await publish_is_refused(client)
        assert [one.floor for one in (await retainer.round()).trimmed] == [4], "claimed and trimmed"
        fewer = Retention(messages=2)
        await client.spaces.change("s", lambda space: space.model_copy(update={"retention": fewer}))
        assert [one.floor for one in (await retainer.round()).trimmed] == [8], "renewed, altered and trimmed"
        with pytest.raises(NotDurable, match="append"):  # the write that WAITAOF waits for was taken
            await client.spaces.change("s", lambda space: space.model_copy(update={"durability": "fsync"}))
    assert await floor(client) == 8


async def test_what_a_group_holds_is_noted_when_there_is_no_memory(client: Client) -> None:
    await filled(client, retention=Retention(messages=2))
    await client.groups.declare(SHARED, "earliest")
    with full(client.url):
        done = await Retainer(client.redis, "h", lambda: 0).round()
        assert (done.claimed, done.trimmed) == (True, [])
        await client.groups.alter(SHARED, lambda held: held.model_copy(update={"expiry_ms": 5}))
        assert (await client.groups.get(SHARED)).expiry_ms == 5
    assert (await kept(client.redis, [STREAM]))[STREAM].held_by == SUB


async def test_a_dead_hosts_claim_is_taken_over_when_there_is_no_memory(client: Client) -> None:
    await filled(client, retention=Retention(messages=2))
    assert (await Retainer(client.redis, "dead", lambda: 0).round()).claimed
    async with client.publisher() as publisher:
        await publisher.send("a/b", b"10")
    await client.redis.hset(keys.leader(CLAIM), mapping={"renewed_at": 1, "ttl": 1})
    now = [0]
    retainer = Retainer(client.redis, "h", lambda: now[0])
    with full(client.url):
        assert not (await retainer.round()).claimed
        now[0] += 60_000
        assert [one.floor for one in (await retainer.round()).trimmed] == [9]


async def test_a_space_is_deleted_and_a_generation_dropped_when_there_is_no_memory(client: Client) -> None:
    await filled(client)
    await client.spaces.generations.alter("s", rotate=True)
    with full(client.url):
        await client.spaces.generations.drop("s", 0)
        assert [one.number for one in (await client.spaces.get("s")).generations] == [1]
        await client.spaces.delete("s")
        assert await client.spaces.list() == []


@pytest.mark.slow
async def test_leaders_renew_and_commit_when_there_is_no_memory(client: Client) -> None:
    """What a group has consumed lets retention go on: so its progress must be written."""
    redis = client.redis
    await filled(client, retention=Retention(messages=2))
    host = LeaderHost(redis, HostConfig(name="one", leadership=QUICK, retention_interval=0.1))
    await host.start()
    group = SHARED.id
    await client.groups.declare(SHARED, "earliest")
    host.lead(group)
    await until(lambda: leading(host, group))
    got: list[int] = []
    try:
        async with client.subscribe(SUB, start="earliest", max_batch=2) as reader:
            async for batch in reader:
                got += [message.offset for message in batch.messages]
                await batch.commit()
                if len(got) >= 2:
                    break
            record = await leadership.read(redis, group)
            assert record.host == host.id
            with full(client.url):
                await publish_is_refused(client)
                async for batch in reader:
                    got += [message.offset for message in batch.messages]
                    await batch.commit()
                    if len(got) >= 10:
                        break

                async def trimmed() -> bool:
                    return await floor(client) == 8

                async def renewed_past_the_ttl() -> bool:
                    seen = await leadership.read(redis, group)
                    return seen.renewed_at > record.renewed_at + 2 * QUICK.ttl

                await until(trimmed)
                await until(renewed_past_the_ttl)
                assert [one.host for one in await hosts.alive(redis)] == [host.id]
                # Another consumer, and the same group's next one, come and go on.
                async with client.subscribe("$shared/new/a/#", start="earliest") as newcomer:
                    async for batch in newcomer:
                        assert batch.messages[0].offset == 8
                        await batch.commit()
                        break
        assert got == list(range(10))
        after = await leadership.read(redis, group)
        assert (after.host, after.term) == (host.id, record.term), "no term was lost"
        assert (await recover(redis, group)).state.streams["s.0.0"].committed == 10
        assert host.dropped == 0
    finally:
        await host.close()
    assert not (await leadership.read(redis, group)).held


async def test_a_leader_is_followed_and_snapshots_when_there_is_no_memory(client: Client) -> None:
    redis = client.redis
    await filled(client)
    await client.groups.declare(SHARED, "earliest")
    with full(client.url):
        candidacy = Candidacy(SHARED.id, "gone", "gone", QUICK)
        assert candidacy.observe(await leadership.read(redis, SHARED.id), 0)
        assert await candidacy.attempt(redis) == 1
        assert await leadership.witness(redis, SHARED.id, 5)
        host = LeaderHost(redis, HostConfig(name="one", leadership=QUICK))
        await host.start()
        try:
            host.lead(SHARED.id, above=5)

            await until(lambda: leading(host, SHARED.id))
            led = host._runners[SHARED.id]._leading
            assert led is not None

            async def written() -> bool:
                ((newest, _),) = await redis.xrevrange(keys.journal(SHARED.id), count=1)
                if not led.machine.durable.streams or led.journal.last_id != newest:
                    return False
                try:
                    await led.journal.snapshot(led.machine.durable.snapshot())
                except TailLost:  # a commit of the leader itself was faster: nothing was written
                    return False
                return True

            await until(written)
        finally:
            await host.close()
        assert await AsyncLog(redis).next_offsets([STREAM]) == {STREAM: 10}


async def test_mail_arrives_when_there_is_no_memory(client: Client) -> None:
    from streamlease.protocol.messages import SpawnWanted

    redis = client.redis
    box = Mailbox(redis, "one")
    with full(client.url):
        await box.open()
        sent = [("one", SpawnWanted(group="g/a")), ("nobody", SpawnWanted(group="g/b"))]
        assert await mailbox.send(redis, "me", sent) == {"nobody"}
        assert [letter.message for letter in await box.receive()] == [SpawnWanted(group="g/a")]
        assert await redis.pttl(keys.mailbox("one")) > 0
        await group_needs.tell_passed(redis, ["g/a"])
        assert await group_needs.passed(redis, "g/a") == 1
    assert await redis.exists(keys.mailbox("nobody")) == 0
    await box.close()


@pytest.mark.slow
async def test_a_full_redis_takes_messages_again_once_its_consumers_are_through(client: Client) -> None:
    """The whole way: full, consumed, trimmed, and not full any more; with nobody raising `maxmemory`."""
    redis = client.redis
    await client.create_space("s", ["a/#"], retention=Retention(messages=1))
    await client.groups.declare(SHARED, "earliest")
    host = LeaderHost(redis, HostConfig(name="one", leadership=QUICK, retention_interval=0.1))
    await host.start()
    host.lead(SHARED.id)
    await until(lambda: leading(host, SHARED.id))
    used = int((await redis.info("memory"))["used_memory"])
    written = 0
    try:
        with full(client.url, used + 8 * 1024 * 1024):
            async with client.publisher(delivery_timeout=0.2) as publisher:
                with pytest.raises(StoreRefused, match="out of memory"):
                    while True:
                        await publisher.send("a/b", os.urandom(256 * 1024))
                        written += 1
            assert written > 8, "it was full from the beginning"
            async with client.subscribe(SUB, start="earliest") as reader:
                consumed = 0
                async for batch in reader:
                    consumed += len(batch.messages)
                    await batch.commit()
                    if consumed >= written:
                        break
            async with client.publisher(delivery_timeout=30) as publisher:
                for _ in range(5):
                    await publisher.send("a/b", os.urandom(256 * 1024))
            await until(
                lambda: trimmed_to(client, written - 1)
            )  # room for more was there before all was trimmed
    finally:
        await host.close()
