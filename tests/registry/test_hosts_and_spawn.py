"""Which hosts are alive, and how one of them is asked to lead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from streamlease.protocol.errors import StoreRefused, StoreUnavailable
from streamlease.protocol.messages import SpawnWanted
from streamlease.registry import hosts, keys, spawn
from streamlease.registry.hosts import SILENCE_MS, HostInfo
from streamlease.registry.keys import QUEUE
from streamlease.registry.leadership import NOBODY, Candidacy, LeadershipConfig
from streamlease.registry.mail.mailbox import Mailbox
from streamlease.registry.spawn import WINDOW_MS, job_id
from streamlease.registry.spawn_jobs import LeadGroup
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis, ask, connect_blocking
from tests.conftest import MakeServer

GROUP = "g/a"


async def silence(redis: AsyncRedis, host: str, milliseconds: int) -> None:
    (score,) = await ask(redis, [("ZSCORE", keys.HOSTS_ALIVE, host)])
    await ask(redis, [("ZADD", keys.HOSTS_ALIVE, float(score) - milliseconds, host)])


async def test_a_host_is_alive_as_long_as_it_beats(redis: AsyncRedis) -> None:
    one, two = HostInfo(host="h1", name="n", pid=7, leaders=3), HostInfo(host="h2")
    assert await hosts.beat(redis, one) == 1
    assert await hosts.beat(redis, two) == 2
    assert sorted(await hosts.alive(redis), key=lambda info: info.host) == [one, two]
    await silence(redis, "h1", SILENCE_MS + 1000)
    assert await hosts.alive(redis) == [two]
    assert await hosts.beat(redis, one) == 2


async def test_whoever_lives_is_known_and_so_are_silent_ones_until_they_are_forgotten(
    redis: AsyncRedis,
) -> None:
    assert await hosts.known(redis) == []
    one, two = HostInfo(host="h1", leaders=3), HostInfo(host="h2")
    await hosts.beat(redis, one)
    await silence(redis, "h1", SILENCE_MS - 1000)
    await hosts.beat(redis, two)
    await silence(redis, "h1", 2000)
    assert sorted(await hosts.known(redis), key=lambda info: info.host) == [one, two]
    assert await hosts.alive(redis) == [two]
    await hosts.beat(redis, two)
    assert await hosts.known(redis) == [two]


async def test_a_beat_forgets_the_silent_ones_for_good(redis: AsyncRedis) -> None:
    await hosts.beat(redis, HostInfo(host="h1"))
    await silence(redis, "h1", SILENCE_MS + 1000)
    assert await hosts.beat(redis, HostInfo(host="h2")) == 1
    known, described = await ask(redis, [("ZCARD", keys.HOSTS_ALIVE), ("HLEN", keys.HOSTS_INFO)])
    assert (known, described) == (1, 1)


async def test_a_host_that_died_before_the_clock_of_redis_went_back_is_forgotten(redis: AsyncRedis) -> None:
    await hosts.beat(redis, HostInfo(host="h1"))
    await silence(redis, "h1", -3_600_000)
    assert await hosts.alive(redis) == []
    assert await hosts.beat(redis, HostInfo(host="h2")) == 1
    assert await ask(redis, [("HLEN", keys.HOSTS_INFO)]) == [1]


async def test_a_host_that_leaves_is_not_counted(redis: AsyncRedis) -> None:
    await hosts.beat(redis, HostInfo(host="h1"))
    await hosts.leave(redis, "h1")
    assert await hosts.alive(redis) == []
    assert await ask(redis, [("EXISTS", keys.HOSTS_ALIVE, keys.HOSTS_INFO)]) == [0]


async def test_a_host_whose_description_is_damaged_still_counts(redis: AsyncRedis) -> None:
    await hosts.beat(redis, HostInfo(host="h1"))
    await ask(redis, [("HSET", keys.HOSTS_INFO, "h1", "nonsense")])
    assert await hosts.alive(redis) == [HostInfo(host="h1")]


async def test_a_later_beat_tells_the_news(redis: AsyncRedis) -> None:
    await hosts.beat(redis, HostInfo(host="h1", leaders=1))
    await hosts.beat(redis, HostInfo(host="h1", leaders=2))
    assert [info.leaders for info in await hosts.alive(redis)] == [2]


# ---------------------------------------------------------------- spawning


def test_the_job_s_id_is_the_group_the_term_and_the_window() -> None:
    now = 50 * WINDOW_MS
    same = {job_id(GROUP, 3, now), job_id(GROUP, 3, now + WINDOW_MS - 1)}
    assert len(same) == 1
    others = {job_id("g/b", 3, now), job_id(GROUP, 4, now), job_id(GROUP, 3, now + WINDOW_MS)}
    assert len(same | others) == 4


@pytest.mark.parametrize("group", ["g/a/+/#", "g/ü ✈", "g/" + "x" * 5000, "g/a:b"])
def test_a_job_s_id_is_plain_and_short_for_every_group(group: str) -> None:
    id = job_id(group, 3, 10)
    assert len(id) < 100
    assert id.replace("-", "").isalnum()
    assert id.isascii()


@pytest.fixture
def blocking(real_redis_url: str) -> Iterator[BlockingRedis]:
    """RQ's client; the fake closes the connection on the scripts of RQ."""
    client = connect_blocking(real_redis_url)
    yield client
    client.close()


async def test_all_that_miss_the_same_leader_make_one_job(blocking: BlockingRedis) -> None:
    record = replace(NOBODY, read_at=10 * WINDOW_MS)
    assert await spawn.spawn(blocking, GROUP, record)
    assert not await spawn.spawn(blocking, GROUP, record)
    assert not await spawn.spawn(blocking, GROUP, replace(record, read_at=record.read_at + 1))
    (job,) = Queue(QUEUE, connection=blocking, serializer=JSONSerializer).jobs
    assert (job.func_name, job.args) == (LeadGroup.kind, [GROUP, 0])
    assert job.id == job_id(GROUP, 1, record.read_at)


async def test_a_job_that_a_dying_host_took_is_followed_by_another(
    blocking: BlockingRedis,
) -> None:
    record = replace(NOBODY, read_at=10 * WINDOW_MS)
    assert await spawn.spawn(blocking, GROUP, record)
    assert await spawn.spawn(blocking, GROUP, replace(record, read_at=record.read_at + WINDOW_MS))
    assert await spawn.spawn(blocking, GROUP, replace(record, term=1))
    assert await spawn.spawn(blocking, "g/other", record)
    assert len(Queue(QUEUE, connection=blocking, serializer=JSONSerializer).jobs) == 4


async def test_without_a_record_the_clock_of_redis_decides_the_window(
    blocking: BlockingRedis,
) -> None:
    assert await spawn.spawn(blocking, GROUP, NOBODY)
    (job,) = Queue(QUEUE, connection=blocking, serializer=JSONSerializer).jobs
    seconds, microseconds = blocking.time()
    now = seconds * 1000 + microseconds // 1000
    assert job.id in {job_id(GROUP, 1, now), job_id(GROUP, 1, now - WINDOW_MS)}


async def test_a_queue_that_does_not_answer_or_refuses_is_our_own_error(
    make_redis_server: MakeServer,
) -> None:
    server = make_redis_server()
    client = connect_blocking(server.url)
    client.execute_command("ACL", "SETUSER", "default", "resetkeys", "~sl:*")  # type: ignore[union-attr]
    with pytest.raises(StoreRefused, match="does not let this user"):
        await spawn.spawn(client, GROUP, replace(NOBODY, read_at=1))  # type: ignore[arg-type]
    server.stop()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await spawn.spawn(client, GROUP, replace(NOBODY, read_at=1))  # type: ignore[arg-type]
    client.close()


async def test_all_that_miss_a_leader_ask_the_same_few_hosts(redis: AsyncRedis) -> None:
    boxes = {f"h{n}": Mailbox(redis, f"h{n}", 1) for n in range(9)}
    for box in boxes.values():
        await box.open()
    record = replace(NOBODY, read_at=10 * WINDOW_MS)
    found = spawn.Found(record, len(boxes), tuple(boxes))
    for agent in ("a", "b"):
        assert await spawn.ask_hosts(redis, agent, GROUP, found, above=4)
    heard = {name: [letter.message for letter in await box.receive()] for name, box in boxes.items()}
    asked = {name for name, messages in heard.items() if messages}
    assert len(asked) == spawn.ASKED
    assert all(heard[name] == [SpawnWanted(group=GROUP, above=4)] * 2 for name in asked)
    alone = spawn.Found(record, 1, ("h1",))
    assert await spawn.ask_hosts(redis, "a", GROUP, alone)
    await boxes["h1"].close()
    assert not await spawn.ask_hosts(redis, "a", GROUP, alone)


async def test_find_tells_the_leader_and_how_many_hosts_could_be_one(redis: AsyncRedis) -> None:
    found = await spawn.find(redis, GROUP)
    assert (found.live, found.hosts) == (False, 0)
    await hosts.beat(redis, HostInfo(host="h1"))
    candidacy = Candidacy(GROUP, "h1", "box-h1", LeadershipConfig())
    candidacy.observe(found.record, 0)
    assert await candidacy.attempt(redis) == 1
    found = await spawn.find(redis, GROUP)
    assert (found.live, found.hosts, found.record.mailbox) == (True, 1, "box-h1")
    await ask(redis, [("HSET", keys.leader(GROUP), "renewed_at", 1)])
    assert not (await spawn.find(redis, GROUP)).live
