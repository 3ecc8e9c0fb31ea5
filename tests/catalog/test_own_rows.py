"""What a process has in the catalog stands as long as its lease, and comes back with it."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from redis.exceptions import ResponseError

import streamlease
from streamlease.agent.client import Client
from streamlease.catalog.own_rows import OwnRows
from streamlease.protocol.errors import InvalidOption, InvalidTopic, StreamleaseError, TopicNotFound
from streamlease.streams.catalog.changes import BEGINNING, Owners, changes_behind, list_rows
from streamlease.streams.catalog.keys import (
    CATALOG,
    MADE,
    OWNED,
    PROCESSES,
    REFUSED,
    TOKENS,
    TOPICS,
    TOPICS_ORDER,
    WRITTEN,
    rows,
)
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces import published_topics as topics_module
from streamlease.streams.spaces.published_topics import known_topics, note_topics
from tests.catalog.waiting import SECONDS, eventually

NAME = "services"


async def listed(redis: AsyncRedis, collection: str = NAME) -> set[str]:
    return {*(await list_rows(redis, CATALOG, rows(collection), Owners(PROCESSES))).rows}


async def over(redis: AsyncRedis, one: OwnRows) -> None:
    """Its lease is over, by the clock of Redis."""
    assert await ask(redis, [("ZADD", PROCESSES, "XX", "CH", 1, one.process)]) == [1]


async def test_a_row_stands_with_what_it_says_of_the_process_and_leaves_with_it(redis: AsyncRedis) -> None:
    own, other = OwnRows(redis), OwnRows(redis)
    own.put(NAME, "scorer", {"service": "scorer"})
    own.put("executors", "e1", {"executor": "e1"})
    other.put(NAME, "scorer", {"service": "scorer"})
    await own.settled()
    await other.settled()
    assert await listed(redis) == {f"{own.process}/scorer", f"{other.process}/scorer"}
    assert await listed(redis, "executors") == {f"{own.process}/e1"}
    await own.close()
    assert await listed(redis) == {f"{other.process}/scorer"}
    assert await listed(redis, "executors") == set()
    await other.close()
    assert await ask(redis, [("EXISTS", PROCESSES, OWNED, WRITTEN, *map(rows, MADE))]) == [0], (
        "nothing is left over"
    )


async def test_a_row_changes_and_goes_and_each_change_is_told_once(redis: AsyncRedis) -> None:
    own = OwnRows(redis)
    for load in (1, 2, 2):
        own.put(NAME, "scorer", {"load": load})
        await own.settled()
    own.remove(NAME, "scorer")
    own.remove(NAME, "never")
    await own.settled()
    told = await changes_behind(redis, CATALOG, BEGINNING)
    assert [(bool(one.former), '"load":2' in one.row) for one in told] == [
        (False, False),
        (True, True),
        (True, False),
    ]
    assert [one.former for one in told[1:]] == [one.row for one in told[:-1]]
    assert told[-1].row == ""
    await own.close()


async def test_what_is_put_together_is_written_together(redis: AsyncRedis) -> None:
    own = OwnRows(redis)
    for number in range(1200):
        own.put(NAME, str(number), {})
    await own.settled()
    assert len(await listed(redis)) == 1200
    await own.close()
    assert await listed(redis) == set()


async def test_a_process_that_is_silent_for_too_long_leaves_no_row(redis: AsyncRedis) -> None:
    dead, alive = OwnRows(redis, beat_seconds=3600), OwnRows(redis, beat_seconds=0.02)
    dead.put(NAME, "a", {})
    alive.put(NAME, "b", {})
    await dead.settled()
    await alive.settled()
    await over(redis, dead)
    assert await listed(redis) == {f"{alive.process}/b"}, "it is not shown, whoever removes it"

    async def removed() -> bool:
        return await ask(redis, [("ZCARD", OWNED)]) == [1]

    await eventually(removed)
    assert (await changes_behind(redis, CATALOG, BEGINNING))[-1].row == ""
    await dead.close()
    await alive.close()


async def test_a_process_that_was_cut_off_is_itself_again(redis: AsyncRedis) -> None:
    own, other = OwnRows(redis, beat_seconds=0.02), OwnRows(redis, beat_seconds=3600)
    own.put(NAME, "a", {})
    own.put(NAME, "b", {})
    await own.settled()
    await over(redis, own)
    other.put(NAME, "c", {})
    await other.settled()

    async def back() -> bool:
        return {f"{own.process}/a", f"{own.process}/b"} < await listed(redis)

    await eventually(back)
    await own.close()
    await other.close()


async def test_what_a_failover_lost_of_its_rows_is_made_anew(redis: AsyncRedis) -> None:
    """Its lease was renewed long before, so it stands; only what it wrote last is gone."""
    await ask(redis, [("HSET", SPACE_DEFINITIONS, "s", "{}")])
    own = OwnRows(redis, beat_seconds=0.02)
    own.put(NAME, "kept", {"load": 1})
    own.put(NAME, "gone", {})
    await own.settled()
    (before,) = await ask(redis, [("HGET", WRITTEN, own.process)])
    (row,) = await ask(redis, [("HGET", rows(NAME), f"{own.process}/kept")])
    own.put(NAME, "kept", {"load": 2})
    own.put(NAME, "lost", {})
    own.remove(NAME, "gone")
    own.note_topic("s", "s/1")
    await own.settled()

    async def noted() -> bool:
        return (await known_topics(redis, "s")).topics == ["s/1"]

    async def written() -> dict[bytes, bytes]:
        (flat,) = await ask(redis, [("HGETALL", rows(NAME))])
        return dict(zip(flat[::2], flat[1::2], strict=True))

    await eventually(noted)
    wanted = await written()
    lost = [
        ("HSET", WRITTEN, own.process, before),
        ("HSET", rows(NAME), f"{own.process}/kept", row),
        ("HSET", rows(NAME), f"{own.process}/gone", row),
        ("ZADD", OWNED, 0, f"{own.process}/{NAME}/gone"),
        ("HDEL", rows(NAME), f"{own.process}/lost"),
        ("ZREM", OWNED, f"{own.process}/{NAME}/lost"),
        ("DEL", TOPICS, TOPICS_ORDER),
    ]
    await ask(redis, lost)

    async def back() -> bool:
        return await written() == wanted and await noted()

    await eventually(back)
    await own.close()


@pytest.mark.slow
async def test_rows_are_written_when_redis_answers_again(redis: AsyncRedis) -> None:
    own = OwnRows(redis)
    await ask(redis, [("SET", PROCESSES, "no zset")])
    own.put(NAME, "a", {})
    waiting = asyncio.create_task(own.settled())
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    await ask(redis, [("DEL", PROCESSES)])
    await waiting
    assert await listed(redis) == {f"{own.process}/a"}
    await own.close()


@pytest.mark.parametrize("changes", [["services", "a"], ["nothing", "a", "{}"]])
async def test_the_script_checks_before_it_writes(redis: AsyncRedis, changes: list[str]) -> None:
    names = [PROCESSES, OWNED, CATALOG.changes, *map(rows, MADE), TOKENS, REFUSED, WRITTEN]
    script = load_script("streamlease.catalog", "process")
    arguments = [
        "p",
        1000,
        CATALOG.told,
        " ".join(MADE),
        "",
        "",
        "",
        "",
        "m",
        "services",
        "good",
        "{}",
        *changes,
    ]
    with pytest.raises(Exception, match=r"threes|no collection") as caught:
        await script.run(redis, names, arguments)
    assert not isinstance(caught.value, ResponseError)
    assert await ask(redis, [("DBSIZE",)]) == [0]


async def test_a_client_shows_what_it_publishes_to_and_reads_until_it_does_not(redis_url: str) -> None:
    async def shown(client: Client) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name in ("publications", "subscriptions", "borrowers"):
            async with client.catalog(name) as items:
                values = [item.model_dump() for item in items.items]
                assert all(one["pid"] == os.getpid() for one in values)
                found[name] = {
                    str(one.get("topic") or one.get("filter") or one["subscription"]) for one in values
                }
        return found

    async with streamlease.connect(redis_url) as looker:
        await looker.create_space("a", ["a/#"])

        async def is_shown(publications: set[str], subscriptions: set[str], borrowers: set[str]) -> None:
            wanted = {"publications": publications, "subscriptions": subscriptions, "borrowers": borrowers}

            async def so() -> bool:
                return await shown(looker) == wanted

            await eventually(so)

        async with streamlease.connect(redis_url) as client, client.publisher() as pub:
            await pub.send("a/1", b"x")
            await pub.submit("a/2", b"x")
            async with client.listen("a/+"), client.subscribe("$shared/g/a/#"):
                await is_shown({"a/1", "a/2"}, {"a/+", "a/#"}, {"$shared/g/a/#"})
            await is_shown({"a/1", "a/2"}, set(), set())
        await is_shown(set(), set(), set())


async def test_of_two_equal_subscriptions_one_stays_when_the_other_closes(redis_url: str) -> None:
    async with streamlease.connect(redis_url) as looker, streamlease.connect(redis_url) as client:
        await looker.create_space("a", ["a/#"])

        async def read_by() -> int:
            async with looker.catalog("subscriptions") as found:
                return sum(found.items.values())

        async def is_read_by(count: int) -> None:
            async def so() -> bool:
                return await read_by() == count

            await eventually(so)

        async with client.listen("a/+"):
            async with client.listen("a/+"):
                await is_read_by(2)
            await is_read_by(1)
            assert await read_by() == 1, "and it stays"
        await is_read_by(0)


LOOKS = """
import asyncio, sys
import streamlease

async def main():
    async with streamlease.connect(sys.argv[1]) as client:
        await client.lookup("a/1", wait=600)

asyncio.run(main())
"""


async def test_who_is_killed_while_he_waits_for_a_publication_leaves_nothing(
    embedded_redis_url: str,
) -> None:
    async with streamlease.connect(embedded_redis_url) as client:
        await client.create_space("a", ["a/#"])
        before = set((await ask(client.redis, [("KEYS", "*")]))[0])
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", LOOKS, embedded_redis_url)

        async def waits() -> bool:
            return (await ask(client.redis, [("PUBSUB", "NUMSUB", CATALOG.told)]))[0][1] == 1

        try:
            await eventually(waits)
        finally:
            process.kill()
            await process.wait()
        assert set((await ask(client.redis, [("KEYS", "*")]))[0]) == before
        for name in ("subscriptions", "publications", "borrowers"):
            async with client.catalog(name) as found:
                assert not found.items


async def test_topics_are_known_after_their_publishers_until_their_space_goes(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "MOST_TOPICS", 4)
    async with streamlease.connect(redis_url) as looker:
        await looker.create_space("a", ["a/#"], streams=2)
        await looker.create_space("b", ["b/#"])
        async with looker.catalog("topics") as followed:
            async with streamlease.connect(redis_url) as client, client.publisher() as pub:
                for topic in ("a/1", "a/2", "a/1", "b/ü", "a/3"):
                    await pub.send(topic, b"x")
            found = {(await anext(followed)).item.model_dump()["topic"] for _ in range(4)}
            assert found == {"a/1", "a/2", "a/3", "b/ü"}
            assert await known_topics(looker.redis, "a") == (["a/1", "a/2", "a/3"], False)
            async with streamlease.connect(redis_url) as client, client.publisher() as pub:
                for topic in ("a/2", "a/4", "a/5", "a/6"):
                    await pub.send(topic, b"x")
            assert await known_topics(looker.redis, "a") == (["a/1", "a/2", "a/3", "a/4"], True)
            await looker.spaces.delete("a")
            assert await known_topics(looker.redis, "a") == ([], False)
            assert await known_topics(looker.redis, "b") == (["b/ü"], False)
            while len(followed.items) != 1:
                await anext(followed)
        await note_topics(looker.redis, [("gone", "gone/1")])
        assert await known_topics(looker.redis, "gone") == ([], False)


async def test_a_publisher_notes_its_topics_again_when_their_space_was_made_anew(redis_url: str) -> None:
    async with (
        streamlease.connect(redis_url) as operator,
        streamlease.connect(redis_url) as client,
        client.publisher() as pub,
    ):
        for _ in range(2):
            await operator.create_space("a", ["a/#"])

            async def sent() -> bool:
                try:
                    await pub.send("a/1", b"x")
                except StreamleaseError:  # what it knows of the space is old
                    return False
                return await known_topics(operator.redis, "a") == (["a/1"], False)

            await eventually(sent)
            await operator.spaces.delete("a")
            assert await known_topics(operator.redis, "a") == ([], False)


async def test_what_an_epoch_publisher_sends_to_is_shown(redis_url: str) -> None:
    async with streamlease.connect(redis_url) as looker:
        await looker.create_space("clicks", ["clicks/#"], epochs=1)
        async with (
            streamlease.connect(redis_url) as client,
            client.epoch_publisher("clicks", "ingest-1") as pub,
        ):
            await pub.submit("clicks/de", b"x", epoch=0)
            found = await looker.lookup("clicks/de", wait=SECONDS)
            assert (found.space, found.pid) == ("clicks", os.getpid())
            await pub.advance(1)
        assert await known_topics(looker.redis, "clicks") == (["clicks/de"], False)


async def test_a_publication_is_looked_up_and_waited_for(redis_url: str) -> None:
    async with streamlease.connect(redis_url) as looker:
        await looker.create_space("a", ["a/#"])
        with pytest.raises(TopicNotFound, match="nobody publishes to 'a/1': start its publisher"):
            await looker.lookup("a/1")
        with pytest.raises(TopicNotFound, match=r"nobody came in 0\.05 s"):
            await looker.lookup("a/1", wait=0.05)
        waiting = asyncio.create_task(looker.lookup("a/1", wait=20))
        async with streamlease.connect(redis_url) as client, client.publisher() as pub:
            await pub.send("a/2", b"x")
            await pub.send("a/1", b"x")
            found = await waiting
            assert (found.topic, found.space, found.pid) == ("a/1", "a", os.getpid())
            assert await looker.lookup("a/1") == found
        for wrong in ("", "a/+", "a/#"):
            with pytest.raises(InvalidTopic):
                await looker.lookup(wrong)
        for wait in (-1, float("nan"), float("inf")):
            with pytest.raises(InvalidOption, match="wait is"):
                await looker.lookup("a/1", wait=wait)
