"""What doctor says of groups: dead fleets, growing lag, who leads, terms that leapt, who holds retention."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from streamlease.admin.doctor.findings import Level
from streamlease.admin.doctor.fleets import Look, dead, fleets, growing, look
from streamlease.admin.doctor.leading import hosts_alive, terms
from streamlease.admin.doctor.retention_held import retention
from streamlease.admin.doctor.server_facts import ServerFacts
from streamlease.agent.client import Client, connect
from streamlease.hosts.signals.group_signals import GroupSignals
from streamlease.protocol.ids import LEAST_LEAP
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import hosts, leadership
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.log.times import server_time
from streamlease.streams.spaces.retention import Retention
from tests.agent.helpers import publish, take

SUB = SharedSubscription.parse("$shared/g/a/#")
DEAD = GroupSignals(str(SUB), "no_leader", 0, 2, 0, 0, 5, 90.0)
SLOW = GroupSignals(str(SUB), "led", 1, 2, 2, 0, 5, 90.0)


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    async with connect(embedded_redis_url) as client:
        yield client


def one_look(at: float, group: GroupSignals) -> Look:
    return Look(at, {group.subscription: group})


def test_a_dead_fleet_fails() -> None:
    found = dead(one_look(1.0, DEAD), 60)
    assert found.level is Level.FAIL
    assert f"{SUB} (5 messages, the oldest for 90 s)" in found.message
    for other in (
        replace(DEAD, borrowers=1),
        replace(DEAD, state="paused"),
        replace(DEAD, state="expired"),
        replace(DEAD, lag=0),
        replace(DEAD, lag=None, lag_seconds=None),
        replace(DEAD, lag_seconds=59.0),
    ):
        assert dead(one_look(1.0, other), 60).level is Level.OK, other


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (replace(DEAD, lag=1, lag_seconds=None), "1 message, it is unknown since when"),
        (replace(DEAD, lag=None), "an unknown number of messages, the oldest for 90 s"),
    ],
)
def test_what_is_not_known_of_a_dead_fleet_does_not_hide_it(group: GroupSignals, said: str) -> None:
    found = dead(one_look(1.0, group), 60)
    assert (found.level, found.message) == (
        Level.FAIL,
        f"1 group has messages and no consumer left: {SUB} ({said})",
    )


def test_lag_that_grows_is_warned_of() -> None:
    found = growing(one_look(1.0, SLOW), one_look(3.0, replace(SLOW, lag=25)), 60)
    assert (found.level, "(25 messages, 10 more each second)" in found.message) == (Level.WARN, True)
    for before, after in (
        (SLOW, SLOW),
        (SLOW, replace(SLOW, lag=4)),
        (SLOW, replace(SLOW, lag=None)),
        (replace(SLOW, lag=None), replace(SLOW, lag=25)),
        (SLOW, replace(SLOW, lag=25, lag_seconds=1.0)),
        (SLOW, replace(SLOW, lag=25, borrowers=0)),
    ):
        assert growing(one_look(1.0, before), one_look(3.0, after), 60).level is Level.OK, after
    assert growing(Look(1.0, {}), one_look(3.0, SLOW), 60).level is Level.OK


async def test_both_are_found_in_redis(client: Client) -> None:
    await client.create_space("a", ["a/#"], streams=2)
    await client.groups.declare(SUB, "earliest")
    await publish(client, range(5))
    gone, lag = await fleets(client, await look(client), 0.0)
    assert (gone.level, lag.level) == (Level.FAIL, Level.OK)
    async with client.subscribe(str(SUB)) as sub:
        await take(sub, 5, commit=False)
        before = await look(client)
        await publish(client, range(5, 9))
        gone, lag = await fleets(client, before, 0.0)
        assert (gone.level, lag.level) == (Level.OK, Level.WARN)
        assert f"{SUB} (9 messages, " in lag.message


async def test_hosts_that_lead_nothing_and_clients_that_lead_beside_hosts(client: Client) -> None:
    await client.create_space("a", ["a/#"], streams=2)
    long_ago = await server_time(client.redis) // 1000 - 60_000
    busy = hosts.HostInfo(host="busy", leaders=5, since=long_ago)
    await hosts.beat(client.redis, busy)
    await hosts.beat(client.redis, hosts.HostInfo(host="new", since=long_ago + 59_000))
    assert (await hosts_alive(client)).level is Level.OK
    await hosts.beat(client.redis, hosts.HostInfo(host="idle", since=long_ago))
    found = await hosts_alive(client)
    assert found.level is Level.WARN
    assert "1 of 3 leads nothing, while another one leads 5 groups: idle" in found.message
    await hosts.beat(client.redis, hosts.HostInfo(host="idle", since=long_ago, drained=True))
    assert (await hosts_alive(client)).level is Level.OK
    await client.groups.declare(SUB)
    one = Candidacy(SUB.id, "embedded-1", "embedded-1", LeadershipConfig())
    one.observe(await leadership.read(client.redis, SUB.id), 0)
    assert await one.attempt(client.redis) == 1
    found = await hosts_alive(client)
    assert (found.level, f"clients lead 1 group: {SUB} (embedded-1)" in found.message) == (Level.WARN, True)


async def test_terms_that_leapt_are_a_loss_where_nothing_is_written_to_disk(client: Client) -> None:
    await client.create_space("a", ["a/#"], streams=2)
    kept, lost = (ServerFacts("here", {"aof_enabled": value}) for value in "10")
    await client.groups.declare(SUB)
    assert [(await terms(client, facts)).level for facts in (kept, lost)] == [Level.OK, Level.OK]
    await leadership.witness(client.redis, SUB.id, LEAST_LEAP + 1)
    found = [await terms(client, facts) for facts in (kept, lost)]
    assert [one.level for one in found] == [Level.OK, Level.WARN]
    assert all(str(SUB) in one.message for one in found)


async def test_who_holds_retention(client: Client) -> None:
    assert (await retention(client, 60)).message.startswith("no space has a limit")
    await client.create_space("a", ["a/#"], streams=2, retention=Retention(messages=1))
    await client.groups.declare(SUB, "earliest")
    assert (await retention(client, 60)).message.startswith("no group keeps anything")
    await publish(client, range(6))
    found = await retention(client, 60)
    assert (found.level, f"{SUB} (6 messages)" in found.message) == (Level.OK, True)
    found = await retention(client, -1)
    assert (found.level, f"{SUB} (6 messages, idle for 0 s)" in found.message) == (Level.WARN, True)
