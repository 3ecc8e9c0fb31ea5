"""Leadership changes only under its preconditions, and no term is ever given twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import TermStarted
from streamlease.leader.journal import Journal, recover
from streamlease.protocol.errors import Fenced, InvalidOption, StoreUnavailable
from streamlease.protocol.ids import LEAST_LEAP, LONGEST_LEAP
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys, leadership
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import (
    NOBODY,
    Candidacy,
    LeaderRecord,
    LeadershipConfig,
    LineageChanged,
)
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.spaces.spaces import SpaceStore
from tests.servers import RedisServer

GROUP = "g/a/#"
TTL = 4000
CONFIG = LeadershipConfig(ttl=TTL, renew_interval=1000)


RENEWED = "renewed"


async def renew(redis: AsyncRedis, host: str, term: int, lineage: str = "") -> object:
    """`RENEWED`, or what `renew_all` says of it."""
    return (await leadership.renew_all(redis, host, {GROUP: term}, {GROUP: lineage})).get(GROUP, RENEWED)


async def claim(redis: AsyncRedis, host: str, floor: int = 0) -> int | None:
    """What a host does that finds nobody leading."""
    candidacy = Candidacy(GROUP, host, f"box-{host}", CONFIG, floor)
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    return await candidacy.attempt(redis)


async def age(redis: AsyncRedis, milliseconds: int = TTL) -> None:
    """Make the record as old as if the leader had not renewed for that long."""
    (renewed,) = await ask(redis, [("HGET", keys.leader(GROUP), "renewed_at")])
    await ask(redis, [("HSET", keys.leader(GROUP), "renewed_at", int(renewed) - milliseconds)])


async def test_nobody_leads_a_group_that_never_had_a_leader(redis: AsyncRedis) -> None:
    assert await leadership.read(redis, GROUP) == NOBODY
    assert not NOBODY.held
    assert not NOBODY.expired


async def test_a_claim_is_recorded(redis: AsyncRedis) -> None:
    assert await claim(redis, "h1") == 1
    record = await leadership.read(redis, GROUP)
    assert (record.term, record.host, record.mailbox, record.ttl) == (1, "h1", "box-h1", TTL)
    assert record.held
    assert not record.expired
    assert 0 <= record.read_at - record.renewed_at < TTL


async def test_a_group_that_is_led_cannot_be_claimed(redis: AsyncRedis) -> None:
    await claim(redis, "h1")
    late = Candidacy(GROUP, "h2", "box", CONFIG)
    late.observe(NOBODY, 0)  # what it read before the other one was faster
    assert await late.attempt(redis) is None
    assert (await leadership.read(redis, GROUP)).host == "h1"


async def test_of_two_candidates_at_once_exactly_one_leads(redis: AsyncRedis) -> None:
    for round in range(1, 11):
        terms = await asyncio.gather(*(claim(redis, f"h{n}") for n in range(5)))
        assert sorted(term for term in terms if term is not None) == [round]
        winner = terms.index(round)
        assert (await leadership.read(redis, GROUP)).host == f"h{winner}"
        assert await leadership.resign(redis, GROUP, f"h{winner}", round)


async def test_of_two_that_take_over_at_once_exactly_one_leads(redis: AsyncRedis) -> None:
    await claim(redis, "old")
    await age(redis)
    record = await leadership.read(redis, GROUP)
    candidates = [Candidacy(GROUP, f"h{n}", "box", CONFIG) for n in range(5)]
    for candidate in candidates:
        candidate.observe(record, 0)
        assert candidate.observe(record, TTL)
    terms = await asyncio.gather(*(candidate.attempt(redis) for candidate in candidates))
    assert sorted(term for term in terms if term is not None) == [2]


async def test_resigning_keeps_the_term_so_that_the_next_is_higher(redis: AsyncRedis) -> None:
    assert await claim(redis, "h1") == 1
    assert await leadership.resign(redis, GROUP, "h1", 1)
    record = await leadership.read(redis, GROUP)
    assert (record.term, record.host, record.mailbox, record.held) == (1, "", "", False)
    assert await claim(redis, "h1") == 2


@pytest.mark.parametrize(("host", "term"), [("h2", 1), ("h1", 2), ("h1", 0)])
async def test_only_the_leader_of_the_term_renews_and_resigns(
    redis: AsyncRedis, host: str, term: int
) -> None:
    await claim(redis, "h1")
    before = await leadership.read(redis, GROUP)
    assert await renew(redis, host, term) == 1
    assert not await leadership.resign(redis, GROUP, host, term)
    after = await leadership.read(redis, GROUP)
    assert (after.term, after.host, after.renewed_at) == (before.term, before.host, before.renewed_at)


async def test_who_resigned_cannot_renew(redis: AsyncRedis) -> None:
    await claim(redis, "h1")
    await leadership.resign(redis, GROUP, "h1", 1)
    assert await renew(redis, "h1", 1) == 1
    assert not await leadership.resign(redis, GROUP, "h1", 1)


async def test_renewal_makes_an_old_record_fresh(redis: AsyncRedis) -> None:
    await claim(redis, "h1")
    await age(redis)
    assert (await leadership.read(redis, GROUP)).expired
    assert await renew(redis, "h1", 1) == RENEWED
    assert not (await leadership.read(redis, GROUP)).expired


async def test_a_take_over_is_refused_while_the_record_is_not_expired_in_redis(redis: AsyncRedis) -> None:
    """The candidate's own clock alone, however fast it runs, deposes nobody."""
    await claim(redis, "h1")
    candidacy = Candidacy(GROUP, "h2", "box-h2", CONFIG)
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    assert not candidacy.observe(await leadership.read(redis, GROUP), 100 * TTL)
    assert await candidacy.attempt(redis) is None
    assert (await leadership.read(redis, GROUP)).host == "h1"


async def test_a_take_over_waits_for_the_candidate_s_own_clock_as_well(redis: AsyncRedis) -> None:
    """A jump of the clock of Redis alone deposes nobody."""
    await claim(redis, "h1")
    await age(redis)
    record = await leadership.read(redis, GROUP)
    assert record.expired
    candidacy = Candidacy(GROUP, "h2", "box-h2", CONFIG)
    assert not candidacy.observe(record, 50_000)
    assert not candidacy.observe(record, 50_000 + TTL - 1)
    assert candidacy.observe(record, 50_000 + TTL)
    assert await candidacy.attempt(redis) == 2
    assert (await leadership.read(redis, GROUP)).mailbox == "box-h2"


async def test_a_leader_that_died_before_the_clock_of_redis_went_back_is_followed(redis: AsyncRedis) -> None:
    """Its record is of the future: it must not hold the group until the clock is there again.

    The simulation sets its clock back by seconds only, and a record of so near a future is awaited.
    """
    await claim(redis, "h1")
    await age(redis, -3_600_000)
    record = await leadership.read(redis, GROUP)
    candidacy = Candidacy(GROUP, "h2", "box-h2", CONFIG)
    assert not candidacy.observe(record, 0)
    assert candidacy.observe(record, TTL)
    assert await candidacy.attempt(redis) == 2
    assert (await leadership.read(redis, GROUP)).host == "h2"


async def test_a_leader_that_lives_stays_when_the_clock_of_redis_goes_back(redis: AsyncRedis) -> None:
    await claim(redis, "h1")
    await age(redis, -3_600_000)
    candidacy = Candidacy(GROUP, "h2", "box-h2", CONFIG)
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    assert await renew(redis, "h1", 1) == RENEWED
    assert not candidacy.observe(await leadership.read(redis, GROUP), 100 * TTL)
    assert await candidacy.attempt(redis) is None
    await age(redis, 10 - TTL)  # clocks of two servers differ a little
    assert not (await leadership.read(redis, GROUP)).expired


async def test_a_renewal_in_between_starts_the_watch_again(redis: AsyncRedis) -> None:
    await claim(redis, "h1")
    await age(redis, 3 * TTL)
    candidacy = Candidacy(GROUP, "h2", "box-h2", CONFIG)
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    assert await renew(redis, "h1", 1) == RENEWED
    assert await candidacy.attempt(redis) is None  # not what it had watched
    await age(redis, 2 * TTL)
    record = await leadership.read(redis, GROUP)
    assert not candidacy.observe(record, TTL)
    assert candidacy.observe(record, 2 * TTL)


@pytest.mark.parametrize("changed", ["term", "renewed_at"])
async def test_only_the_very_record_that_was_watched_is_taken_over(redis: AsyncRedis, changed: str) -> None:
    """Also if the record that came in its place has expired by the clock of Redis."""
    await claim(redis, "h1")
    await age(redis, 3 * TTL)
    candidacy = Candidacy(GROUP, "h2", "box-h2", CONFIG)
    record = await leadership.read(redis, GROUP)
    candidacy.observe(record, 0)
    assert candidacy.observe(record, TTL)
    await ask(redis, [("HINCRBY", keys.leader(GROUP), changed, 1)])
    assert await candidacy.attempt(redis) is None
    assert (await leadership.read(redis, GROUP)).host == "h1"
    await ask(redis, [("HINCRBY", keys.leader(GROUP), changed, -1)])
    assert await candidacy.attempt(redis) == 2


async def test_the_deposed_leader_is_fenced_everywhere(redis: AsyncRedis) -> None:
    await claim(redis, "h1")
    journal = Journal(redis, GROUP, "h1", 1, b"0-0")
    await journal.write(journal.next_commit([TermStarted(term=1, host="h1")]))
    await age(redis)
    candidacy = Candidacy(GROUP, "h2", "box-h2", CONFIG)
    record = await leadership.read(redis, GROUP)
    candidacy.observe(record, 0)
    candidacy.observe(record, TTL)
    assert await candidacy.attempt(redis) == 2
    assert await renew(redis, "h1", 1) == 2
    with pytest.raises(Fenced, match="its term 1 was followed by term 2"):
        await journal.write(journal.next_commit([TermStarted(term=1, host="h1")]))
    with pytest.raises(Fenced, match="term 2"):
        await journal.snapshot(b"{}")
    length, snapshot = await ask(redis, [("XLEN", keys.journal(GROUP)), ("EXISTS", keys.snapshot(GROUP))])
    assert (length, snapshot) == (1, 0)


async def test_a_leader_that_resigned_is_fenced_in_its_journal_too(redis: AsyncRedis) -> None:
    await claim(redis, "h1")
    await leadership.resign(redis, GROUP, "h1", 1)
    journal = Journal(redis, GROUP, "h1", 1, b"0-0")
    with pytest.raises(Fenced):
        await journal.write(journal.next_commit([TermStarted(term=1, host="h1")]))


@pytest.mark.parametrize("floor", [0, 1, 7, 10**12])
async def test_a_new_term_is_above_the_floor(redis: AsyncRedis, floor: int) -> None:
    """Redis may have lost the record by a failover, but somebody has seen the term."""
    term = await claim(redis, "h1", floor)
    assert term is not None
    assert floor < term
    assert (await leadership.read(redis, GROUP)).term == term
    assert await renew(redis, "h1", term) == RENEWED
    await age(redis)
    candidacy = Candidacy(GROUP, "h2", "box", CONFIG, term + 5)
    record = await leadership.read(redis, GROUP)
    candidacy.observe(record, 0)
    candidacy.observe(record, TTL)
    newer = await candidacy.attempt(redis)
    assert newer is not None
    assert term + 5 + LEAST_LEAP <= newer < term + 5 + LONGEST_LEAP
    assert await renew(redis, "h2", newer) == RENEWED
    assert await leadership.resign(redis, GROUP, "h2", newer)


async def test_a_floor_below_the_recorded_term_does_not_lower_it(redis: AsyncRedis) -> None:
    term = await claim(redis, "h1", 8)
    assert term is not None
    assert term > 8
    await leadership.resign(redis, GROUP, "h1", term)
    assert await claim(redis, "h2", 3) == term + 1


async def test_who_has_seen_a_higher_term_ends_the_leadership_of_a_lower_one(redis: AsyncRedis) -> None:
    assert await claim(redis, "h1") == 1
    assert not await leadership.witness(redis, GROUP, 1)
    assert await leadership.witness(redis, GROUP, 4)
    assert await renew(redis, "h1", 1) == 4
    record = await leadership.read(redis, GROUP)
    assert (record.term, record.held) == (4, False)
    assert await claim(redis, "h2") == 5


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_a_restarted_redis_gives_terms_far_away_from_those_before(
    make_redis_server: Callable[..., RedisServer], kind: str
) -> None:
    """It may have lost some that were issued, even if nobody is left who has seen them."""
    server = make_redis_server(kind, persistent=True)
    redis = connect(server.url)
    try:
        first = Candidacy(GROUP, "h1", "box", CONFIG)
        first.observe(await leadership.read(redis, GROUP), 0)
        assert await first.attempt(redis) == 1
        assert await renew(redis, "h1", 1, first.lineage) == RENEWED
        journal = Journal(redis, GROUP, "h1", 1, b"0-0", lineage=first.lineage)
        commit = journal.next_commit([TermStarted(term=1, host="h1")])
        await journal.write(commit)
        server.restart()
        await _until_it_answers(redis)
        assert await renew(redis, "h1", 1, first.lineage) is None
        with pytest.raises(LineageChanged):
            await journal.write(journal.next_commit([TermStarted(term=1, host="h1")]))
        await journal.heal(GroupState(term=1).snapshot())
        assert (await recover(redis, GROUP)).state.term == 1
        assert await leadership.resign(redis, GROUP, "h1", 1)
        second = Candidacy(GROUP, "h2", "box", CONFIG)
        second.observe(await leadership.read(redis, GROUP), 0)
        term = await second.attempt(redis)
        assert term is not None
        assert 1 + LEAST_LEAP <= term < 1 + LONGEST_LEAP
        assert second.lineage != first.lineage
        await leadership.resign(redis, GROUP, "h2", term)
        assert await claim(redis, "h3") == term + 1  # the same lineage: no leap
    finally:
        await redis.aclose()


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_a_first_term_that_was_lost_before_a_restart_is_not_issued_again(
    make_redis_server: Callable[..., RedisServer], kind: str
) -> None:
    """The server tells nothing of its past, and no record of a term is left: but the declaration is older."""
    server = make_redis_server(kind, persistent=True)
    redis = connect(server.url)
    try:
        await SpaceStore(redis).create("a", ["a/#"], streams=1)
        await Groups(redis).declare(SharedSubscription.parse(f"$shared/{GROUP}"))
        assert await claim(redis, "h1") == 1
        await ask(
            redis, [("HDEL", keys.leader(GROUP), "term", "host", "mailbox", "renewed_at", "ttl", "lineage")]
        )
        assert await leadership.read(redis, GROUP) == NOBODY
        server.restart()
        await _until_it_answers(redis)
        await Groups(redis).declare(SharedSubscription.parse(f"$shared/{GROUP}"))
        term = await claim(redis, "h2")
        assert term is not None
        assert LEAST_LEAP <= term < LONGEST_LEAP
    finally:
        await redis.aclose()


async def test_a_group_that_was_declared_in_this_lineage_begins_with_term_1(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("a", ["a/#"], streams=1)
    await Groups(redis).declare(SharedSubscription.parse(f"$shared/{GROUP}"))
    assert await claim(redis, "h1") == 1


async def _until_it_answers(redis: AsyncRedis) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await ask(redis, [("PING",)])
                return
            except StoreUnavailable:
                await asyncio.sleep(0.05)


def record(term: int = 1, renewed_at: int = 0, read_at: int = 0, host: str = "h") -> LeaderRecord:
    return LeaderRecord(term, host, f"box-{host}", renewed_at, TTL, read_at)


def test_a_group_without_leader_may_be_claimed_at_once() -> None:
    assert Candidacy(GROUP, "h", "box", CONFIG).observe(NOBODY, 0)
    assert Candidacy(GROUP, "h", "box", CONFIG).observe(record(host=""), 0)


def test_a_change_of_leader_starts_the_watch_again() -> None:
    candidacy = Candidacy(GROUP, "h", "box", CONFIG)
    candidacy.observe(record(1, 0, TTL), 0)
    assert not candidacy.observe(record(2, 0, TTL), TTL)
    assert candidacy.observe(record(2, 0, TTL), 2 * TTL)


def test_for_how_long_a_leader_is_silent_says_the_clock_that_says_less() -> None:
    """By its own clock, a process knows only that the record changed between two looks."""
    candidacy = Candidacy(GROUP, "h", "box", CONFIG)
    candidacy.observe(record(1, 100, 150), 5000)
    candidacy.observe(record(1, 1100, 1150), 6000)
    for now in (7000, 8000):
        candidacy.observe(record(1, 1100, now - 4850), now)
    assert candidacy.watch.silence(8000) == 2050
    candidacy.observe(record(1, 1100, 900_000), 9000)  # the clock of Redis was set
    assert candidacy.watch.silence(9000) == 4000
    assert candidacy.deaf(9000) == 4000 - CONFIG.renew_interval
    candidacy.observe(record(1, 1100, 500), 10_000)
    assert candidacy.watch.silence(10_000) == 0


def test_of_a_record_that_never_changed_only_the_time_since_the_first_look_is_known() -> None:
    candidacy = Candidacy(GROUP, "h", "box", CONFIG)
    assert candidacy.deaf(0) == 0
    candidacy.observe(record(1, 0, 60_000), 1000)
    candidacy.observe(record(1, 0, 65_000), 6000)
    assert candidacy.watch.silence(6000) == 5000
    candidacy.observe(record(2, 65_500, 66_000, host=""), 7000)
    assert candidacy.watch.silence(7000) == 0, "who resigned told everybody"


@pytest.mark.parametrize(("ttl", "interval"), [(1999, 1000), (1000, 0), (0, 0), (1000, -1)])
def test_a_renewal_that_does_not_fit_twice_into_the_ttl_is_refused(ttl: int, interval: int) -> None:
    with pytest.raises(InvalidOption, match=f"leader ttl is {ttl} ms and renew interval {interval} ms"):
        LeadershipConfig(ttl=ttl, renew_interval=interval)


async def test_an_heir_alone_claims_what_is_resigned_for_some_moments(redis: AsyncRedis) -> None:
    assert await claim(redis, "h1") == 1
    assert not await leadership.name_heir(redis, GROUP, "h2", 2, 5000), "it is another term"
    assert await leadership.name_heir(redis, GROUP, "h2", 1, 5000)
    assert await leadership.name_heir(redis, GROUP, "h2", 1, 5000), "once more"
    assert not await leadership.name_heir(redis, GROUP, "h3", 1, 5000), "another one is"
    assert await renew(redis, "h1", 1) == RENEWED
    assert await leadership.resign(redis, GROUP, "h1", 1)
    assert await claim(redis, "h3") is None
    assert await claim(redis, "h2") == 2
    await leadership.resign(redis, GROUP, "h2", 2)
    assert await claim(redis, "h3") == 3, "the claim of the heir is the end of it"


@pytest.mark.parametrize("milliseconds", [0, 60_000], ids=["over", "from before the clock went back"])
async def test_an_heir_that_does_not_come_keeps_nobody_away(redis: AsyncRedis, milliseconds: int) -> None:
    assert await claim(redis, "h1") == 1
    assert await leadership.name_heir(redis, GROUP, "h2", 1, milliseconds)
    assert await leadership.name_heir(redis, GROUP, "h3", 1, milliseconds)
    await leadership.resign(redis, GROUP, "h1", 1)
    assert await claim(redis, "h4") == 2
