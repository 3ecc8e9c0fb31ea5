"""What the script by which a process shows itself in the catalog does in each state."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import pytest

from streamlease.protocol.errors import StoreRefused
from streamlease.streams.catalog.keys import (
    CATALOG,
    MADE,
    OWNED,
    PROCESSES,
    REFUSED,
    TOKENS,
    WRITTEN,
    rows,
)
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.redis.scripts import load_script

MINUTE = 60_000
KEYS = [PROCESSES, OWNED, CATALOG.changes, *map(rows, MADE), TOKENS, REFUSED, WRITTEN]
DONE, OVER, REFUSED_TOKEN = 1, 0, 2

Change = tuple[str, str, str]


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


async def write(
    redis: AsyncRedis,
    process: str,
    *changes: Change,
    ms: int | str = MINUTE,
    before: str = "",
    mark: str = "m1",
    query: str = "",
    token: str = "",
) -> int:
    words = [word for change in changes for word in change]
    args = [process, ms, CATALOG.told, " ".join(MADE), before, query, token, f"who {process}", mark, *words]
    said: int = await load_script("streamlease.catalog", "process").run(redis, KEYS, args)
    return said


class Kept(NamedTuple):
    """All that the script writes, but for changes and refusals."""

    rows: set[tuple[str, str, str]]
    """Collection, field, row."""
    processes: set[str]
    owned: set[str]
    marks: dict[str, str]


async def kept(redis: AsyncRedis) -> Kept:
    found = set()
    for name in MADE:
        found |= {(name, f.decode(), row.decode()) for f, row in (await redis.hgetall(rows(name))).items()}
    return Kept(
        found,
        {one.decode() for one in await redis.zrange(PROCESSES, 0, -1)},
        {one.decode() for one in await redis.zrange(OWNED, 0, -1)},
        {one.decode(): mark.decode() for one, mark in (await redis.hgetall(WRITTEN)).items()},
    )


def whole(*made: Change, marks: dict[str, str] | None = None) -> Kept:
    """What is kept if these are made: collection, PROCESS/KEY, row; each process has written ``m1``."""
    fields = [field.partition("/") for _, field, _ in made]
    processes = {process for process, _, _ in fields} | set(marks or {})
    return Kept(
        set(made),
        processes,
        {f"{process}/{made[at][0]}/{key}" for at, (process, _, key) in enumerate(fields)},
        dict.fromkeys(processes, "m1") | (marks or {}),
    )


async def told(redis: AsyncRedis) -> list[tuple[str, ...]]:
    """The changes of the catalog since the last look: collection, key, the row before and after."""
    found = [
        tuple(fields[name].decode() for name in (b"c", b"k", b"o", b"n"))
        for _, fields in await redis.xrange(CATALOG.changes)
    ]
    await redis.delete(CATALOG.changes)
    return found


async def test_a_process_shows_changes_and_leaves(redis: AsyncRedis) -> None:
    x, y, s = ("publications", "x", "1"), ("publications", "y/z", "2"), ("subscriptions", "x", "3")
    assert await write(redis, "p", x, y, s) == DONE
    shown = (("publications", "p/x", "1"), ("publications", "p/y/z", "2"), ("subscriptions", "p/x", "3"))
    assert await kept(redis) == whole(*shown)
    assert await told(redis) == [(*at, "", row) for *at, row in shown]
    till = await redis.zscore(PROCESSES, "p")
    seconds, _ = await redis.time()
    assert till is not None and abs(till - seconds * 1000 - MINUTE) <= 2000

    assert await write(redis, "pp", x) == DONE
    await told(redis)
    gone = [("subscriptions", "x", ""), ("subscriptions", "?", "")]
    assert await write(redis, "p", ("publications", "x", "7"), *gone, before="m1", mark="m2") == DONE
    pp = ("publications", "pp/x", "1")
    left = (("publications", "p/x", "7"), ("publications", "p/y/z", "2"))
    assert await kept(redis) == whole(*left, pp, marks={"p": "m2"})
    assert await told(redis) == [("publications", "p/x", "1", "7"), ("subscriptions", "p/x", "3", "")]

    assert await write(redis, "p", ms=0, before="m2") == DONE
    assert await kept(redis) == whole(pp)
    assert await told(redis) == [("publications", "p/x", "7", ""), ("publications", "p/y/z", "2", "")]
    assert await write(redis, "p", ms=0, before="m2") == DONE
    assert await kept(redis) == whole(pp)


async def test_a_lease_is_renewed_and_nothing_is_told(redis: AsyncRedis) -> None:
    await write(redis, "p", ("services", "a", "1"), ms=1000)
    await told(redis)
    before = await kept(redis)
    assert await write(redis, "p", ("services", "a", "1"), before="m1") == DONE
    assert (await kept(redis), await told(redis)) == (before, [])
    till = await redis.zscore(PROCESSES, "p")
    seconds, _ = await redis.time()
    assert till is not None and abs(till - seconds * 1000 - MINUTE) <= 2000


@pytest.mark.parametrize("lost", ["mark", "other mark", "lease", "lease over"])
async def test_a_process_whose_writes_may_be_lost_is_told_so(redis: AsyncRedis, lost: str) -> None:
    await write(redis, "p", ("services", "a", "1"))
    await told(redis)
    match lost:
        case "mark":
            await redis.hdel(WRITTEN, "p")
        case "other mark":
            await redis.hset(WRITTEN, "p", "m0")
        case "lease":
            await redis.zrem(PROCESSES, "p")
        case "lease over":
            await redis.zadd(PROCESSES, {"p": 1})
    assert await write(redis, "p", ("services", "b", "2"), before="m1", mark="m2") == OVER
    found = await kept(redis)
    assert ("services", "p/b", "2") not in found.rows
    if lost == "lease over":
        # A listing does not show what stands on a lease that is over: so it leaves and comes anew.
        assert (found, await told(redis)) == (whole(), [("services", "p/a", "1", "")])
    assert await write(redis, "p", ("services", "b", "2"), mark="m2") == DONE
    assert await kept(redis) == whole(("services", "p/b", "2"), marks={"p": "m2"})


async def test_who_begins_anew_has_only_what_it_names(redis: AsyncRedis) -> None:
    await write(redis, "p", ("services", "a", "1"), ("borrowers", "a", "1"))
    await told(redis)
    assert await write(redis, "p", ("services", "a", "2")) == DONE
    assert await kept(redis) == whole(("services", "p/a", "2"))
    assert await told(redis) == [
        ("borrowers", "p/a", "1", ""),
        ("services", "p/a", "1", ""),
        ("services", "p/a", "", "2"),
    ]


async def test_processes_whose_leases_are_over_are_forgotten_by_others(redis: AsyncRedis) -> None:
    for number in range(12):
        await write(redis, f"old{number:02}", ("services", "a", "1"))
    await redis.zadd(PROCESSES, {f"old{number:02}": number + 1 for number in range(12)})
    await told(redis)
    await write(redis, "lives", ("services", "a", "1"))
    assert (await kept(redis)).processes == {"lives", "old10", "old11"}, "ten at a time"
    assert len(await told(redis)) == 11
    await write(redis, "lives", before="m1")
    assert await kept(redis) == whole(("services", "lives/a", "1"))
    assert await told(redis) == [("services", f"old{number}/a", "1", "") for number in (10, 11)]


async def test_of_a_process_with_very_many_rows_some_are_forgotten_at_once(redis: AsyncRedis) -> None:
    await write(redis, "p", *(("services", f"{number:04}", "1") for number in range(1500)))
    await redis.zadd(PROCESSES, {"p": 1})
    await write(redis, "q", ("services", "a", "1"))
    found = await kept(redis)
    assert (len(found.rows), found.processes, found.marks) == (501, {"p", "q"}, {"p": "m1", "q": "m1"})
    await write(redis, "q", before="m1")
    assert await kept(redis) == whole(("services", "q/a", "1"))


async def test_of_exactly_so_many_rows_the_process_leaves_with_the_next_turn(redis: AsyncRedis) -> None:
    await write(redis, "p", *(("services", f"{number:04}", "1") for number in range(1000)))
    await redis.zadd(PROCESSES, {"p": 1})
    await write(redis, "q")
    found = await kept(redis)
    assert (found.rows, found.processes) == (set(), {"p", "q"})
    await write(redis, "q", before="m1")
    assert await kept(redis) == whole(marks={"q": "m1"})


async def test_what_is_owned_in_a_collection_that_is_not_known_is_forgotten(redis: AsyncRedis) -> None:
    """A later version has made it."""
    await write(redis, "p", ("services", "a", "1"))
    await redis.zadd(OWNED, {"p/later/a": 0})
    assert await write(redis, "p", ms=0) == DONE
    assert await kept(redis) == whole()


async def test_only_who_has_the_token_of_a_query_is_of_it(redis: AsyncRedis) -> None:
    await redis.hset(TOKENS, "q", hashlib.sha1(b"token").hexdigest())
    await write(redis, "p", ("services", "a", "1"))
    before = await kept(redis)

    async def refused() -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await redis.xrange(REFUSED)]

    change = ("services", "b", "2")
    assert await write(redis, "p", change, before="m1", query="q", token="wrong") == REFUSED_TOKEN
    assert await write(redis, "p", change, before="m1", query="other", token="token") == REFUSED_TOKEN
    assert await kept(redis) == before
    assert await refused() == [{b"q": b"q", b"w": b"who p"}, {b"q": b"other", b"w": b"who p"}]
    removal = ("services", "a", "")
    assert await write(redis, "p", removal, before="m1", query="q", token="wrong") == DONE
    assert await kept(redis) == whole(marks={"p": "m1"}), "who only takes away needs none"
    assert await write(redis, "p", removal, change, before="m1", query="q", token="token") == DONE
    assert await kept(redis) == whole(("services", "p/b", "2"))
    assert len(await refused()) == 2


@pytest.mark.parametrize(
    ("ms", "changes", "why"),
    [
        ("", [], "the lease must be a number"),
        ("x", [], "the lease must be a number"),
        (MINUTE, [("services", "a", "1"), ("nothing", "a", "1")], "no collection nothing"),
        (0, [("nothing", "a", "")], "no collection nothing"),
    ],
)
async def test_what_it_cannot_take_changes_nothing(
    redis: AsyncRedis, ms: Any, changes: Sequence[Change], why: str
) -> None:
    await write(redis, "p", ("services", "a", "1"))
    await write(redis, "past", ("services", "a", "1"))
    await redis.zadd(PROCESSES, {"past": 1})
    before = await kept(redis)
    with pytest.raises(StoreRefused, match=why):
        await write(redis, "p", *changes, ms=ms, before="m1")
    empty = [""] * 6
    for words in (
        ["p"],
        ["p", MINUTE, *empty[:4]],
        ["p", MINUTE, *empty],
        ["p", MINUTE, *empty, "m", "more"],
    ):
        with pytest.raises(StoreRefused, match="changes come in threes"):
            await load_script("streamlease.catalog", "process").run(redis, KEYS, words)
    assert await kept(redis) == before
