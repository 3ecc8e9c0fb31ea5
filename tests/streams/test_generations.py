"""A space whose number of streams changes: crashes at every step, many actors at once, and publishers that
follow; the order of each key is kept, and nothing is lost or written twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pyarrow as pa
import pytest

from streamlease.protocol.errors import (
    Indefinite,
    InvalidOption,
    SpaceConflict,
    StoreUnavailable,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.log.log import AsyncLog, StreamPending
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis import connection
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import Generation, Space, SpaceStore
from tests.streams.helpers import append, rows, until

TOPICS = [f"s/{number}" for number in range(12)]


@pytest.fixture
def spaces(redis: AsyncRedis) -> SpaceStore:
    return SpaceStore(redis)


async def in_order(redis: AsyncRedis, space: Space) -> dict[str, list[Message]]:
    """All messages by topic, in the order in which a reader gets them: by generation, then by offset."""
    found: dict[str, list[Message]] = {}
    for stream in sorted(space.streams()):
        for batch in await AsyncLog(redis).read(stream, 0):
            for message in to_messages(batch):
                found.setdefault(message.topic, []).append(message)
    return found


async def states(redis: AsyncRedis, space: Space) -> dict[int, set[str]]:
    """The states of the streams of each generation."""
    known = await AsyncLog(redis).states(space.streams())
    found: dict[int, set[str]] = {}
    for stream in space.streams():
        state = known[stream]
        word = "sealed" if state.sealed else "pending" if state.pending else "open"
        found.setdefault(stream.generation, set()).add(word)
    return found


def numbered(messages: Sequence[Message]) -> list[int]:
    return [int(message.payload) for message in messages]


# -- which streams follow which ------------------------------------------------------------------------------


@pytest.mark.parametrize("before", range(1, 13))
@pytest.mark.parametrize("after", range(1, 13))
def test_predecessors_are_exactly_the_streams_that_may_share_a_key(before: int, after: int) -> None:
    generations = (Generation(number=3, streams=before), Generation(number=7, streams=after))
    found = Space(name="s", topics=("s",), generations=generations).predecessors()
    for shard in range(after):
        sharing = {hash % before for hash in range(before * after) if hash % after == shard}
        assert found[StreamId("s", 7, shard)] == tuple(StreamId("s", 3, one) for one in sorted(sharing))
    assert all(found[StreamId("s", 3, shard)] == () for shard in range(before))


# -- the commands --------------------------------------------------------------------------------------------


async def test_altering_seals_the_streams_and_opens_others(spaces: SpaceStore, redis: AsyncRedis) -> None:
    await spaces.create("s", ["s/#"], streams=2)
    space = await spaces.generations.alter("s", streams=3)
    assert space == await spaces.get("s")
    assert space.settled
    assert space.generations == (
        Generation(number=0, streams=2, sealed=True),
        Generation(number=1, streams=3),
    )
    assert await states(redis, space) == {0: {"sealed"}, 1: {"open"}}
    assert space.stream_for("s/x").generation == 1
    assert await spaces.generations.alter("s", streams=3) == space


async def test_a_rotation_makes_a_new_generation_of_the_same_size_once(spaces: SpaceStore) -> None:
    await spaces.create("s", ["s/#"], streams=2)
    space = await spaces.generations.alter("s", rotate=True, expected=0)
    assert [one.number for one in space.generations] == [0, 1]
    assert await spaces.generations.alter("s", rotate=True, expected=0) == space
    space = await spaces.generations.alter("s", rotate=True)
    assert [(one.number, one.streams) for one in space.generations] == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(SpaceConflict, match="altered meanwhile: generation 2 has 2 streams"):
        await spaces.generations.alter("s", streams=5, expected=0)


async def test_a_sealed_space_takes_no_more(spaces: SpaceStore, redis: AsyncRedis) -> None:
    await spaces.create("s", ["s/#"], streams=2)
    async with Publisher(redis) as publisher:
        await publisher.send("s/1", b"0")
        space = await spaces.generations.seal("s")
        assert (space.ended, space.settled) == (True, True)
        assert await spaces.generations.seal("s") == space
        for _ in range(2):
            with pytest.raises(StreamSealed):
                await publisher.send("s/1", b"1")
    async with Publisher(redis) as publisher:
        with pytest.raises(StreamSealed, match="space s is sealed"):
            await publisher.send("s/2", b"1")
    with pytest.raises(StreamSealed, match="space s is sealed"):
        await spaces.generations.alter("s", streams=4)
    assert await states(redis, space) == {0: {"sealed"}}
    assert {t: numbered(found) for t, found in (await in_order(redis, space)).items()} == {"s/1": [0]}


async def test_only_sealed_former_generations_can_be_dropped(spaces: SpaceStore, redis: AsyncRedis) -> None:
    await spaces.create("s", ["s/#"], streams=2)
    with pytest.raises(SpaceConflict, match="generation 0 of space s is in use"):
        await spaces.generations.drop("s", 0)
    async with Publisher(redis) as publisher:
        await publisher.send("s/1", b"0")
        await spaces.generations.alter("s", streams=3)
        space = await spaces.generations.drop("s", 0)
        assert [one.number for one in space.generations] == [1]
        assert await redis.keys("sl:{s.0.*") == []
        assert await spaces.generations.drop("s", 0) == space
        # This publisher never heard of the change; the stream that it knows is gone.
        stream, offset = await publisher.send("s/1", b"1")
        assert (stream.generation, offset) == (1, 0)
    await spaces.generations.seal("s")
    with pytest.raises(SpaceConflict):
        await spaces.generations.drop("s", 1)


async def test_nonsense_and_unknown_spaces_are_refused(spaces: SpaceStore) -> None:
    with pytest.raises(InvalidOption, match="cannot have 0 streams"):
        await spaces.generations.alter("s", streams=0)
    for asking in (
        spaces.generations.alter("s", streams=1),
        spaces.generations.seal("s"),
        spaces.generations.drop("s", 0),
        spaces.generations.settle("s"),
    ):
        with pytest.raises(UnknownSpace):
            await asking


async def test_a_pending_stream_takes_nothing_until_it_is_opened(log: AsyncLog) -> None:
    stream = StreamId("s", 1, 0)
    await log.open([stream], "begin")
    assert await log.states([stream]) == {}
    await log.open([stream], "pending")
    with pytest.raises(StreamPending, match="takes no messages yet"):
        await log.append(append(stream, 0, rows(0, 1)))
    await log.open([stream], "pending")
    assert (await log.states([stream]))[stream].pending
    await log.open([stream], "begin")
    assert (await log.append(append(stream, 0, rows(0, 1)))).first == 0
    await log.seal(stream)
    await log.open([stream], "begin")
    await log.open([stream])
    assert (await log.states([stream]))[stream].sealed


async def test_leftovers_of_an_alter_that_never_happened_do_not_stay_pending(
    spaces: SpaceStore, log: AsyncLog
) -> None:
    stream = StreamId("s", 0, 0)
    await log.open([stream], "pending")
    assert (await log.states([stream]))[stream].pending
    await spaces.create("s", ["s/#"])
    assert not (await log.states([stream]))[stream].pending
    assert (await log.append(append(stream, 0, rows(0, 1)))).first == 0


# -- crashes and rivals --------------------------------------------------------------------------------------


class Crash(StoreUnavailable):
    """The actor is dead: it reaches Redis no more."""


@contextmanager
def crash_after(
    exchanges: int, how: str, patch: pytest.MonkeyPatch, whose: AsyncRedis | None = None
) -> Iterator[list[int]]:
    """Let so many exchanges with Redis pass; of the next one `how` much; then nothing more.

    Args:
        whose: only what goes through this client counts; None for all.
    """
    done = [0]
    real = connection.exchange_one

    async def exchange(client: AsyncRedis, commands: Sequence[Any]) -> list[Any]:
        if whose is not None and client is not whose:
            return await real(client, commands)
        done[0] += 1
        if done[0] <= exchanges:
            return await real(client, commands)
        if done[0] == exchanges + 1 and how != "nothing":
            some = list(commands) if how == "all" else list(commands)[: (len(commands) + 1) // 2]
            await real(client, some)
            raise Indefinite("crashed before the answer")
        raise Crash("crashed")

    with patch.context() as patched:
        patched.setattr(connection, "exchange_one", exchange)
        yield done


ACTS = {
    "alter": lambda spaces: spaces.generations.alter("s", streams=5, expected=1),
    "rotate": lambda spaces: spaces.generations.alter("s", rotate=True, expected=1),
    "seal": lambda spaces: spaces.generations.seal("s"),
    "drop": lambda spaces: spaces.generations.drop("s", 0),
}


@pytest.mark.parametrize("how", ["nothing", "half", "all"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("repair", ["repeat", "publish"])
@pytest.mark.slow
async def test_a_crash_at_every_step_is_repaired(
    embedded_redis_url: str, act: str, how: str, repair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0
    redis = connect(embedded_redis_url)
    for step in range(30):
        await redis.flushall()
        spaces = SpaceStore(redis)
        await spaces.create("s", ["s/#"], streams=2)
        await spaces.generations.alter("s", streams=3)
        expected: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        async with Publisher(redis) as old:
            await publish(old, expected)
            with crash_after(step, how, monkeypatch) as done:
                try:
                    await ACTS[act](SpaceStore(redis))
                except (StoreUnavailable, Indefinite):
                    crashes += 1
                finished = done[0] <= step
            now = await states(redis, await spaces.get("s"))
            taking = [number for number, words in now.items() if "open" in words]
            assert len(taking) <= 1, "two generations take messages at a time"
            if repair == "repeat":
                await ACTS[act](spaces)
            await publish(old, expected)
            async with Publisher(redis) as new:
                await publish(new, expected)
            await publish(old, expected)
        space = await spaces.get("s")
        found = {topic: numbered(some) for topic, some in (await in_order(redis, space)).items()}
        assert found == {topic: some for topic, some in expected.items() if some}
        if repair == "repeat" or finished:
            assert space.settled
        known = await states(redis, space)
        newest = known.pop(space.newest.number)
        assert newest == ({"sealed"} if space.ended else {"open"})
        assert all(state == {"sealed"} for state in known.values())
        if act == "drop" and space.settled and len(space.generations) == 1:
            assert await redis.keys("sl:{s.0.*") == []
        if finished:
            break
    else:
        pytest.fail("the command never came to its end")
    assert crashes >= 3
    await redis.aclose()


async def publish(publisher: Publisher, expected: dict[str, list[int]]) -> None:
    """One message per topic; what a sealed space refuses is not expected."""
    futures = []
    for topic, sent in expected.items():
        try:
            futures.append((await publisher.submit(topic, b"%d" % len(sent)), sent))
        except StreamSealed:
            continue
    try:
        await publisher.flush()
    except StreamSealed:
        assert any(future.exception() for future, _ in futures)
    for future, sent in futures:
        if future.exception() is None:
            sent.append(len(sent))


async def test_of_rivals_one_wins_and_the_others_hear_of_it(redis_url: str) -> None:
    clients = [connect(redis_url) for _ in range(6)]
    await SpaceStore(clients[0]).create("s", ["s/#"], streams=2)

    async def alter(number: int) -> Space | SpaceConflict:
        try:
            return await SpaceStore(clients[number]).generations.alter(
                "s", streams=3 + number // 2, expected=0
            )
        except SpaceConflict as conflict:
            return conflict

    results = await asyncio.gather(*map(alter, range(6)))
    space = await SpaceStore(clients[0]).get("s")
    assert space.settled
    assert len(space.generations) == 2
    winners = [one for one in results if isinstance(one, Space)]
    assert winners
    assert all(one.newest == space.newest for one in winners)
    assert len(winners) <= 2
    assert await states(clients[0], space) == {0: {"sealed"}, 1: {"open"}}
    metas = await clients[0].keys("sl:{s.1.*}:meta")
    assert len(metas) == space.newest.streams, "a loser left streams behind"
    await asyncio.gather(*(client.aclose() for client in clients))


async def test_two_rotations_at_once_make_one_generation_or_two(redis_url: str) -> None:
    clients = [connect(redis_url) for _ in range(4)]
    await SpaceStore(clients[0]).create("s", ["s/#"], streams=2)
    await asyncio.gather(
        *(SpaceStore(one).generations.alter("s", rotate=True, expected=0) for one in clients)
    )
    space = await SpaceStore(clients[0]).get("s")
    assert [one.number for one in space.generations] == [0, 1]
    await asyncio.gather(*(client.aclose() for client in clients))


# -- publishers follow ---------------------------------------------------------------------------------------


@asynccontextmanager
async def altering(redis_url: str, sizes: Sequence[int]) -> AsyncIterator[asyncio.Task[None]]:
    """Alter the space to each of `sizes`, each time after some more messages were written."""
    client = connect(redis_url)
    spaces = SpaceStore(client)

    async def written() -> int:
        space = await spaces.get("s")
        return sum((await AsyncLog(client).next_offsets(space.streams())).values())

    async def work() -> None:
        for size in sizes:
            before = await written()
            while await written() < before + 300:  # noqa: ASYNC110 (a condition in Redis)
                await asyncio.sleep(0)
            await spaces.generations.alter("s", streams=size, rotate=True)

    task = asyncio.create_task(work())
    try:
        yield task
    finally:
        await task
        await client.aclose()


@pytest.mark.parametrize("shard_by", ["topic", "key"])
@pytest.mark.slow
async def test_publishers_follow_under_load(embedded_redis_url: str, shard_by: Any) -> None:
    client = connect(embedded_redis_url)
    spaces = SpaceStore(client)
    await spaces.create("s", ["s/#"], streams=8, shard_by=shard_by)
    sizes = (12, 5, 5, 1, 7)
    sent = [0, 0]
    async with altering(embedded_redis_url, sizes) as changes:

        async def run(who: int) -> None:
            async with Publisher(client, max_batch_messages=20) as publisher:
                while not changes.done() or sent[who] % 500:
                    for topic in TOPICS:
                        await publisher.submit(
                            f"{topic}/{who}", b"%d" % sent[who], key=b"%d" % (sent[who] % 9)
                        )
                    if sent[who] % 7 == 0:
                        batch = pa.record_batch(
                            {
                                "topic": [f"{topic}/{who}" for topic in TOPICS for _ in range(9)],
                                "payload": [b"%d" % (sent[who] + 1 + n) for _ in TOPICS for n in range(9)],
                                "key": [b"%d" % ((sent[who] + 1 + n) % 9) for _ in TOPICS for n in range(9)],
                            }
                        )
                        await publisher.submit_batch("topic", batch)
                        sent[who] += 9
                    sent[who] += 1

        await asyncio.gather(run(0), run(1))
    space = await spaces.get("s")
    assert [one.streams for one in space.generations] == [8, *sizes]
    found = await in_order(client, space)
    used = {StreamId.parse(m.stream).generation for messages in found.values() for m in messages}
    assert len(used) >= 5
    for who in range(2):
        for topic in TOPICS:
            messages = found[f"{topic}/{who}"]
            assert sorted(numbered(messages)) == list(range(sent[who]))
            for key in range(9):
                mine = [int(m.payload) for m in messages if m.key == b"%d" % key]
                assert mine == sorted(mine)
            if shard_by == "topic":
                assert numbered(messages) == list(range(sent[who]))
    await client.aclose()


@pytest.mark.parametrize("rows", [60, 600])  # few join what waits, many are a part of their own
async def test_a_batch_that_waited_is_split_anew(redis: AsyncRedis, rows: int) -> None:
    spaces = SpaceStore(redis)
    await spaces.create("s", ["s/#"], streams=1)
    async with Publisher(redis) as publisher:
        await publisher.send("s/0", b"warm")
        await spaces.generations.alter("s", streams=6)
        batch = pa.record_batch({"topic": [TOPICS[n % 12] for n in range(rows)], "payload": [b"x"] * rows})
        (whole,) = await publisher.submit_batch("topic", batch)
        single = await publisher.submit("s/0", b"behind")
        places = await whole
        assert len(places) > 1
        assert {stream.generation for stream, _ in places} == {1}
        assert sum(len(range_) for _, range_ in places) == rows
        stream, offset = await single
        assert offset == max(range_.end for one, range_ in places if one == stream)
        assert publisher.buffered_bytes == 0


@pytest.mark.slow
async def test_a_publisher_waits_for_a_settlement_that_redis_refuses(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = SpaceStore(redis)
    await spaces.create("s", ["s/#"], streams=2)
    async with Publisher(redis, delivery_timeout=0.3) as publisher:
        await publisher.send("s/0", b"0")
        await spaces.generations.alter("s", streams=3)
        real, asked = SpaceStore.get, 0

        async def get(self: SpaceStore, name: str) -> Space:
            nonlocal asked
            asked += 1
            if asked <= 2:
                raise StoreUnavailable("not now")
            return await real(self, name)

        with monkeypatch.context() as patched:
            patched.setattr(SpaceStore, "get", get)
            first, second = await publisher.submit("s/0", b"1"), await publisher.submit("s/1", b"2")
            assert (await first)[0].generation == 1
            await second
            asked = -10_000
            await spaces.generations.alter("s", streams=4)
            lost = await publisher.submit("s/0", b"lost")
            await until(lost.done)
            assert isinstance(lost.exception(), StoreUnavailable)
        with pytest.raises(StreamleaseError):
            await publisher.flush()
        assert (await publisher.send("s/0", b"3"))[0].generation == 2
