"""What the scripts of services do in each state, and that they write all of it or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import pytest

from streamlease.services.keys import ALIVE, NEWS, SERVICES, TYPES
from streamlease.streams.catalog.keys import CATALOG, OWNED, PROCESSES
from streamlease.streams.redis.connection import Argument, AsyncRedis, connect
from streamlease.streams.redis.scripts import load_script

MINUTE = 60_000
OVER = -60_000
KEYS = [SERVICES, ALIVE, TYPES, CATALOG.changes, PROCESSES, OWNED]


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


def row(digest: str, more: str = "") -> str:
    """What stands in the catalog, as far as the script reads it."""
    return f'{{"digest":"{digest}"{more}}}'


class Serves(NamedTuple):
    """One service of a hold."""

    name: str
    digest: str = "d"
    types: str = "T"
    agreed: str = ",,"
    more: str = ""

    def words(self) -> list[str]:
        return [self.name, row(self.digest, self.more), self.digest, self.types, self.agreed]


async def act(redis: AsyncRedis, *args: Argument) -> list[Any]:
    """The reply without the moment, which is checked."""
    said, at, *rest = await load_script("streamlease.services", "services").run(
        redis, KEYS, [NEWS, CATALOG.told, *args]
    )
    seconds, _ = await redis.time()
    assert abs(at - seconds * 1000) <= 2000
    return [said, *rest]


async def hold(
    redis: AsyncRedis, address: str, *served: Serves | str, ms: int = MINUTE, renew: int = 0
) -> list[Any]:
    words = [word for one in served for word in (Serves(one) if isinstance(one, str) else one).words()]
    return await act(redis, "hold", address, ms, renew, *words)


class Kept(NamedTuple):
    """All that the script writes, but for changes."""

    rows: dict[bytes, bytes]
    alive: list[bytes]
    types: dict[bytes, bytes]
    processes: list[bytes]
    owned: list[bytes]


def whole(served: dict[str, Sequence[str]], types: dict[bytes, bytes] | None = None) -> Kept:
    """What is kept if these addresses serve these names, with the types ``d`` unless others are named."""
    fields = [f"{address}/{name}".encode() for address, names in served.items() for name in names]
    addresses = sorted(address.encode() for address in served)
    owned = [f"{address}/services/{name}".encode() for address, names in served.items() for name in names]
    named = {b"d": b"T"} if types is None else types
    return Kept(dict.fromkeys(fields, row("d").encode()), addresses, named, addresses, sorted(owned))


NOTHING = whole({}, {})


async def kept(redis: AsyncRedis) -> Kept:
    return Kept(
        await redis.hgetall(SERVICES),
        sorted(await redis.zrange(ALIVE, 0, -1)),
        await redis.hgetall(TYPES),
        sorted(await redis.zrange(PROCESSES, 0, -1)),
        await redis.zrange(OWNED, 0, -1),
    )


async def told(redis: AsyncRedis) -> list[tuple[str, str, str]]:
    """The changes of the catalog since the last look: whose row, and it before and after."""
    found = []
    for _, fields in await redis.xrange(CATALOG.changes):
        assert fields[b"c"] == b"services"
        found.append((fields[b"k"].decode(), fields[b"o"].decode(), fields[b"n"].decode()))
    await redis.delete(CATALOG.changes)
    return found


async def test_what_is_served_is_held_changed_and_left(redis: AsyncRedis) -> None:
    assert await hold(redis, "a.1", "x", "y") == [b"held"]
    assert await kept(redis) == whole({"a.1": ["x", "y"]})
    till = {await redis.zscore(key, "a.1") for key in (ALIVE, PROCESSES)}
    seconds, _ = await redis.time()
    assert len(till) == 1 and abs(till.pop() - seconds * 1000 - MINUTE) <= 2000
    assert await told(redis) == [("a.1/x", "", row("d")), ("a.1/y", "", row("d"))]

    assert await hold(redis, "a.10", "x") == [b"held"]
    assert await hold(redis, "a.1", "y", Serves("z", more=',"b":2')) == [b"held"]
    assert await told(redis) == [
        ("a.10/x", "", row("d")),
        ("a.1/z", "", row("d", ',"b":2')),
        ("a.1/x", row("d"), ""),
    ]
    assert await hold(redis, "a.1", "y", "z") == [b"held"]
    assert await told(redis) == [("a.1/z", row("d", ',"b":2'), row("d"))]
    assert await kept(redis) == whole({"a.1": ["y", "z"], "a.10": ["x"]})

    assert await act(redis, "leave", "a.1") == [b"left"]
    assert await kept(redis) == whole({"a.10": ["x"]})
    assert sorted(await told(redis)) == [("a.1/y", row("d"), ""), ("a.1/z", row("d"), "")]
    assert await act(redis, "leave", "a.1") == [b"left"]
    assert await act(redis, "leave", "a.10") == [b"left"]
    assert await kept(redis) == NOTHING


async def test_a_lease_is_renewed_and_nothing_is_told(redis: AsyncRedis) -> None:
    await hold(redis, "a.1", "x", ms=1000)
    await told(redis)
    before = await kept(redis)
    assert await hold(redis, "a.1", Serves("x", types=""), renew=1) == [b"held"]
    assert (await kept(redis), await told(redis)) == (before, [])
    seconds, _ = await redis.time()
    for key in (ALIVE, PROCESSES):
        till = await redis.zscore(key, "a.1")
        assert till is not None and abs(till - seconds * 1000 - MINUTE) <= 2000


async def test_a_lease_that_is_gone_is_not_renewed(redis: AsyncRedis) -> None:
    assert await hold(redis, "a.1", "x", renew=1) == [b"gone"]
    assert await kept(redis) == NOTHING
    await hold(redis, "a.1", "x", ms=OVER)
    await told(redis)
    assert await hold(redis, "a.1", "x", renew=1) == [b"gone"]
    assert (await kept(redis), await told(redis)) == (NOTHING, [("a.1/x", row("d"), "")])


@pytest.mark.parametrize("words", [("look",), ("look", "x"), ("leave", "a.1"), ("hold", "a.1", MINUTE, 1)])
async def test_every_act_forgets_whose_lease_has_passed(redis: AsyncRedis, words: Sequence[Argument]) -> None:
    await hold(redis, "past.1", "x", Serves("p", "e", "E"), ms=OVER)
    await hold(redis, "past.10", "x")
    await hold(redis, "future.1", "x")
    seconds, _ = await redis.time()
    await redis.zadd(ALIVE, {"future.1": seconds * 1000 + 610_000})  # before the clock went back
    await act(redis, *words)
    assert await kept(redis) == whole({"past.10": ["x"]})


async def test_the_longest_lease_is_not_of_a_clock_that_went_back(redis: AsyncRedis) -> None:
    await hold(redis, "a.1", "x")
    seconds, _ = await redis.time()
    await redis.zadd(ALIVE, {"a.1": seconds * 1000 + 595_000})
    await act(redis, "look")
    assert await kept(redis) == whole({"a.1": ["x"]})


async def test_what_is_served_is_seen(redis: AsyncRedis) -> None:
    assert await act(redis, "look") == [b"seen", [], []]
    await hold(redis, "a.1", "x", "x/y")
    await hold(redis, "b.1", "y")
    await redis.hset(SERVICES, "of a stranger", "?")

    async def seen(*names: str) -> tuple[list[bytes], dict[bytes, bytes]]:
        said, alive, rows = await act(redis, "look", *names)
        assert said == b"seen"
        return sorted(alive[::2]), dict(zip(rows[::2], rows[1::2], strict=True))

    one = row("d").encode()
    all_of_them = {b"a.1/x": one, b"a.1/x/y": one, b"b.1/y": one}
    assert await seen() == ([b"a.1", b"b.1"], all_of_them | {b"of a stranger": b"?"})
    assert await seen("x") == ([b"a.1", b"b.1"], {b"a.1/x": one})
    assert await seen("y", "x/y", "z") == ([b"a.1", b"b.1"], {b"a.1/x/y": one, b"b.1/y": one})


async def test_types_must_be_told_once(redis: AsyncRedis) -> None:
    untold = Serves("x", "d", "")
    assert await hold(redis, "a.1", Serves("y", "e", "E"), untold) == [b"types", b"d"]
    assert await kept(redis) == NOTHING, "nothing was done"
    assert await hold(redis, "a.1", Serves("x", "d", "T")) == [b"held"]
    assert await hold(redis, "b.1", untold) == [b"held"]
    assert await kept(redis) == whole({"a.1": ["x"], "b.1": ["x"]})
    await redis.hdel(TYPES, "d")
    assert await hold(redis, "b.1", untold, renew=1) == [b"types", b"d"], "they are lost"
    assert await hold(redis, "b.1", Serves("x"), renew=1) == [b"held"]
    assert await kept(redis) == whole({"a.1": ["x"], "b.1": ["x"]})


async def test_types_leave_with_the_last_who_serves_them(redis: AsyncRedis) -> None:
    both = {b"d": b"T", b"e": b"E"}
    await hold(redis, "a.1", "x", Serves("y", "e", "E"))
    await hold(redis, "b.1", "x")
    assert await redis.hgetall(TYPES) == both
    await act(redis, "leave", "b.1")
    assert await redis.hgetall(TYPES) == both
    await hold(redis, "b.1", "x")
    await redis.zadd(ALIVE, {"a.1": 1})
    await act(redis, "look")
    assert await redis.hgetall(TYPES) == {b"d": b"T"}


async def test_others_who_serve_a_name_agree(redis: AsyncRedis) -> None:
    await hold(redis, "a.1", "x")
    before = await kept(redis)
    other = Serves("x", "e", "E")
    assert await hold(redis, "b.1", Serves("z"), other) == [b"other", b"x", b"d", b"T"]
    assert await kept(redis) == before, "nothing was done"
    assert await hold(redis, "b.1", other._replace(agreed=",c,dd,")) == [b"other", b"x", b"d", b"T"]
    assert await hold(redis, "b.1", other._replace(agreed=",c,d,")) == [b"held"]
    assert await hold(redis, "a.1", "x", renew=1) == [b"held"], "it has been said that they do"
    assert await hold(redis, "c.1", Serves("y", "e", "E")) == [b"held"], "another name"
    await redis.hdel(TYPES, "d")
    assert await hold(redis, "c.1", Serves("x", "e", "E")) == [b"other", b"x", b"d", b""], "nobody knows them"


async def test_who_changes_its_own_types_agrees_with_itself(redis: AsyncRedis) -> None:
    await hold(redis, "a.1", "x")
    assert await hold(redis, "a.1", Serves("x", "e", "E")) == [b"held"]
    assert await redis.hgetall(SERVICES) == {b"a.1/x": row("e").encode()}


async def test_names_of_what_changed_are_news(redis: AsyncRedis) -> None:
    async with redis.pubsub() as listening:

        async def heard() -> set[str]:
            """The names that were published up to now."""
            await redis.publish(NEWS, "end of news")
            names = set()
            while True:
                pushed = await listening.get_message(timeout=20)
                assert pushed is not None
                if pushed["type"] != "message":
                    continue
                if pushed["data"] == b"end of news":
                    return names
                names.add(pushed["data"].decode())

        await listening.subscribe(NEWS)
        await hold(redis, "a.1", "x", "y", "z/z")
        assert await heard() == {"x", "y", "z/z"}
        await hold(redis, "a.1", "x", "y", "z/z", renew=1)
        assert await heard() == set()
        await hold(redis, "a.1", "x", Serves("y", more=',"b":2'))
        assert await heard() == {"y", "z/z"}
        await hold(redis, "b.1", "x", ms=OVER)
        assert await heard() == {"x"}
        await act(redis, "look", "y")
        assert await heard() == {"x"}, "its lease has passed"
        await hold(redis, "b.1", "x", ms=OVER)
        await heard()
        assert await hold(redis, "c.1", Serves("y", "unheard", "")) == [b"types", b"unheard"]
        assert await heard() == {"x"}
        await hold(redis, "b.1", "x", ms=OVER)
        await heard()
        assert (await hold(redis, "c.1", Serves("y", "e", "E")))[0] == b"other"
        assert await heard() == {"x"}
        await hold(redis, "b.1", "x", ms=OVER)
        await heard()
        assert await hold(redis, "c.1", renew=1) == [b"gone"]
        assert await heard() == {"x"}
        await act(redis, "leave", "a.1")
        assert await heard() == {"x", "y"}


async def test_of_many_who_serve_only_the_own_rows_are_looked_at(redis: AsyncRedis) -> None:
    """A renewal costs the same however many serve, and so does each one that is forgotten."""
    for number in range(20):
        await hold(redis, f"s{number}.1", "x")
    await redis.config_resetstat()
    await hold(redis, "s7.1", Serves("x", types=""), renew=1)
    used = await redis.info("commandstats")
    assert "cmdstat_hgetall" not in used
    await redis.zadd(ALIVE, {f"s{number}.1": 1 for number in range(19)})
    await redis.config_resetstat()
    await act(redis, "look", "y")
    used = await redis.info("commandstats")
    assert used["cmdstat_hgetall"]["calls"] == 2, "for the types that leave, and for the answer"
    assert await kept(redis) == whole({"s19.1": ["x"]})


@pytest.mark.parametrize(
    ("read", "left"),
    [("0-0", [b"1-1", b"1-2", b"2-0"]), ("1-1", [b"1-2", b"2-0"]), ("1-3", [b"2-0"]), ("2-0", [])],
)
async def test_what_was_not_read_is_taken_with_the_end_of_the_stream(
    redis: AsyncRedis, read: str, left: list[bytes]
) -> None:
    unbind = load_script("streamlease.services", "unbind")
    for id in ("1-1", "1-2", "2-0"):
        await redis.xadd("sl:{v:e}:requests:1", {"f": id}, id)
    found = await unbind.run(redis, ["sl:{v:e}:requests:1"], [read])
    assert found == [[id, [b"f", id]] for id in left]
    assert await unbind.run(redis, ["sl:{v:e}:requests:1"], [read]) == []
