"""A pulse renews all leaderships whose records name it, and a broken one keeps nobody who was followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from redis.crc import key_slot

from streamlease.hosts import other_leaders as watching_room
from streamlease.hosts import renewing as renewing_room
from streamlease.hosts.other_leaders import OtherLeaders
from streamlease.hosts.renewing import ONE_BY_ONE, Renewing
from streamlease.protocol.errors import StoreRefused, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import group_needs, keys, leadership, pulses
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy, LeaderRecord, LeadershipConfig, parse_record
from streamlease.registry.lookout import IN_TURN
from streamlease.registry.pulses import Pulse
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.streams.tasks import Supervisor
from tests.servers import Kind
from tests.streams.helpers import cluster_of

TTL = 4000
CONFIG = LeadershipConfig(ttl=TTL, renew_interval=1)
GROUPS = [f"g{number}/a/#" for number in range(9)]
MANY = [f"g{number}/a/#" for number in range(30)]
PULSE = Pulse("0", "h1")


@dataclass
class Leader:
    """As much of a runner as is renewed."""

    term: int
    lineage: str
    renewed_at: int = 0
    ended: list[str] = field(default_factory=list)
    left: bool = False

    def end(self, reason: str) -> None:
        self.ended.append(reason)

    def leave_lineage(self) -> None:
        self.left = True


class Host:
    """One that leads, and renews what it leads."""

    def __init__(self, redis: AsyncRedis, host: str = "h1") -> None:
        self.redis = redis
        self.host = host
        self.led: dict[str, Leader] = {}
        tasks = Supervisor("host", lambda name, error: None)
        self.renewing = Renewing(redis, host, CONFIG, self.led, tasks)  # type: ignore[arg-type]

    async def lead(self, *groups: str) -> None:
        for group in groups:
            candidacy = Candidacy(group, self.host, self.host, CONFIG)
            candidacy.observe(await leadership.read(self.redis, group), 0)
            term = await candidacy.attempt(self.redis)
            assert term is not None
            self.led[group] = Leader(term, candidacy.lineage)

    async def turns(self, count: int = 1) -> None:
        for _ in range(count):
            await self.renewing.turn()


@pytest.fixture
async def host(redis: AsyncRedis) -> Host:
    """It leads all groups, and its pulse keeps them."""
    made = Host(redis)
    await made.lead(*GROUPS)
    await made.turns(2)
    return made


async def age_records(redis: AsyncRedis, *groups: str) -> None:
    """As if they had not been renewed by themselves for a ttl."""
    for group in groups:
        await ask(redis, [("HINCRBY", keys.leader(group), "renewed_at", -TTL)])


async def age_pulse(redis: AsyncRedis) -> None:
    """As if it had been given a ttl ago."""
    await ask(redis, [("HINCRBY", keys.pulses(PULSE.tag), PULSE.host, -TTL)])


async def written(redis: AsyncRedis) -> dict[str, int]:
    """When each record was renewed by itself."""
    return {group: one.written_at for group, one in (await leadership.read_all(redis, GROUPS)).items()}


async def test_records_name_the_pulse_that_keeps_them(redis: AsyncRedis, host: Host) -> None:
    await age_records(redis, *GROUPS)
    records = await leadership.read_all(redis, GROUPS)
    assert {record.pulse for record in records.values()} == {PULSE}
    assert not any(record.expired for record in records.values())
    for group in GROUPS:
        candidacy = Candidacy(group, "h2", "h2", CONFIG)
        assert not candidacy.observe(records[group], 0)
        assert not candidacy.observe(records[group], 2 * TTL)
    assert all(leader.renewed_at and not leader.ended for leader in host.led.values())


async def test_a_turn_writes_no_record_that_a_pulse_keeps(redis: AsyncRedis, host: Host) -> None:
    await age_records(redis, *GROUPS)
    before = await written(redis)
    await host.turns(len(GROUPS))
    assert await written(redis) == before


@pytest.mark.parametrize("field", ["pulse", "renewed_at"])
@pytest.mark.parametrize("value", ["", "7x", None])
@pytest.mark.slow
async def test_records_that_were_changed_by_hand_are_put_right_a_few_in_each_turn(
    redis: AsyncRedis, host: Host, field: str, value: str | None
) -> None:
    for group in GROUPS:
        key = keys.leader(group)
        await ask(redis, [("HDEL", key, field) if value is None else ("HSET", key, field, value)])

    async def right() -> int:
        replies = await ask(redis, [("HMGET", keys.leader(group), "pulse", "renewed_at") for group in GROUPS])
        return sum(pulse == b"0" and (at or b"").isdigit() for pulse, at in replies)

    assert await right() == 0
    await host.turns()
    assert 0 < await right() <= ONE_BY_ONE
    await host.turns(len(GROUPS))
    assert await right() == len(GROUPS)
    assert not any(leader.ended for leader in host.led.values())


async def test_a_record_of_another_host_is_missed_in_turn(redis: AsyncRedis, host: Host) -> None:
    """By hand: whoever takes a group over raises its term as well."""
    await ask(redis, [("HSET", keys.leader(GROUPS[6]), "host", "h9")])
    await host.turns(len(GROUPS))
    assert [group for group, leader in host.led.items() if leader.ended] == [GROUPS[6]]


@pytest.mark.parametrize("many", [False, True], ids=["renewed by themselves", "kept by a pulse"])
async def test_a_damaged_record_ends_its_own_leader_only(
    real_redis_url: str, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    clock = [1_000_000]
    monkeypatch.setattr(renewing_room, "now_ms", lambda: clock[0])
    async with connect(real_redis_url) as redis:
        groups = GROUPS if many else GROUPS[:ONE_BY_ONE]
        host = Host(redis)
        await host.lead(*groups)
        await host.turns(2)
        await ask(redis, [("DEL", keys.leader(groups[0])), ("LPUSH", keys.leader(groups[0]), "damaged")])
        for _ in range(2 * len(groups)):
            clock[0] += TTL // 2
            await host.turns()
    ended = {group: leader.ended for group, leader in host.led.items() if leader.ended}
    assert ended.keys() == {groups[0]}
    assert "could not renew its leadership of g0/a/# in time" in ended[groups[0]][0]
    assert "WRONGTYPE" in ended[groups[0]][0]
    assert {leader.renewed_at for group, leader in host.led.items() if group != groups[0]} == {clock[0]}


async def test_few_groups_need_no_pulse(redis: AsyncRedis) -> None:
    host = Host(redis)
    await host.lead(*GROUPS[:ONE_BY_ONE])
    await host.turns()
    assert await pulses.read(redis, [PULSE]) == {}
    await host.lead(GROUPS[ONE_BY_ONE])
    await host.turns()
    assert list(await pulses.read(redis, [PULSE])) == [PULSE]
    host.led.pop(GROUPS[0])
    await host.turns()
    records = await leadership.read_all(redis, GROUPS[1 : ONE_BY_ONE + 1])
    assert {record.pulse for record in records.values()} == {None}, "they are renewed one by one again"
    assert not (await leadership.read(redis, GROUPS[0])).held


async def test_who_was_followed_while_its_pulse_stood_still_ends(redis: AsyncRedis, host: Host) -> None:
    await age_pulse(redis)
    await age_records(redis, *GROUPS)
    other = Candidacy(GROUPS[3], "h2", "h2", CONFIG)
    record = await leadership.read(redis, GROUPS[3])
    assert record.expired
    assert not other.observe(record, 0)
    assert other.observe(record, TTL)
    assert await other.attempt(redis) == 2
    await host.turns()
    assert [group for group, leader in host.led.items() if leader.ended] == [GROUPS[3]]
    assert "followed by term 2" in host.led[GROUPS[3]].ended[0]
    assert (await leadership.read(redis, GROUPS[3])).pulse is None


async def test_who_goes_on_in_time_is_followed_by_nobody(redis: AsyncRedis, host: Host) -> None:
    """A candidate saw the pulse expired; before it takes over, the host gives another one."""
    await age_pulse(redis)
    await age_records(redis, *GROUPS)
    candidates = {}
    for group, record in (await leadership.read_all(redis, GROUPS)).items():
        candidates[group] = Candidacy(group, "h2", "h2", CONFIG)
        candidates[group].observe(record, 0)
        assert candidates[group].observe(record, TTL)
    await host.turns()
    assert [await one.attempt(redis) for one in candidates.values()] == [None] * len(GROUPS)
    assert not any(leader.ended for leader in host.led.values())


async def test_a_pulse_that_was_late_by_the_host_s_own_clock_is_broken(
    redis: AsyncRedis, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of Redis went back meanwhile, so that it shows no gap."""
    now = renewing_room.now_ms
    await age_records(redis, *GROUPS)
    before = await written(redis)
    monkeypatch.setattr(renewing_room, "now_ms", lambda: now() + TTL)
    await host.turns()
    assert all(at > before[group] for group, at in (await written(redis)).items())


async def test_what_is_led_no_more_is_kept_by_no_pulse(redis: AsyncRedis, host: Host) -> None:
    """Its leader ended, and Redis did not answer when it resigned."""
    host.led.pop(GROUPS[5])
    assert (await leadership.read(redis, GROUPS[5])).held
    await host.turns()
    assert not (await leadership.read(redis, GROUPS[5])).held
    other = Host(redis, "h2")
    await other.lead(GROUPS[5])
    await host.turns()
    assert (await leadership.read(redis, GROUPS[5])).host == "h2"


async def test_a_record_that_was_removed_by_hand_is_missed_in_turn(redis: AsyncRedis, host: Host) -> None:
    await ask(redis, [("DEL", keys.leader(GROUPS[2]))])
    await host.turns(len(GROUPS))
    assert [group for group, leader in host.led.items() if leader.ended] == [GROUPS[2]]


async def test_a_term_of_another_lineage_is_left_at_the_next_pulse(
    host: Host, request: pytest.FixtureRequest
) -> None:
    tells = request.node.callspec.params["redis_url"] is not Kind.FAKE
    assert bool(host.led[GROUPS[4]].lineage) == tells
    host.led[GROUPS[4]].lineage = "0" * 40
    await host.turns()
    assert [group for group, leader in host.led.items() if leader.left] == ([GROUPS[4]] if tells else [])


async def test_a_host_that_cannot_pulse_renews_one_by_one(redis: AsyncRedis, host: Host) -> None:
    key = keys.pulses(PULSE.tag)
    await ask(redis, [("DEL", key), ("SET", key, "of a stranger")])
    await age_records(redis, *GROUPS)
    assert all(record.expired for record in (await leadership.read_all(redis, GROUPS)).values())
    await host.turns()
    records = await leadership.read_all(redis, GROUPS)
    assert not any(record.expired or record.pulse for record in records.values())


async def test_silent_hosts_are_forgotten_in_time(redis: AsyncRedis) -> None:
    old = Pulse("0", "old")
    await pulses.give(redis, old)
    await pulses.give(redis, PULSE, tidy=True)
    assert set(await pulses.read(redis, [old, PULSE])) == {old, PULSE}
    await ask(redis, [("HINCRBY", keys.pulses("0"), "old", -pulses.FORGOTTEN_MS)])
    await pulses.give(redis, PULSE, tidy=True)
    assert set(await pulses.read(redis, [old, PULSE])) == {PULSE}


async def test_a_group_with_a_live_leader_is_active(redis: AsyncRedis, host: Host) -> None:
    shared = SharedSubscription.parse(f"$shared/{GROUPS[0]}")
    await SpaceStore(redis).create("a", ["a/#"])
    await Groups(redis).declare(shared, "earliest")
    await ask(redis, [("HSET", keys.progress(shared.id), "@active", 1)])
    await age_records(redis, *GROUPS)
    (progress,) = await group_needs.read(redis, {shared: []})
    assert progress.idle_ms < TTL
    await age_pulse(redis)
    (progress,) = await group_needs.read(redis, {shared: []})
    assert progress.idle_ms >= TTL


def test_in_a_cluster_the_pulse_lies_beside_the_records() -> None:
    lone = StreamId("s", 0, 0)
    cluster = cluster_of(lone)
    owners = cluster.topology.owners
    for near in (stream_meta(lone), keys.leader(GROUPS[0])):
        tag = pulses.tag_beside(cluster, near)
        assert owners[key_slot(f"p:{tag}".encode())] == owners[key_slot(near.encode())]


class Watcher:
    """A host that leads nothing, and watches the others; its clock is held."""

    def __init__(self, redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.redis = redis
        self.now = 1_000_000
        self.read = 0
        """How many records the last look has read."""

        def count(group: str, fields: Sequence[bytes | None], read_at: int) -> LeaderRecord:
            self.read += 1
            return parse_record(group, fields, read_at)

        monkeypatch.setattr(watching_room, "now_ms", lambda: self.now)
        monkeypatch.setattr(watching_room, "WATCH_SECONDS", 0.001)
        monkeypatch.setattr(leadership, "parse_record", count)
        tasks = Supervisor("watcher", lambda name, error: None)
        self.watching = OtherLeaders(redis, "w", CONFIG, {}, tasks)

    async def look(self) -> list[str]:
        """One look, half a second after the one before; the groups that it would take."""
        self.now += 500
        self.read = 0
        return sorted(await self.watching.turn())


@pytest.fixture
async def watcher(redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    await SpaceStore(redis).create("a", ["a/#"])
    for group in MANY:
        await Groups(redis).declare(SharedSubscription.parse(f"$shared/{group}"), "earliest")
    return Watcher(redis, monkeypatch)


@pytest.mark.slow
async def test_a_watcher_looks_at_pulses_and_at_few_records(redis: AsyncRedis, watcher: Watcher) -> None:
    host = Host(redis)
    await host.lead(*MANY)
    await host.turns(2)
    assert await watcher.look() == []
    assert watcher.read == len(MANY), "at first it knows nothing"
    for _ in range(6):
        await host.turns()
        assert await watcher.look() == []
        assert 0 < watcher.read <= IN_TURN


@pytest.mark.slow
async def test_all_groups_of_a_dead_host_are_overdue_when_it_was_silent_for_a_ttl(
    redis: AsyncRedis, watcher: Watcher
) -> None:
    """Also those of which the watcher did not know that they had a leader."""
    host = Host(redis)
    await host.lead(*MANY[:5])
    await host.turns(2)
    assert await watcher.look() == []
    await host.lead(*MANY[5:])
    await host.turns(2)
    assert await watcher.look() == []
    await age_pulse(redis)  # the clock of Redis says so from now on
    await age_records(redis, *MANY)
    assert await watcher.look() == []
    begun = watcher.now
    while not (overdue := await watcher.look()):
        assert watcher.now - begun < TTL, "later than a ttl after it saw the last pulse"
    assert watcher.now - begun == TTL
    assert overdue == sorted(MANY)


@pytest.mark.slow
async def test_a_host_that_comes_back_in_time_keeps_its_groups(redis: AsyncRedis, watcher: Watcher) -> None:
    host = Host(redis)
    await host.lead(*MANY)
    await host.turns(2)
    for _ in range(3):
        await age_pulse(redis)
        await age_records(redis, *MANY)
        for _ in range(TTL // 500):
            assert await watcher.look() == []
        await host.turns()
    assert not any(leader.ended for leader in host.led.values())


async def test_a_damaged_record_keeps_no_other_group_from_being_followed(
    real_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(real_redis_url) as redis:
        await SpaceStore(redis).create("a", ["a/#"])
        for group in GROUPS:
            await Groups(redis).declare(SharedSubscription.parse(f"$shared/{group}"), "earliest")
        host, watcher = Host(redis), Watcher(redis, monkeypatch)
        await host.lead(*GROUPS)
        await host.turns(2)
        damaged = GROUPS[4]
        await ask(redis, [("DEL", keys.leader(damaged)), ("LPUSH", keys.leader(damaged), "damaged")])
        assert await watcher.look() == []
        await age_pulse(redis)
        await age_records(redis, *(group for group in GROUPS if group != damaged))
        begun = watcher.now
        while not (overdue := await watcher.look()):
            assert watcher.now - begun < 2 * TTL
        assert overdue == [group for group in GROUPS if group != damaged]
        records = await leadership.read_all(redis, GROUPS)
        assert [group for group, record in records.items() if record.damage] == [damaged]
        with pytest.raises(StreamleaseError, match=f"it is no hash.*remove key {keys.leader(damaged)}"):
            await leadership.read(redis, damaged)
        with pytest.raises(StoreRefused, match="NOPERM"):
            parse_record(damaged, StoreRefused("NOPERM: give the user the rights"), 0)
