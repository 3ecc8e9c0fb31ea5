"""Hosts that cannot go on: nothing of them ends in silence, and nobody is kept by what is left of them.

The simulation runs the same loops, and counts a host that fails as a finding; here the defects that end
one are planted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.agent.membership.agent import Agent
from streamlease.hosts import candidates
from streamlease.hosts import jobs as jobs_room
from streamlease.hosts import serve as serve_room
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.jobs import HostWorker, SpawnJobs
from streamlease.hosts.serve import ServeConfig, serve
from streamlease.hosts.upkeep import Upkeep
from streamlease.leader.journal import recover
from streamlease.leader.runner import Runner
from streamlease.protocol.errors import StreamleaseError, TaskFailed, Unsupported
from streamlease.registry import keys, leadership
from streamlease.registry.groups import Groups
from streamlease.registry.spawn import queue_client
from streamlease.streams.clock import milliseconds
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import Known, SpaceStore
from tests.leader.test_host import GROUP, QUICK, SUBSCRIPTION, hosting, leads, until


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(embedded_redis_url)
    await SpaceStore(client).create("a", ["a/#"], streams=2)
    await Groups(client).declare(SUBSCRIPTION, "earliest")
    yield client
    await client.aclose()


async def test_a_host_with_a_loop_that_ended_gives_its_leaders_up_and_says_why(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    broken = asyncio.Event()
    look = Upkeep.look

    async def breaks(self: Upkeep) -> None:
        if broken.is_set():
            raise OverflowError("int too big to convert")
        await look(self)

    monkeypatch.setattr(Upkeep, "look", breaks)
    host = LeaderHost(redis, HostConfig(name="one", leadership=QUICK), failed=failed.set)
    await host.start()
    try:
        host.lead(GROUP)
        await leads(redis, host, 1)
        broken.set()
        await failed.wait()
        assert isinstance(host.failure, TaskFailed)
        assert "look ended by a defect (OverflowError: int too big to convert)" in str(host.failure)

        async def resigned() -> bool:
            return not (await leadership.read(redis, GROUP)).held and host.leaders == []

        await until(resigned)
        host.lead(GROUP)
        assert list(host._candidates) == [], "it stands for nothing any more"
    finally:
        await host.close()


@pytest.mark.slow
async def test_damaged_data_are_looked_at_again_until_somebody_repairs_them(
    embedded_redis_url: str, redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ended the loop that looks for streams, for good, without a word and with green probes."""
    damaged = asyncio.Event()
    all_spaces = Groups.all_spaces

    async def read(self: Groups) -> Known:
        if damaged.is_set():
            raise Unsupported("key sl:{spaces}:definitions is damaged: restore it from a backup")
        return await all_spaces(self)

    monkeypatch.setattr(Groups, "all_spaces", read)
    async with hosting(redis, "one") as host:
        host.lead(GROUP)
        await leads(redis, host, 1)
        damaged.set()
        await until(lambda: _is(bool(host.troubles)))
        assert list(host.troubles) == ["look"]
        assert "definitions is damaged: restore it" in host.troubles["look"]
        status, body = await _ask(embedded_redis_url, host, "/readyz")
        assert (status, body["ready"], body["troubles"]) == (503, False, host.troubles)
        assert (await _ask(embedded_redis_url, host, "/healthz"))[0] == 200
        damaged.clear()
        await SpaceStore(redis).generations.alter("a", streams=3)

        async def seen() -> bool:
            streams = (await recover(redis, GROUP)).state.streams
            return sum(not one.finished for one in streams.values()) == 3  # the former ones are finished

        await until(seen)
        await until(lambda: _is(not host.troubles))
        assert host.failure is None


async def test_a_scrape_that_takes_too_long_is_given_up_whole(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each scrape of a slow Redis leaves one more at work."""
    given_up = asyncio.Event()

    async def facts(self: LeaderHost) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr(LeaderHost, "facts", facts)
    monkeypatch.setattr(serve_room, "SCRAPE_SECONDS", 0.01)
    async with hosting(redis, "one") as host:
        serving = serve_room._Serving(host, asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(serving.metrics)
        await asyncio.wait_for(given_up.wait(), 10)


async def _ask(url: str, host: LeaderHost, path: str) -> tuple[int, dict[str, Any]]:
    """What a probe of the host answers."""
    serving = serve_room._Serving(host, asyncio.get_running_loop())
    probes = serve_room._listen(ServeConfig(url, HostConfig(), http_port=0), serving)

    where = f"http://127.0.0.1:{probes.server_address[1]}{path}"

    def ask() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(where, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    try:
        return await asyncio.to_thread(ask)
    finally:
        await asyncio.to_thread(probes.shutdown)
        probes.server_close()


async def test_a_process_whose_host_failed_ends_with_its_error(
    embedded_redis_url: str, redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(self: Upkeep) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(Upkeep, "weigh", breaks)
    with pytest.raises(TaskFailed, match="weigh ended by a defect"):
        await asyncio.wait_for(serve(ServeConfig(embedded_redis_url, HostConfig(), http_port=0)), 60)


async def test_a_thread_that_ends_ends_the_host(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: HostWorker, **_: object) -> bool:
        raise AttributeError("no such thing")

    monkeypatch.setattr(HostWorker, "work", breaks)
    monkeypatch.setattr(jobs_room, "AGAIN_SECONDS", 0.01)
    with pytest.raises(TaskFailed, match=r"spawn-jobs ended by a defect \(AttributeError"):
        await asyncio.wait_for(serve(ServeConfig(embedded_redis_url, HostConfig(), http_port=0)), 60)
    told = threading.Event()
    with queue_client(embedded_redis_url) as queue:
        jobs = SpawnJobs(queue, "h", lambda job: None, lambda name, error: told.set())
        jobs.start()
        assert await asyncio.to_thread(told.wait, 30)
        jobs.join(10)


async def test_the_probes_of_a_failed_host_say_so(embedded_redis_url: str, redis: AsyncRedis) -> None:
    host = LeaderHost(redis, HostConfig())
    serve_room._Serving(host, asyncio.get_running_loop()).fail("probes", MemoryError("no more"))
    await until(lambda: _is(host.failure is not None))
    for path in ("/healthz", "/readyz"):
        status, body = await _ask(embedded_redis_url, host, path)
        assert (status, body["live"]) == (503, False)
        assert "probes ended by a defect (MemoryError: no more)" in body["error"]


async def _is(value: bool) -> bool:
    return value


async def _finds_a_living_leader(agent: Agent, redis: AsyncRedis) -> None:
    found: list[str] = []

    async def led() -> bool:
        agent.leaders.find(GROUP, lambda mailbox, term: found.append(mailbox))
        return bool(found)

    await until(led)
    first = await leadership.read(redis, GROUP)

    async def renewed() -> bool:
        record = await leadership.read(redis, GROUP)
        assert record.term == first.term
        return record.renewed_at >= first.renewed_at + first.ttl

    await until(renewed)


@pytest.mark.slow
async def test_an_embedded_host_that_could_not_begin_leaves_nothing_behind(
    embedded_redis_url: str, redis: AsyncRedis
) -> None:
    """It was kept, claimed groups and never renewed them: the group had no leader until the process ended."""
    agent = Agent(redis)
    await agent.start()
    try:
        await redis.config_set("min-replicas-to-write", 1)  # Redis refuses every write
        try:
            agent.leaders.find(GROUP, lambda mailbox, term: None)
            await until(lambda: _is(not agent.leaders._searches))
        finally:
            await redis.config_set("min-replicas-to-write", 0)
        assert agent.leaders._host is None
        await _finds_a_living_leader(agent, redis)
    finally:
        await agent.close()
    assert [key async for key in redis.scan_iter(match="sl:{m:*")] == []


@pytest.mark.slow
async def test_an_embedded_host_that_failed_is_followed_by_another(
    embedded_redis_url: str, redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()
    tick = Upkeep.tick

    async def breaks(self: Upkeep) -> None:
        if broken.is_set():
            raise ZeroDivisionError
        await tick(self)

    monkeypatch.setattr(Upkeep, "tick", breaks)
    agent = Agent(redis)
    await agent.start()
    try:
        await _finds_a_living_leader(agent, redis)
        first = agent.leaders._host
        assert first is not None
        leading = (await leadership.read(redis, GROUP)).host
        broken.set()
        await until(lambda: _is(first.failure is not None))
        broken.clear()

        async def let_go() -> bool:
            return (await leadership.read(redis, GROUP)).host != leading

        await until(let_go)  # who asks before that is told of the one that failed
        await _finds_a_living_leader(agent, redis)
        assert agent.leaders._host is not None
        assert agent.leaders._host is not first
    finally:
        await agent.close()


async def test_a_defect_in_one_leader_ends_that_leader_only(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = type(SUBSCRIPTION).parse("$shared/other/a")
    await Groups(redis).declare(other, "earliest")
    broken = asyncio.Event()
    look = Runner.look

    async def breaks(self: Runner, *given: Any) -> None:
        if broken.is_set() and self.group == GROUP:
            raise OverflowError("too large")
        await look(self, *given)

    monkeypatch.setattr(Runner, "look", breaks)
    async with hosting(redis, "one") as host:
        host.lead(GROUP)
        host.lead(other.id)
        await until(lambda: _is(host.leaders == [GROUP, other.id]))
        leader = host._runners[GROUP]
        broken.set()
        await until(lambda: _is(host.leaders == [other.id]))
        assert "the look at its streams ended by a defect (OverflowError: too large)" in leader.reason
        assert host.failure is None


@pytest.mark.parametrize("part", ["journal", "definition"])
async def test_a_group_that_cannot_be_read_is_told_of_and_left_alone_for_a_while(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """It was claimed, given up and claimed again, two terms a second, and nobody was told."""
    key = getattr(keys, part)(GROUP)
    held = await redis.get(key) if part == "definition" else None
    if held is None:
        of_later = b'[{"type": "later"}]'
        await redis.xadd(key, {"t": "1", "n": "1", "r": of_later})
    else:
        await redis.set(key, held.replace(b"{", b'{"later": 1, ', 1))
    monkeypatch.setattr(candidates, "DAMAGED_SECONDS", 1000.0)

    async def told() -> bool:
        return any(f"leader of {GROUP}: " in one for one in caplog.messages)

    async with hosting(redis, "one") as host:
        host.lead(GROUP)
        await until(told)
        (line,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
        assert "damaged, or of a later version" in line
        assert line.endswith(f"restore key {key} from a backup")
        term = (await leadership.read(redis, GROUP)).term
        host.lead(GROUP)
        assert list(host._candidates) == []
        await (redis.delete(key) if held is None else redis.set(key, held))
        host.lead(GROUP)
        assert list(host._candidates) == [], "not yet"
        assert (await leadership.read(redis, GROUP)).term == term
        monkeypatch.setattr(candidates, "now_ms", lambda: milliseconds() + 1_000_000)
        host.lead(GROUP)
        await leads(redis, host, term + 1)


async def test_a_damaged_leadership_record_hurts_its_own_group_only(redis: AsyncRedis) -> None:
    """It ended the loop that watches the leaders of other hosts."""
    async with hosting(redis, "one") as host:
        await redis.hset(keys.leader(GROUP), mapping={"term": "x", "host": "dead", "renewed_at": "?"})
        host.lead(GROUP)
        with pytest.raises(StreamleaseError, match=r"group g/a is damaged .*: remove key sl:\{g:g/a\}"):
            await leadership.read(redis, GROUP)
        other = type(SUBSCRIPTION).parse("$shared/other/a")
        await Groups(redis).declare(other, "earliest")
        host.lead(other.id)
        await until(lambda: _is(host.leaders == [other.id]))
        assert await host._candidates._other_leaders.turn() == []
        await redis.delete(keys.leader(GROUP))
        await until(lambda: _is(host.leaders == [GROUP, other.id]))
        assert host.failure is None
