"""A group that somebody wants in the moment of its deletion stays, or is declared anew: no wish is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from streamlease.protocol.errors import ActRefused, UnknownGroup
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys, leadership
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.spaces import SpaceStore

SHARED = SharedSubscription.parse("$shared/g/a/#")


@pytest.fixture
async def groups(redis: AsyncRedis) -> Groups:
    await SpaceStore(redis).create("a", ["a/#"], streams=2)
    return Groups(redis)


async def kept(redis: AsyncRedis) -> list[bytes]:
    (names,) = await ask(redis, [("KEYS", "sl:{g:*")])
    return sorted(names)


async def declares(groups: Groups) -> None:
    await groups.declare(SHARED, "latest")


async def joins(groups: Groups) -> None:
    await groups.join(SHARED)


async def arrives(groups: Groups) -> None:
    await groups.arrive(SHARED)


@pytest.mark.parametrize("wish", [declares, joins, arrives])
async def test_who_wants_the_group_while_it_is_deleted_keeps_it(
    groups: Groups, redis: AsyncRedis, wish: Callable[[Groups], Awaitable[None]]
) -> None:
    declared = await groups.declare(SHARED, "earliest")
    await groups.arrive(SHARED)
    wishes = await groups.wishes(SHARED)
    await wish(groups)
    before = await kept(redis)
    with pytest.raises(ActRefused, match=r"somebody subscribed to '\$shared/g/a/#' in this moment"):
        await groups.forget(SHARED, wishes)
    assert await kept(redis) == before
    assert (await groups.get(SHARED), await groups.list()) == (declared, [SHARED])


async def test_who_wants_it_afterwards_declares_it_anew(groups: Groups, redis: AsyncRedis) -> None:
    await groups.declare(SHARED, "earliest")
    await groups.arrive(SHARED)
    wishes = await groups.wishes(SHARED)
    await groups.forget(SHARED, wishes)
    assert (await kept(redis), await groups.list()) == ([], [])
    with pytest.raises(UnknownGroup):
        await groups.get(SHARED)
    assert (await groups.join(SHARED, "latest")).start == "latest"
    await groups.arrive(SHARED)
    with pytest.raises(ActRefused):
        await groups.forget(SHARED, wishes)
    assert await groups.list() == [SHARED]


async def test_a_group_from_before_wishes_were_counted_is_deleted_too(
    groups: Groups, redis: AsyncRedis
) -> None:
    await groups.declare(SHARED)
    assert await ask(redis, [("HDEL", keys.progress(SHARED.id), "@joined")]) == [1]
    assert await kept(redis) != []
    await groups.forget(SHARED, await groups.wishes(SHARED))
    assert await kept(redis) == []


async def test_every_declaration_has_a_number_of_its_own(groups: Groups) -> None:
    numbers = []
    for _ in range(3):
        await groups.declare(SHARED)
        numbers.append(int((await groups.wishes(SHARED)).joined))
    await groups.forget(SHARED)
    await groups.declare(SHARED)
    numbers.append(int((await groups.wishes(SHARED)).joined))
    assert numbers == sorted(set(numbers))


async def test_a_session_that_joined_before_stays_older_than_the_next_one(groups: Groups) -> None:
    await groups.join(SHARED)
    arrivals = [await groups.arrive(SHARED) for _ in range(3)]
    await groups.forget(SHARED)
    await groups.join(SHARED, arrival=arrivals[-1])
    assert await groups.arrive(SHARED) > arrivals[-1]


async def test_who_still_looks_for_its_leader_brings_no_record_of_a_forgotten_group_back(
    groups: Groups, redis: AsyncRedis
) -> None:
    """Its last clients and candidates have seen terms of it, and do not know yet that it was deleted."""
    await groups.declare(SHARED, "earliest")
    late = candidate()
    late.observe(await leadership.read(redis, SHARED.id), 0)
    await groups.forget(SHARED)
    assert not await leadership.witness(redis, SHARED.id, 7)
    with pytest.raises(UnknownGroup, match="g/a/# is not declared, or was deleted"):
        await late.attempt(redis)
    assert await kept(redis) == []
    await groups.declare(SHARED, "earliest")
    assert await leadership.witness(redis, SHARED.id, 7)
    late.observe(await leadership.read(redis, SHARED.id), 0)
    term = await late.attempt(redis)
    assert term is not None
    assert term > 7


async def test_a_record_without_a_declaration_still_learns_of_a_higher_term(
    groups: Groups, redis: AsyncRedis
) -> None:
    """A failover lost the declaration: whoever leads in a term that was followed ends all the same."""
    await groups.declare(SHARED, "earliest")
    leader = candidate()
    leader.observe(await leadership.read(redis, SHARED.id), 0)
    assert await leader.attempt(redis) == 1
    await ask(redis, [("DEL", keys.definition(SHARED.id))])
    assert await leadership.witness(redis, SHARED.id, 7)
    record = await leadership.read(redis, SHARED.id)
    assert (record.term, record.held) == (7, False)
    with pytest.raises(UnknownGroup):
        await candidate().attempt(redis)


def candidate() -> Candidacy:
    return Candidacy(SHARED.id, "h", "h", LeadershipConfig(), declared=True)
