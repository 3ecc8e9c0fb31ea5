"""Hosts take over what clients lead, and share all groups evenly, without a message lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.agent.client import Client, connect
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.shares import sharing
from streamlease.hosts.shares.even_shares import shares
from streamlease.leader.journal import recover
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from tests.agent.helpers import publish, take

GROUPS = [SharedSubscription.parse(f"$shared/g{number}/a/#") for number in range(6)]
ALL = [group.id for group in GROUPS]
HOSTS = ["h1", "h2", "h3"]


@given(
    st.dictionaries(st.text("abc", min_size=1), st.sampled_from([*HOSTS, "embedded-1", "draining-1"])),
    st.sets(st.sampled_from(HOSTS), min_size=1),
)
def test_shares_are_even_move_no_more_than_they_must_and_leave_others_alone(
    leaders: dict[str, str], alive: set[str]
) -> None:
    moves = shares(leaders, alive, even=True)
    after = leaders | moves
    counts = Counter({host: sum(leader == host for leader in after.values()) for host in alive})
    assert max(counts.values()) - min(counts.values()) <= 1
    assert set(moves.values()) <= alive
    for group, leader in leaders.items():
        if leader == "embedded-1":
            assert group in moves
        elif leader not in alive:
            assert group not in moves, "it is another host's, which gives it up by itself"
    between = [group for group in moves if leaders[group] in alive]
    had = Counter(leader for leader in leaders.values() if leader in alive)
    assert len(between) <= sum(max(0, had[host] - counts[host]) for host in alive)


def test_groups_of_hosts_stay_where_they_are_until_that_is_uneven_for_a_while() -> None:
    leaders = {"a": "h1", "b": "h1", "c": "h1", "d": "embedded-1", "e": "embedded-2"}
    assert shares(leaders, ["h1", "h2"], even=False) == {"d": "h2", "e": "h2"}
    assert shares(leaders, [], even=True) == {}
    assert shares({"a": "embedded-1"}, ["embedded-1"], even=True) == {}, "a host that is called so"


@pytest.fixture
async def client(embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(sharing, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(sharing, "SETTLED_SECONDS", 0.3)
    async with connect(embedded_redis_url) as client:
        await client.create_space("a", ["a/#"], streams=4)
        yield client


class Stage:
    """Hosts that come and go."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = AsyncExitStack()
        self.hosts: list[LeaderHost] = []

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def come(self) -> LeaderHost:
        other = await self._stack.enter_async_context(connect(self._url))
        host = LeaderHost(other.redis, HostConfig(name=f"host{len(self.hosts)}"))
        await host.start()
        self._stack.push_async_callback(host.close)
        self.hosts.append(host)
        return host

    async def until(self, condition: Callable[[list[int]], bool]) -> None:
        """Wait for so many leaders of the hosts."""
        async with asyncio.timeout(30):
            while not condition([len(host.leaders) for host in self.hosts]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_host_that_comes_takes_over_from_a_client_and_nothing_is_lost_or_doubled(
    client: Client, embedded_redis_url: str
) -> None:
    """So after the only host went: its groups were led by their consumers, for good."""
    async with Stage(embedded_redis_url) as stage, client.subscribe(str(GROUPS[0]), start="earliest") as sub:
        await publish(client, range(40))
        got = await take(sub, 40)
        assert (await leadership.read(client.redis, ALL[0])).host.startswith("embedded-")
        for begin in (40, 80):
            host = await stage.come()
            await stage.until(lambda led: led[-1] == 1)
            await publish(client, range(begin, begin + 40))
            got += await take(sub, 40)
            acts = (await recover(client.redis, ALL[0])).state.operated.acts
            assert [(act.act, act.who) for act in acts][-1] == ("step_down", f"host {host.id}")
            await host.close()
            stage.hosts.clear()
        assert sorted(got) == [*range(120)]


async def test_what_clients_lead_is_shared_among_all_hosts(client: Client, embedded_redis_url: str) -> None:
    async with Stage(embedded_redis_url) as stage, AsyncExitStack() as consumers:
        for group in GROUPS:
            await consumers.enter_async_context(client.subscribe(str(group)))
        first, second = await stage.come(), await stage.come()
        await stage.until(lambda led: led == [3, 3])
        assert sorted([*first.leaders, *second.leaders]) == ALL


@pytest.mark.slow
async def test_a_host_that_comes_gets_its_share_of_what_others_lead(
    client: Client, embedded_redis_url: str
) -> None:
    async with Stage(embedded_redis_url) as stage:
        one = await stage.come()
        for group in GROUPS:
            await client.groups.declare(group)
            one.lead(group.id)
        await stage.until(lambda led: led == [6])
        await stage.come()
        await stage.until(lambda led: led == [3, 3])
        await stage.come()
        await stage.until(lambda led: led == [2, 2, 2])
        terms = await leadership.read_all(client.redis, ALL)
        assert sum(record.term - 1 for record in terms.values()) <= 7, (
            "3 and 2 groups move, two perhaps twice"
        )


async def test_a_leader_that_does_not_step_down_is_left_in_peace_and_asked_ever_more_seldom(
    client: Client, embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "TAKE_SECONDS", 0.1)
    await client.groups.declare(GROUPS[0])
    deaf = Candidacy(ALL[0], "embedded-deaf", "embedded-deaf", LeadershipConfig(ttl=60_000))
    deaf.observe(await leadership.read(client.redis, ALL[0]), 0)
    assert await deaf.attempt(client.redis) == 1
    async with Stage(embedded_redis_url) as stage:
        host = await stage.come()
        async with asyncio.timeout(30):
            while host._sharing._pause < 0.4:  # noqa: ASYNC110 (a condition of another task)
                await asyncio.sleep(0.02)
        record = await leadership.read(client.redis, ALL[0])
        assert (record.host, record.term, host.leaders) == ("embedded-deaf", 1, [])
