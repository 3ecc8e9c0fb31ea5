"""Followers of one client share what is read; a lost tail, a slow follower and a cursor are seen by each."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest

import streamlease
from streamlease.agent.client import Client
from streamlease.catalog import feed as feed_module
from streamlease.catalog.followed import Catalog
from streamlease.catalog.items import CatalogItem, HostItem
from streamlease.catalog.own_rows import OwnRows
from streamlease.protocol.errors import CatalogTruncated, InvalidInput, InvalidOption, StoreRefused
from streamlease.registry import hosts
from streamlease.registry.hosts import HostInfo
from streamlease.registry.keys import HOSTS_ALIVE, HOSTS_INFO
from streamlease.streams.catalog.keys import HOSTS, PROCESSES
from streamlease.streams.redis.connection import AsyncRedis, ask
from tests.catalog.waiting import SECONDS, eventually
from tests.conftest import MakeServer

FOLLOWERS = 20


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with streamlease.connect(redis_url) as client:
        yield client


async def beat(redis: AsyncRedis, *names: str, leaders: int = 0) -> None:
    for name in names:
        await hosts.beat(redis, HostInfo(host=name, leaders=leaders))


async def reads(redis: AsyncRedis) -> int:
    """How often Redis was asked for changes."""
    (stats,) = await ask(redis, [("INFO", "commandstats")])
    lines = dict(line.split(":", 1) for line in stats.decode().splitlines() if ":" in line)
    calls = lines.get("cmdstat_xrange", "calls=0,")
    return int(calls.partition("calls=")[2].partition(",")[0])


async def follow_until(catalog: Catalog, wanted: set[CatalogItem]) -> None:
    async with asyncio.timeout(SECONDS):
        while set(catalog.items) != wanted:
            await anext(catalog)


async def test_many_followers_cost_as_many_reads_as_one(make_redis_server: MakeServer) -> None:
    server = make_redis_server()

    async def counted(count: int) -> int:
        async with streamlease.connect(server.url) as client:
            followed = [client.catalog("hosts") for _ in range(count)]
            for one in followed:
                await one.__aenter__()
            # The feed stands with its first news.
            await beat(client.redis, f"first-{count}")
            for one in followed:
                await anext(one)
            before = await reads(client.redis)
            wanted = {*followed[0].items, *(HostItem(host=f"h{n}-{count}") for n in range(10))}
            for number in range(10):
                await beat(client.redis, f"h{number}-{count}")
                await asyncio.gather(*(anext(one) for one in followed))
            read = await reads(client.redis) - before
            assert all(set(one.items) == wanted for one in followed)
            for one in followed:
                await one.__aexit__(None, None, None)
            return read

    assert await counted(FOLLOWERS) <= 2 * await counted(1) + 5, (
        "a read for each change, not for each follower"
    )


@pytest.mark.slow
async def test_a_slow_follower_is_told_what_differs_and_keeps_nothing_waiting(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MOST_KEPT", 4)
    await beat(client.redis, "kept", "gone")
    async with client.catalog("hosts") as quick, client.catalog("hosts") as slow:
        start = slow.at
        for number in range(1, 9):
            await beat(client.redis, "kept", leaders=number)
            await follow_until(quick, {HostItem(host="gone"), HostItem(host="kept", leaders=number)})
        await hosts.leave(client.redis, "gone")
        await follow_until(quick, {HostItem(host="kept", leaders=8)})
        told = [await anext(slow) for _ in range(3)]
        assert Counter((one.item, one.diff) for one in told) == {
            (HostItem(host="kept"), -1): 1,
            (HostItem(host="gone"), -1): 1,
            (HostItem(host="kept", leaders=8), 1): 1,
        }
        assert slow.items == quick.items
        assert [one.at is None for one in told] == [True, True, False]
        async with client.catalog("hosts", start=start) as late:
            assert len([await anext(late) for _ in range(17)]) == 17
            for number in range(9, 17):
                await beat(client.redis, "kept", leaders=number)
                await follow_until(quick, {HostItem(host="kept", leaders=number)})
            changes = [await anext(late) for _ in range(16)]
            assert changes[-1].item == HostItem(host="kept", leaders=16)
            assert [one.diff for one in changes] == [-1, 1] * 8


async def test_a_cursor_joins_those_who_follow_already(client: Client) -> None:
    await beat(client.redis, "a")
    async with client.catalog("hosts") as first:
        start = first.at
        await beat(client.redis, "b")
        await follow_until(first, {HostItem(host="a"), HostItem(host="b")})
        async with client.catalog("hosts", start=start) as joined:
            await beat(client.redis, "c")
            found = [await anext(joined) for _ in range(2)]
            assert [one.item for one in found] == [HostItem(host="b"), HostItem(host="c")]
            await follow_until(first, {HostItem(host=name) for name in "abc"})
            assert found[-1].at == joined.at == first.at


async def test_what_is_ready_comes_without_waiting(client: Client) -> None:
    async with client.catalog("hosts") as catalog:
        assert catalog.ready() == []
        await beat(client.redis, "a")
        await beat(client.redis, "a", leaders=1)
        await beat(client.redis, "a", leaders=2)
        await anext(catalog)

        async def all_there() -> bool:
            catalog.ready()
            if set(catalog.items) != {HostItem(host="a", leaders=2)}:
                await anext(catalog)
            return set(catalog.items) == {HostItem(host="a", leaders=2)}

        await eventually(all_there)


async def test_a_defect_is_told_to_all_and_a_newcomer_begins_anew(client: Client) -> None:
    async with client.catalog("hosts") as one, client.catalog("hosts") as two:
        await beat(client.redis, "a")
        await anext(one)
        await anext(two)
        await ask(client.redis, [("DEL", HOSTS.changes), ("SET", HOSTS.changes, "")])
        await ask(client.redis, [("PUBLISH", HOSTS.told, "")])
        for follower in (one, two):
            with pytest.raises(StoreRefused, match=f"another type.*{re.escape(HOSTS.changes)}"):
                await anext(follower)
        await ask(client.redis, [("DEL", HOSTS.changes)])
        async with client.catalog("hosts") as three:
            await beat(client.redis, "b")
            assert (await anext(three)).item == HostItem(host="b")


async def test_the_end_of_the_client_ends_those_who_follow(redis_url: str) -> None:
    async with streamlease.connect(redis_url) as client:
        catalog = client.catalog("hosts")
        await catalog.__aenter__()
        waiting = asyncio.create_task(anext(catalog))  # type: ignore[arg-type]
        await asyncio.sleep(0)
    with pytest.raises(InvalidOption, match="the client is closed"):
        await waiting
    await catalog.__aexit__(None, None, None)


async def test_a_made_up_cursor_is_refused(client: Client) -> None:
    from streamlease.catalog.catalog_cursors import CatalogCursor

    for collection, point in (("hosts", "x"), ("leases", {"x": "0-0"}), ("leases", {"$shared/g/a": "x"})):
        with pytest.raises(InvalidInput, match=f"the cursor is none of {collection}"):
            async with client.catalog(collection, start=CatalogCursor(collection, point).text):
                pass


async def test_a_tail_that_a_failover_lost_is_told_as_what_differs(make_redis_server: MakeServer) -> None:
    """The server comes back as of a moment before: as a replica does that had not got the last writes."""
    server = make_redis_server()
    async with streamlease.connect(server.url) as client, client.catalog("hosts") as catalog:
        await beat(client.redis, "kept", "moved")
        (_,) = await ask(client.redis, [("SAVE",)])
        await beat(client.redis, "lost")
        await beat(client.redis, "moved", leaders=3)
        await follow_until(
            catalog, {HostItem(host="kept"), HostItem(host="lost"), HostItem(host="moved", leaders=3)}
        )
        start, first = catalog.at, client.catalog("hosts")
        server.kill()
        following = asyncio.create_task(
            follow_until(catalog, {HostItem(host=name) for name in ("kept", "moved", "new")})
        )
        server.start()
        async with streamlease.connect(server.url) as other:
            await beat(other.redis, "new")
            with pytest.raises(CatalogTruncated, match="begin without a cursor"):
                async with other.catalog("hosts", start=start):
                    pass
        await following
        async with first:
            assert first.items == catalog.items


async def test_rows_on_a_lease_that_is_over_go_with_nobody_but_a_follower(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 0.05)
    dead = OwnRows(client.redis, beat_seconds=3600)
    dead.put("services", "a", {"service": "a", "server": "1"})
    await dead.settled()
    async with client.catalog("services") as services:
        assert len(services.items) == 1
        await ask(client.redis, [("ZADD", PROCESSES, 1, dead.process)])
        assert (await anext(services)).diff == -1
    await dead.close()


async def test_who_comes_back_before_he_was_removed_is_seen_by_whoever_listed_meanwhile(
    client: Client,
) -> None:
    own = OwnRows(client.redis, beat_seconds=3600)
    own.put("services", "a", {"service": "a", "server": "1"})
    await own.settled()
    await ask(client.redis, [("ZADD", PROCESSES, 1, own.process)])
    # An observer may not remove it: it only does not show it.
    observer = client.catalog("services")
    source = client._feeds.of("services")._source  # type: ignore[attr-defined]
    source._sweep = None  # type: ignore[attr-defined]
    async with observer:
        assert not observer.items
        own.put("services", "b", {"service": "b", "server": "1"})
        for _ in range(2):
            await anext(observer)
        assert {getattr(one, "service", None) for one in observer.items} == {"a", "b"}
    await own.close()


async def test_a_host_that_is_silent_for_too_long_leaves_no_row(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 0.05)
    await beat(client.redis, "a", "b")
    async with client.catalog("hosts") as followed:
        for past, silent in ((True, "a"), (False, "b")):
            # By the clock of Redis, or from before it went back.
            await ask(client.redis, [("ZADD", HOSTS_ALIVE, 1 if past else 10**15, silent)])
            async with client.catalog("hosts") as listed:
                assert HostItem(host=silent) not in listed.items
            change = await anext(followed)
            assert (change.item, change.diff) == (HostItem(host=silent), -1)
        assert await ask(client.redis, [("EXISTS", HOSTS_ALIVE, HOSTS_INFO)]) == [0], "nothing is left over"


SHOWS = """
import asyncio, sys
from streamlease.catalog.own_rows import OwnRows
from streamlease.streams.redis.connection import connect

async def main():
    redis = connect(sys.argv[1])
    own = OwnRows(redis, lease_seconds=0.6, beat_seconds=0.1)
    own.put("services", "a", {"service": "a", "server": "1"})
    await own.settled()
    print("there", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_process_that_is_stopped_comes_back_and_a_killed_one_does_not(
    client: Client, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 0.05)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SHOWS, redis_url, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"there\n"
        async with client.catalog("services") as services, asyncio.timeout(SECONDS):
            (one,) = services.items
            process.send_signal(signal.SIGSTOP)
            assert (await anext(services)).diff == -1
            process.send_signal(signal.SIGCONT)
            back = await anext(services)
            assert (back.item, back.diff) == (one, 1), "it is itself again"
            process.kill()
            assert (await anext(services)).diff == -1
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_ten_thousand_items_are_listed_and_followed_over_a_restart(
    make_redis_server: MakeServer,
) -> None:
    server = make_redis_server(persistent=True, settings={"appendfsync": "everysec"})
    count = 10_000
    async with streamlease.connect(server.url) as client:
        own = OwnRows(client.redis, beat_seconds=3600)
        async with client.catalog("services") as early, asyncio.timeout(60):
            for number in range(count):
                own.put("services", str(number), {"service": f"s{number}", "server": "1"})
            while len(early.items) < count:
                await anext(early)
            async with client.catalog("services") as late:
                assert late.items == early.items
                server.restart()
                async with streamlease.connect(server.url) as other:
                    more = OwnRows(other.redis, beat_seconds=3600)
                    more.put("services", "new", {"service": "new", "server": "2"})
                    await more.settled()
                    for follower in (early, late):
                        change = await anext(follower)
                        assert (getattr(change.item, "service", None), change.diff) == ("new", 1)
                    async with other.catalog("services", start=late.at) as again:
                        await more.close()
                        assert (await anext(again)).diff == -1
        await own.close()
