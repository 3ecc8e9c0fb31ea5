"""Trimming a stream: what goes, what stays, and that nothing is ever miscounted."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.protocol.errors import Fenced, HistoryTruncated, InvalidOption, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces import retention as retention_module
from streamlease.streams.spaces.retention import Holdings, Kept, Retention, Trim, kept, trim, trim_many
from tests.conftest import MakeServer
from tests.streams.helpers import append, offsets, rows

ALL = Retention(messages=1, force=True)


async def fill(log: AsyncLog, stream: StreamId, sizes: list[int], sequence: int = 0, first: int = 0) -> int:
    for place, size in enumerate(sizes):
        await log.append(append(stream, sequence + place, rows(first, size)))
        first += size
    return first


async def stored_bytes(redis: AsyncRedis, stream: StreamId) -> int:
    """The bytes of all fields and values that are really there."""
    entries = await redis.xrange(stream_log(stream))
    return sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())


async def state(redis: AsyncRedis, stream: StreamId) -> Kept:
    return (await kept(redis, [stream]))[stream]


async def test_bytes_are_what_is_stored(redis: AsyncRedis, log: AsyncLog, stream: StreamId) -> None:
    assert (await state(redis, stream)).state.bytes == 0
    await fill(log, stream, [1, 1, 50, 1, 7])
    held = await state(redis, stream)
    assert (held.state.memory, held.state.bytes) == ((0, 60), await stored_bytes(redis, stream))
    assert held == Kept(held.state, 0, None, None)
    assert held.state.bytes > 0
    await trim(redis, Trim(stream, Retention(messages=8), 60))
    assert (await state(redis, stream)).state.bytes == await stored_bytes(redis, stream) < held.state.bytes


async def test_who_asks_again_sees_what_changed_between(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId, caplog: pytest.LogCaptureFixture
) -> None:
    other, holdings = StreamId(stream.space, stream.generation, 77), Holdings(redis)
    await log.open([other])
    await fill(log, stream, [3, 4])
    both = [stream, other]
    assert await holdings.look(both) == await kept(redis, both)
    first = await holdings.look(both)
    await trim(redis, Trim(stream, Retention(messages=4), 7))
    second = await holdings.look(both)
    assert (second[stream].state.floor, second[other]) == (3, first[other])
    assert second == await kept(redis, both)
    await redis.hset(stream_meta(other), "floor", "x")
    assert list(await holdings.look(both)) == [stream]
    assert "damaged" in caplog.text
    await redis.hset(stream_meta(other), "floor", "0")
    assert await holdings.look(both) == second
    await redis.delete(stream_meta(other))
    assert list(await holdings.look(both)) == [stream]
    assert await holdings.look([]) == {}


async def test_a_retry_adds_no_bytes(redis: AsyncRedis, log: AsyncLog, stream: StreamId) -> None:
    await log.append(append(stream, 0, rows(0, 5)))
    before = await state(redis, stream)
    assert (await log.append(append(stream, 0, rows(0, 5)))).duplicate
    assert await state(redis, stream) == before


async def test_messages_keeps_the_newest_and_whole_entries(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, stream, [1, 1, 10, 1, 1])
    done = await trim(redis, Trim(stream, Retention(messages=12), 14))
    assert (done.floor, done.entries, done.messages, done.more, done.held) == (2, 2, 2, False, False)
    assert (await trim(redis, Trim(stream, Retention(messages=5), 14))).floor == 2, "offset 9 lies in 2..11"
    assert (await trim(redis, Trim(stream, Retention(messages=2), 14))).floor == 12
    assert offsets(await log.read(stream, 12)) == [12, 13]
    assert await log.floors([stream]) == {stream: 12}


async def test_bytes_removes_until_the_rest_fits(redis: AsyncRedis, log: AsyncLog, stream: StreamId) -> None:
    await fill(log, stream, [1] * 20)
    each = (await state(redis, stream)).state.bytes / 20
    done = await trim(redis, Trim(stream, Retention(bytes=int(each * 5.5)), 20))
    assert done.bytes == await stored_bytes(redis, stream) <= each * 5.5
    assert done.floor in (14, 15)


async def test_age_goes_by_the_clock_of_the_server(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, stream, [2, 3])
    hour = Retention(age_ms=3_600_000)
    assert (await trim(redis, Trim(stream, hour, 5))).floor == 0
    (first, second) = await redis.xrange(stream_log(stream))
    await redis.delete(stream_log(stream))
    for (id, fields), hours in ((first, 2), (second, 0)):
        old = int(fields[b"a"]) - hours * 3_600_000_000
        await redis.xadd(stream_log(stream), {**fields, b"a": b"%d" % old}, id=id)
    assert (await trim(redis, Trim(stream, hour, 5))).floor == 2
    assert (await state(redis, stream)).trimmed_at == int(first[1][b"a"]) - 7_200_000_000


async def test_an_entry_without_a_time_goes_with_the_next_one(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    """It is damaged; it must neither stop retention for good, nor go before its time."""
    await fill(log, stream, [1] * 7)
    hour = Retention(age_ms=3_600_000)
    entries = await redis.xrange(stream_log(stream))
    now = int(entries[0][1][b"a"])
    old = b"%d" % (now - 7_200_000_000)
    await redis.delete(stream_log(stream))
    times = [b"yesterday", old, b"9" * 30, None, old, b"-7", b"%d" % now]
    for (id, fields), at in zip(entries, times, strict=True):
        kept = {name: value for name, value in fields.items() if name != b"a"}
        await redis.xadd(stream_log(stream), kept if at is None else {**kept, b"a": at}, id=id)
    done = await trim(redis, Trim(stream, hour, 7))
    assert (done.floor, done.entries, done.messages, done.held) == (5, 5, 5, False)
    assert (await state(redis, stream)).trimmed_at == int(old)
    assert [id for id, _ in await redis.xrange(stream_log(stream))] == [id for id, _ in entries[5:]]
    assert (await trim(redis, Trim(stream, hour, 7))).floor == 5
    assert (await trim(redis, Trim(stream, Retention(messages=1), 7))).floor == 6


async def test_nothing_goes_at_or_above_the_limit(redis: AsyncRedis, log: AsyncLog, stream: StreamId) -> None:
    await fill(log, stream, [2, 4, 2])
    keep = Retention(messages=1)
    for limit, floor in ((0, 0), (1, 0), (2, 2), (5, 2), (6, 6)):
        done = await trim(redis, Trim(stream, keep, limit, "$shared/g/#"))
        assert (done.floor, done.held) == (floor, floor < 6)
    assert (await trim(redis, Trim(stream, keep, None))).floor == 6


async def test_who_holds_and_since_when_is_kept_until_it_lets_go(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, stream, [1, 1, 1, 1])
    keep = Retention(messages=1)
    await trim(redis, Trim(stream, keep, 1, "a"))
    first = await state(redis, stream)
    assert (first.held_by, first.state.floor) == ("a", 1)
    assert first.held_since is not None and first.held_since > 1_700_000_000_000_000
    await trim(redis, Trim(stream, keep, 2, "a"))
    assert (await state(redis, stream)).held_since == first.held_since
    await trim(redis, Trim(stream, keep, 2, "b"))
    second = await state(redis, stream)
    assert second.held_by == "b" and second.held_since is not None and second.held_since > first.held_since
    await trim(redis, Trim(stream, keep, 4))
    assert (await state(redis, stream)).held_by is None
    assert (await state(redis, stream)).held_since is None


async def test_a_floor_is_never_lowered_and_offsets_go_on(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    total = await fill(log, stream, [3, 3])
    assert (await trim(redis, Trim(stream, Retention(bytes=1), total))).floor == 6
    assert (await trim(redis, Trim(stream, Retention(messages=100), 0))).floor == 6
    assert (await state(redis, stream)).state.bytes == 0
    assert (await log.append(append(stream, 2, rows(6, 2)))).first == 6
    with pytest.raises(HistoryTruncated) as error:
        await log.read(stream, 5)
    assert (error.value.asked, error.value.oldest) == (5, 6)
    assert offsets(await log.read(stream, 6)) == [6, 7]


async def test_a_lower_term_is_refused_and_changes_nothing(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, stream, [1, 1, 1])
    await trim(redis, Trim(stream, Retention(messages=2), 3, term=7))
    before = await redis.hgetall(stream_meta(stream))
    with pytest.raises(Fenced, match="term 6 was followed by 7"):
        await trim(redis, Trim(stream, ALL, None, term=6))
    assert await redis.hgetall(stream_meta(stream)) == before
    assert (await trim(redis, Trim(stream, ALL, None, term=7))).floor == 2


async def test_a_stream_that_is_not_there(redis: AsyncRedis) -> None:
    with pytest.raises(UnknownSpace, match="no stream gone"):
        await trim(redis, Trim(StreamId("gone", 0, 0), ALL, None))
    assert await kept(redis, [StreamId("gone", 0, 0)]) == {}
    assert await trim_many(redis, []) == []


async def test_one_call_is_bounded_and_many_do_it_all(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(log, stream, [1] * 60)
    monkeypatch.setattr(Trim.call, "__defaults__", (7, 1_000_000))
    (one,) = await trim_many(redis, [Trim(stream, ALL, None)])
    assert isinstance(one, retention_module.Trimmed)
    assert (one.floor, one.more) == (7, True)
    done = await trim(redis, Trim(stream, ALL, None))
    assert (done.floor, done.entries, done.messages, done.more) == (59, 52, 52, False)
    assert done.bytes == await stored_bytes(redis, stream)


async def test_large_entries_bound_a_call_by_their_bytes(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    for sequence in range(6):
        await log.append(append(stream, sequence, [Row("a", b"x" * 3_000_000)]))
    (one,) = await trim_many(redis, [Trim(stream, ALL, None)])
    assert isinstance(one, retention_module.Trimmed)
    assert one.more and one.floor < 5
    assert (await trim(redis, Trim(stream, ALL, None))).floor == 5


async def test_appends_readers_and_trims_at_once_leave_no_hole(
    real_redis_url: str,
) -> None:
    redis, other = connect(real_redis_url), connect(real_redis_url)
    log, stream, done = AsyncLog(redis), StreamId("space", 0, 0), asyncio.Event()
    await log.open([stream])

    async def write() -> None:
        first = 0
        for sequence in range(400):
            size = 1 + sequence % 5
            assert (await log.append(append(stream, sequence, rows(first, size)))).first == first
            first += size
        done.set()

    async def cut() -> int:
        times = 0
        while not done.is_set():
            times += (await trim(other, Trim(stream, Retention(messages=20), None))).entries
        return times

    async def read() -> tuple[int, int]:
        position = truncated = 0
        while not done.is_set() or position < (await AsyncLog(other).next_offsets([stream]))[stream]:
            try:
                batches = await AsyncLog(other).read(stream, position)
            except HistoryTruncated as error:
                assert error.oldest > position
                position, truncated = error.oldest, truncated + 1
                continue
            got = offsets(batches)
            assert got == list(range(position, position + len(got)))
            for batch in batches:
                for offset, payload in zip(
                    batch.column("offset").to_pylist(), batch.column("payload").to_pylist(), strict=True
                ):
                    assert payload == b"message %d" % offset
            position += len(got)
        return position, truncated

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            trimming, reading = group.create_task(cut()), group.create_task(read())
        assert trimming.result() > 300
        assert reading.result()[0] == 1200
        assert (await state(redis, stream)).state.bytes == await stored_bytes(redis, stream)
    finally:
        await redis.aclose()
        await other.aclose()


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
async def test_floor_bytes_and_holder_survive_a_power_cut(make_redis_server: MakeServer, kind: str) -> None:
    server = make_redis_server(kind, persistent=True)
    redis, stream = connect(server.url), StreamId("space", 0, 0)
    log = AsyncLog(redis)
    await log.open([stream])
    await fill(log, stream, [1] * 10)
    await trim(redis, Trim(stream, Retention(messages=2), 4, "holder", term=3))
    before = await state(redis, stream)
    await redis.aclose()
    server.restart()
    redis = connect(server.url)
    try:
        assert await state(redis, stream) == before
        assert (before.state.floor, before.held_by) == (4, "holder")
        with pytest.raises(HistoryTruncated):
            await AsyncLog(redis).read(stream, 3)
        with pytest.raises(Fenced):
            await trim(redis, Trim(stream, ALL, None, term=2))
        assert (await AsyncLog(redis).append(append(stream, 10, rows(10, 1)))).first == 10
    finally:
        await redis.aclose()


@pytest.mark.parametrize(
    "values",
    [
        {"age_ms": 0},
        {"bytes": -1},
        {"messages": 0},
        {"messages": 2**53},
        {"group_expiry_ms": -1},
        {"force": True},
    ],
)
def test_nonsense_is_refused_when_built(values: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="retention"):
        Retention(**values)  # type: ignore[arg-type]


def test_retention_in_words() -> None:
    assert str(Retention()) == "everything"
    assert str(Retention(age_ms=604_800_000, bytes=2**30, messages=5, force=True)) == (
        "1w, 1GiB, 5 messages per stream, forced"
    )
