"""Whoever follows a collection of the catalog has what there is, at each moment, and misses nothing."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import streamlease
from streamlease.agent.client import Client
from streamlease.catalog import feed
from streamlease.catalog.followed import Catalog
from streamlease.catalog.items import CatalogItem, HostItem, LeaderItem, LeaseItem, SpaceItem
from streamlease.catalog.own_rows import OwnRows
from streamlease.protocol.errors import CatalogTruncated, InvalidInput, InvalidOption
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import hosts, keys
from streamlease.registry.hosts import HostInfo
from streamlease.streams.catalog.keys import CATALOG, HOSTS, SPACES
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from streamlease.streams.redis.connection import ask
from tests.conftest import MakeServer

SECONDS = 20.0


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with streamlease.connect(redis_url) as client:
        yield client


async def until_equal(catalog: Catalog, client: Client, collection: str) -> None:
    """Follow until it has what a newcomer sees."""
    async with asyncio.timeout(SECONDS):
        while True:
            async with client.catalog(collection) as newest:
                wanted = newest.items
            if catalog.items == wanted:
                return
            await anext(catalog)


async def test_spaces_are_listed_and_followed(client: Client) -> None:
    await client.create_space("a", ["a/#"], streams=2)
    async with client.catalog("spaces") as spaces:
        (one,) = spaces.items
        assert isinstance(one, SpaceItem)
        assert (one.space, one.topics, one.streams, one.generation) == ("a", ("a/#",), 2, 0)
        await client.create_space("b", ["b/#"], epochs=2)
        change = await anext(spaces)
        assert isinstance(change.item, SpaceItem)
        assert (change.item.space, change.item.epochs, change.diff) == ("b", 2, 1)
        await client.alter_space("a", streams=3)
        gone, come = await anext(spaces), await anext(spaces)
        assert (gone.item, gone.diff, gone.at) == (one, -1, None)
        assert isinstance(come.item, SpaceItem)
        assert (come.item.streams, come.item.generation, come.diff) == (3, 1, 1)
        await client.spaces.delete("b")
        await until_equal(spaces, client, "spaces")


async def test_hosts_are_followed_until_they_leave_or_are_silent(client: Client) -> None:
    async with client.catalog("hosts") as found:
        await hosts.beat(client.redis, HostInfo(host="h1", name="n", pid=7))
        assert [*await anext(found)][:2] == [HostItem(host="h1", name="n", pid=7), 1]
        await hosts.beat(client.redis, HostInfo(host="h1", name="n", pid=7))
        await hosts.beat(client.redis, HostInfo(host="h2"))
        assert [*await anext(found)][:2] == [HostItem(host="h2"), 1], (
            "a beat that says nothing new is no change"
        )
        await hosts.leave(client.redis, "h1")
        assert (await anext(found)).diff == -1
        assert set(found.items) == {HostItem(host="h2")}


async def test_leaders_and_leases_follow_consumers(client: Client) -> None:
    await client.create_space("t", ["t/#"], streams=3)
    group = "$shared/g/t/#"
    async with client.catalog("leaders") as leaders, client.catalog("leases") as leases:
        assert not leaders.items
        async with client.subscribe(group, start="earliest"):
            while not any(item.host for item in leaders.items if isinstance(item, LeaderItem)):
                await anext(leaders)
            for _ in range(3):
                await anext(leases)
            held = [item for item in leases.items if isinstance(item, LeaseItem)]
            assert {item.stream for item in held} == {"t.0.0", "t.0.1", "t.0.2"}
            assert {item.subscription for item in held} == {group}
            assert len({item.borrower for item in held}) == 1
        while leases.items:
            await anext(leases)
        await client.groups.forget(SharedSubscription.parse(group))
        while leaders.items:
            await anext(leaders)


@pytest.mark.slow
async def test_a_follower_has_what_a_newcomer_sees_whatever_happens(client: Client) -> None:
    """Random acts on three kinds of facts, by several processes; followers that come at any time."""
    random_ = random.Random(7)
    owners = [OwnRows(client.redis) for _ in range(3)]
    async with (
        client.catalog("services") as services,
        client.catalog("spaces") as spaces,
        client.catalog("executors") as executors,
    ):
        followers = {"services": services, "spaces": spaces, "executors": executors}
        for number in range(60):
            owner, key = random_.choice(owners), str(random_.randrange(5))
            match random_.randrange(6):
                case 0:
                    owner.remove("services", key)
                case 1 | 2:
                    row = {"service": key, "server": f"{owner.process}/{number}"}
                    owner.put("services", key, row)
                case 3:
                    owner.put("executors", key, {"executor": key, "slots": number})
                case 4:
                    await owner.close()
                case 5:
                    await client.create_space(f"s{number}", [f"s{number}/#"])
            if number % 13 == 0:
                await owner.settled()
        for owner in owners:
            owner.put("services", "last", {"service": "last", "server": owner.process})
            await owner.settled()
        for collection, follower in followers.items():
            await until_equal(follower, client, collection)
    for owner in owners:
        await owner.close()


async def test_a_cursor_goes_on_where_it_was_told_in_another_process(client: Client) -> None:
    async with client.catalog("spaces") as spaces:
        start = spaces.at
    await client.create_space("a", ["a/#"])
    await client.create_space("b", ["b/#"])
    async with client.catalog("spaces", start=start) as spaces:
        assert not spaces.items
        found = [await anext(spaces) for _ in range(2)]
        assert [item.space for item, diff, _ in found if isinstance(item, SpaceItem) and diff == 1] == [
            "a",
            "b",
        ]
        middle = found[0].at
        assert middle is not None
    await client.spaces.delete("a")
    async with client.catalog("spaces", start=middle) as spaces:
        found = [await anext(spaces) for _ in range(2)]
        assert [(getattr(item, "space", None), diff) for item, diff, _ in found] == [("b", 1), ("a", -1)]


async def test_cursors_of_leaders_and_leases_go_on_too(client: Client) -> None:
    await client.create_space("t", ["t/#"], streams=2)
    async with (
        client.subscribe("$shared/g/t/#", start="earliest"),
        client.catalog("leases") as leases,
        client.catalog("leaders") as leaders,
    ):
        while len(leases.items) < 2:
            await anext(leases)
        while not any(getattr(item, "host", None) for item in leaders.items):
            await anext(leaders)
        start, led = leases.at, leaders.at
        former = Counter(leases.items)
    await client.groups.declare(SharedSubscription.parse("$shared/h/t/#"))
    async with (
        client.catalog("leases", start=start) as leases,
        client.catalog("leaders", start=led) as leaders,
    ):
        gone = Counter[CatalogItem]()
        for _ in range(2):
            item, diff, _ = await anext(leases)
            assert diff == -1
            gone[item] += 1
        assert gone == former
        names: set[tuple[str, int]] = set()
        while ("$shared/h/t/#", 1) not in names:
            item, diff, _ = await anext(leaders)
            assert isinstance(item, LeaderItem)
            names.add((item.subscription, diff))


async def test_who_was_left_behind_is_told_with_a_cursor_and_catches_up_without(client: Client) -> None:
    async with client.catalog("spaces") as spaces, client.catalog("spaces") as late:
        await client.create_space("a", ["a/#"])
        await anext(spaces)
        await client.create_space("b", ["b/#"])
        await client.spaces.delete("a")
        await ask(client.redis, [("XTRIM", SPACES.changes, "MAXLEN", 1)])
        await client.create_space("c", ["c/#"])
        await until_equal(spaces, client, "spaces")
        start = late.at
        await until_equal(late, client, "spaces")
    with pytest.raises(CatalogTruncated, match=r"spaces .* begin without a cursor"):
        async with client.catalog("spaces", start=start):
            pass


async def test_who_was_left_behind_and_waits_no_longer_gets_it_all_the_same(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_KEPT", 1)
    await client.create_space("a", ["a/#"])
    async with client.catalog("spaces") as other:
        start = other.at
    async with client.catalog("spaces") as other, client.catalog("spaces", start=start) as late:
        for name in ("b", "c", "d"):
            await client.create_space(name, [f"{name}/#"])
            await anext(other)
        begin, begun = feed.CatalogFeed.begin, asyncio.Event()

        async def held_up(*args: Any) -> feed.Beginning:
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            return await begin(*args)

        monkeypatch.setattr(feed.CatalogFeed, "begin", held_up)
        waiting = asyncio.create_task(anext(late))
        await begun.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(SECONDS):
            found = [(await anext(late)).item for _ in range(3)]
        assert [getattr(one, "space", None) for one in found] == ["b", "c", "d"]


async def test_changes_that_redis_lost_are_seen_by_what_differs(client: Client) -> None:
    own = OwnRows(client.redis)
    own.put("services", "a", {"service": "a", "server": "1"})
    await own.settled()
    async with client.catalog("services") as services:
        own.put("services", "b", {"service": "b", "server": "1"})
        await anext(services)
        # As after a failover: the newest change is gone, and so is its row; another one came in its place.
        (last,) = await ask(client.redis, [("XREVRANGE", CATALOG.changes, "+", "-", "COUNT", 1)])
        await ask(
            client.redis,
            [
                ("XDEL", CATALOG.changes, last[0][0]),
                ("HDEL", "sl:{catalog}:rows:services", f"{own.process}/b"),
                ("PUBLISH", CATALOG.told, ""),
            ],
        )
        item, diff, _ = await anext(services)
        assert (getattr(item, "service", None), diff) == ("b", -1)
    await own.close()


async def test_a_follower_outlives_a_restart(make_redis_server: MakeServer) -> None:
    server = make_redis_server(persistent=True)
    async with streamlease.connect(server.url) as client, client.catalog("spaces") as spaces:
        await client.create_space("a", ["a/#"])
        await anext(spaces)
        server.kill()
        following = asyncio.create_task(anext(spaces))
        server.start()
        async with streamlease.connect(server.url) as other:
            await other.create_space("b", ["b/#"])
        change = await following
        assert (getattr(change.item, "space", None), change.diff) == ("b", 1)


async def test_an_item_that_cannot_be_read_is_named_and_left_out(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be of a later version, and stops nobody who follows the others."""
    await client.create_space("a", ["a/#"])
    await ask(client.redis, [("HSET", SPACE_DEFINITIONS, "b", "{")])
    async with client.catalog("spaces") as spaces, asyncio.timeout(SECONDS):
        (one,) = spaces.items
        start = spaces.at
        await _change_a_space(client, "b", "[]")
        await client.alter_space("a", streams=2)
        assert [(await anext(spaces)).diff for _ in range(2)] == [-1, 1]
        await _change_a_space(client, "a", "now it is damaged, too")
        gone = await anext(spaces)
        grown = one.model_copy(update={"streams": 2, "generation": 1})
        assert (gone.item, gone.diff, spaces.items) == (grown, -1, {})
    assert "item 'b' of spaces cannot be read" in caplog.text
    assert "item 'a' of spaces cannot be read" in caplog.text
    async with client.catalog("spaces", start=start) as spaces:
        told = [(change.item, change.diff) for change in spaces.ready()]
        assert told == [(one, -1), (grown, 1), (grown, -1)]


async def _change_a_space(client: Client, name: str, row: str) -> None:
    (former,) = await ask(client.redis, [("HGET", SPACE_DEFINITIONS, name)])
    change = ("c", "spaces", "k", name, "o", former, "n", row, "i", "99")
    await ask(client.redis, [("HSET", SPACE_DEFINITIONS, name, row), ("XADD", SPACES.changes, "*", *change)])
    await ask(client.redis, [("PUBLISH", SPACES.told, "")])


async def test_who_meets_a_change_that_cannot_be_read_lists_anew(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await hosts.beat(client.redis, HostInfo(host="one"))
    async with client.catalog("hosts") as found, asyncio.timeout(SECONDS):
        start = found.at
        await ask(client.redis, [("XADD", HOSTS.changes, "*", "c", "hosts")])
        await hosts.beat(client.redis, HostInfo(host="two"))
        change = await anext(found)
        assert (getattr(change.item, "host", None), change.diff) == ("two", 1)
    assert re.search(
        r"the change \d+-\d+ in sl:\{hosts\}:changes is damaged: all hosts are listed", caplog.text
    )
    with pytest.raises(CatalogTruncated):
        async with client.catalog("hosts", start=start):
            pass


async def test_a_group_whose_journal_cannot_be_read_has_no_leases(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_space("a", ["a/#"], streams=2)
    whole, damaged = (SharedSubscription.parse(f"$shared/{name}/a/#") for name in ("whole", "damaged"))
    async with client.subscribe(str(whole)), client.subscribe(str(damaged)):
        async with client.catalog("leases") as leases:
            async with asyncio.timeout(SECONDS):
                while len(leases.items) < 4:
                    await anext(leases)
            start = leases.at
        await ask(client.redis, [("XADD", keys.journal(damaged.id), "*", "x", "y")])
        async with client.catalog("leases") as leases:
            assert {getattr(item, "subscription", "") for item in leases.items} == {str(whole)}
            assert f"the leases of {damaged} are left out" in caplog.text
        async with client.catalog("leases", start=start) as leases:
            told = [(getattr(change.item, "subscription", ""), change.diff) for change in leases.ready()]
            assert told == [(str(damaged), -1)] * 2


@pytest.mark.parametrize("collection", ["", "nothing", "Spaces", "\udcff"])
async def test_a_collection_that_is_none_is_refused(client: Client, collection: str) -> None:
    with pytest.raises(InvalidInput, match="the catalog has no collection"):
        client.catalog(collection)


async def test_a_cursor_that_is_none_is_refused(client: Client) -> None:
    async with client.catalog("hosts") as hosts_:
        other = hosts_.at
    for cursor in ("", "x", "eJw", other, "é", "A" * 5000):
        for collection in ("spaces", "leaders", "leases"):
            with pytest.raises(InvalidInput, match="the cursor is none of"):
                async with client.catalog(collection, start=cursor):
                    pass


async def test_it_is_open_only_inside_the_block(client: Client) -> None:
    catalog = client.catalog("spaces")
    with pytest.raises(InvalidOption, match="async with"):
        await anext(catalog)


def test_items_are_values() -> None:
    one = LeaseItem(subscription="$shared/g/a", stream="a.0.0", borrower="b", lease_epoch=1)
    again: CatalogItem = LeaseItem.model_validate({**one.model_dump(), "later": 1})
    assert {one, again} == {one}
