"""Webhooks in Redis: whose lease may deliver them, and what a change does to who delivers."""

from __future__ import annotations

import pytest

from streamlease.protocol.errors import Fenced
from streamlease.registry.webhooks import webhook_records
from streamlease.registry.webhooks.webhook_records import (
    Settled,
    SlotFull,
    SlotLease,
    WebhookName,
    WebhookRecord,
    WebhookRecords,
)
from streamlease.streams.redis.connection import AsyncRedis

NAME = WebhookName("ana", "one")
SLOT = NAME.slot
LATER = [(1, 6), (2, 1)]
EARLIER = [(1, 4), (0, 9)]


@pytest.fixture
def records(redis: AsyncRedis) -> WebhookRecords:
    return WebhookRecords(redis)


async def made(records: WebhookRecords, name: WebhookName = NAME) -> WebhookRecord:
    found = await records.put(name, None, b"{}", b"standing")
    assert found is not None
    return found


@pytest.mark.parametrize("numbers", LATER)
async def test_a_later_lease_takes_the_slot_and_hears_of_the_former(
    records: WebhookRecords, numbers: tuple[int, int]
) -> None:
    one = await made(records)
    former, later = SlotLease(SLOT, 1, 5), SlotLease(SLOT, *numbers)
    assert (await records.claim(former)).before == SlotLease(SLOT, 0, 0)
    assert (await records.claim(former)).before == former, "safe to repeat"
    claimed = await records.claim(later)
    assert (claimed.before, claimed.webhooks) == (former, [one])
    assert await records.versions([former, later]) == [None, 1]
    said = await records.settle({former: [(NAME, one.turn, b"late")], later: [(NAME, one.turn, b"new")]})
    assert isinstance(said[former], Fenced)
    assert said[later] == Settled(1, [True])
    kept = await records.read(NAME)
    assert kept is not None and kept.standing == b"new"


@pytest.mark.parametrize("numbers", EARLIER)
async def test_an_earlier_lease_is_fenced_and_changes_nothing(
    records: WebhookRecords, numbers: tuple[int, int]
) -> None:
    now, earlier = SlotLease(SLOT, 1, 5), SlotLease(SLOT, *numbers)
    await records.claim(now)
    with pytest.raises(Fenced, match="is another gateway's by now"):
        await records.claim(earlier)
    assert await records.versions([now, earlier]) == [0, None]


async def test_what_was_changed_meanwhile_keeps_no_standing_of_before(records: WebhookRecords) -> None:
    lease = SlotLease(SLOT, 1, 1)
    one = await made(records)
    await records.claim(lease)
    changed = await records.put(NAME, one, b"{2}", None)
    assert changed is not None
    assert (await records.settle({lease: [(NAME, one.turn, b"x")]}))[lease] == Settled(2, [False])
    assert await records.read(NAME) == changed
    assert changed.standing == b"standing"


async def test_who_has_not_seen_the_newest_changes_nothing(records: WebhookRecords) -> None:
    one = await made(records)
    assert await records.put(NAME, None, b"{3}", b"") is None, "it is there already"
    two = await records.put(NAME, one, b"{2}", b"further")
    assert await records.put(NAME, one, b"{3}", None) is None
    stale = WebhookRecord(NAME, two.turn, two.definition, b"standing") if two is not None else None
    assert await records.put(NAME, stale, b"{3}", None, exact=True) is None
    assert await records.read(NAME) == two
    assert await records.count_of("ana") == 1


async def test_a_full_slot_takes_no_more_and_those_that_are_there_may_change(
    records: WebhookRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_records, "MOST_IN_SLOT", 2)
    names = [name for n in range(200) if (name := WebhookName("ana", f"{n}")).slot == SLOT]
    first, second, third = names[:3]
    one = await made(records, first)
    await made(records, second)
    with pytest.raises(SlotFull):
        await made(records, third)
    assert await records.put(first, one, b"{2}", None) is not None
    assert await records.drop(second)
    assert not await records.drop(second)
    await made(records, third)
    assert await records.count_of("ana") == 2
    assert [one.name for one in await records.of_owner("ana")] == sorted([first, third], key=lambda n: n.id)


async def test_what_is_deleted_leaves_nothing_and_who_delivers_learns_it(
    records: WebhookRecords, redis: AsyncRedis
) -> None:
    lease = SlotLease(SLOT, 1, 1)
    await records.claim(lease)
    await made(records)
    assert await records.versions([lease]) == [1]
    assert await records.drop(NAME)
    assert await records.versions([lease]) == [2]
    assert await redis.keys("*") == [f"sl:{{w:{SLOT}}}:fence".encode()]
