"""The contract of a stream, on every kind of server."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamlease.protocol.errors import (
    Fenced,
    HistoryTruncated,
    InvalidInput,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange
from streamlease.streams.entries.entries import to_messages
from streamlease.streams.log import joining, ranges
from streamlease.streams.log.keys import stream_log, stream_meta, stream_publishers
from streamlease.streams.log.log import Append, Appended, AsyncLog, OutOfSequence
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import (
    AsyncRedis,
    BlockingRedis,
    PendingAnswer,
    connect,
    run_blocking,
)
from streamlease.streams.redis.wire import BlockingServer
from tests.streams.helpers import append, offsets, payloads, rows

OTHER = StreamId("space", 0, 1)


async def fill(log: AsyncLog, stream: StreamId, sizes: list[int]) -> int:
    """Entries of these sizes; the number of messages."""
    first = 0
    for sequence, size in enumerate(sizes):
        result = await log.append(append(stream, sequence, rows(first, size)))
        assert result == Appended(stream, first, size, result.append_time, duplicate=False)
        first += size
    return first


async def test_offsets_have_no_holes(log: AsyncLog, stream: StreamId) -> None:
    total = await fill(log, stream, [1, 1, 5, 1, 100, 2, 1, 1, 1, 30])
    batches = await log.read(stream, 0)
    assert offsets(batches) == list(range(total))
    assert payloads(batches) == [row.payload for row in rows(0, total)]
    assert await log.next_offsets([stream]) == {stream: total}
    assert await log.floors([stream]) == {stream: 0}


async def test_append_times_rise_whatever_the_clock_does(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    future = 4_102_444_800_000_000
    await redis.hset(stream_meta(stream), "last_append", str(future))
    for sequence in range(2):
        assert (await log.append(append(stream, sequence, rows(0, 1)))).append_time == future + sequence + 1
    await redis.hset(stream_meta(stream), "last_append", "0")
    assert 1_700_000_000_000_000 < (await log.append(append(stream, 2, rows(0, 1)))).append_time < future


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.slow
def test_any_range_gives_exactly_its_rows(blocking: BlockingRedis, data: st.DataObject) -> None:
    blocking.flushall()
    stream = StreamId("space", 0, 0)
    blocking.hset(stream_meta(stream), mapping={"next": 0, "state": "open", "floor": 0, "last_append": 0})
    log = AsyncLog(blocking)
    total = 0
    sizes = data.draw(st.lists(st.sampled_from([1, 1, 1, 2, 7, 40]), min_size=1, max_size=30))
    for sequence, size in enumerate(sizes):
        run_blocking(log.append(append(stream, sequence, rows(total, size))))
        total += size
    for _ in range(4):
        start = data.draw(st.integers(0, total))
        end = data.draw(st.integers(start, total))
        assert offsets([*read_range(blocking, stream, start, end)]) == list(range(start, end))


@pytest.mark.slow
async def test_reading_stops_at_its_limits_and_goes_on(log: AsyncLog, stream: StreamId) -> None:
    total = await fill(log, stream, [1] * 4 + [20, 1, 20, 7])
    for limits in ({"enough": 9}, {"enough": 13}, {"max_bytes": 200}, {"max_bytes": 1}):
        position, got = 0, []
        while position < total:
            part = offsets(await log.read(stream, position, **limits))  # type: ignore[arg-type]
            assert part
            got += part
            position = part[-1] + 1
        assert got == list(range(total))
    assert await log.read(stream, total) == []
    assert offsets(await log.read(stream, 5, 12)) == list(range(5, 12))
    ends = [len(offsets(await log.read(stream, 0, enough=most))) for most in (1, 3, 4, 5, 24, 25, 26, 99)]
    assert ends == [1, 3, 4, 24, 24, 25, 45, total], "an entry is read once, and as a whole"
    assert offsets(await log.read(stream, 0, 12, enough=5)) == list(range(12))
    assert await log.read(stream, 5, 5) == []


async def test_batches_have_a_bounded_number_of_rows(
    log: AsyncLog, stream: StreamId, blocking: BlockingRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "BATCH_ROWS", 64)
    total = await fill(log, stream, [150, 10, 10, 10, 63, 2])
    for batches in ([*read_range(blocking, stream, 0, total)], await log.read(stream, 0)):
        assert max(batch.num_rows for batch in batches) <= 64
        assert len(batches) < 8
        assert offsets(batches) == list(range(total))


@pytest.mark.slow
async def test_the_next_entries_are_asked_for_before_the_last_ones_are_handed_out(
    log: AsyncLog, stream: StreamId, blocking: BlockingRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "CHUNK_BYTES", 1)
    monkeypatch.setattr("streamlease.streams.log.segments.ENOUGH_ROWS", 1)
    total = await fill(log, stream, [3] * 40)
    asked = 0

    class Counted(PendingAnswer):
        def __init__(self, *arguments: Any) -> None:
            nonlocal asked
            asked += 1
            super().__init__(*arguments)

    monkeypatch.setattr("streamlease.streams.log.segments.PendingAnswer", Counted)
    reading = read_range(blocking, stream, 0, total)
    assert offsets([next(reading)]) == [0, 1, 2]
    assert asked == 2
    assert offsets([*reading]) == list(range(3, total))


async def test_a_reader_that_is_left_early_leaves_no_reply_behind(
    log: AsyncLog, stream: StreamId, blocking: BlockingRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "CHUNK_BYTES", 1)
    monkeypatch.setattr("streamlease.streams.log.segments.ENOUGH_ROWS", 1)
    total = await fill(log, stream, [3] * 40)
    for left_after in range(4):
        reading = read_range(blocking, stream, 0, total)
        assert offsets([next(reading) for _ in range(left_after)]) == list(range(3 * left_after))
        reading.close()  # type: ignore[attr-defined]
        assert run_blocking(AsyncLog(blocking).next_offsets([stream])) == {stream: total}


async def test_a_connection_lost_with_a_question_on_its_way_is_an_outage_and_the_range_goes_on(
    log: AsyncLog, stream: StreamId, blocking: BlockingRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "CHUNK_BYTES", 1)
    monkeypatch.setattr("streamlease.streams.log.segments.ENOUGH_ROWS", 1)
    total = await fill(log, stream, [3] * 40)
    reading = read_range(blocking, stream, 0, total)
    first = offsets([next(reading)])
    assert isinstance(blocking, BlockingServer)
    blocking.connection_pool.disconnect(inuse_connections=True)
    with pytest.raises(StoreUnavailable):
        for batch in reading:
            first += offsets([batch])
    assert first == list(range(len(first)))
    assert offsets([*read_range(blocking, stream, len(first), total)]) == list(range(len(first), total))


async def test_what_is_large_enough_is_handed_out_as_it_is(
    log: AsyncLog, stream: StreamId, blocking: BlockingRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "BATCH_ROWS", 64)
    monkeypatch.setattr("streamlease.streams.log.segments.ENOUGH_ROWS", 10)
    monkeypatch.setattr("streamlease.streams.entries.columnar.ENOUGH_ROWS", 10)
    total = await fill(log, stream, [4, 5, 6, 3, 10, 2, 70, 1, 1])
    batches = [*read_range(blocking, stream, 0, total)]
    assert [batch.num_rows for batch in batches] == [18, 10, 2, 64, 8]
    assert offsets(batches) == list(range(total))


async def test_a_retry_adds_nothing(log: AsyncLog, stream: StreamId) -> None:
    first = await log.append(append(stream, 0, rows(0, 3)))
    again = await log.append(append(stream, 0, rows(0, 3)))
    assert again == first._replace(duplicate=True)
    assert offsets(await log.read(stream, 0)) == [0, 1, 2]
    assert (await log.append(append(stream, 1, rows(3, 1)))).first == 3


@pytest.mark.parametrize(("sequence", "count"), [(0, 1), (3, 1), (1, 2)])
async def test_a_sequence_that_does_not_follow_is_refused(
    log: AsyncLog, stream: StreamId, sequence: int, count: int
) -> None:
    await fill(log, stream, [1, 1])
    with pytest.raises(OutOfSequence) as caught:
        await log.append(append(stream, sequence, rows(0, count)))
    assert caught.value.last == 1
    assert await log.next_offsets([stream]) == {stream: 2}


async def test_a_first_sequence_is_zero_unless_gaps_are_allowed(log: AsyncLog, stream: StreamId) -> None:
    with pytest.raises(OutOfSequence):
        await log.append(append(stream, 4, rows(0, 1), publisher="query"))
    for sequence in (4, 9):
        await log.append(append(stream, sequence, rows(0, 1), publisher="query", gaps=True))
    assert (await log.append(append(stream, 9, rows(0, 1), publisher="query", gaps=True))).duplicate
    with pytest.raises(OutOfSequence) as caught:
        await log.append(append(stream, 4, rows(0, 1), publisher="query", gaps=True))
    assert caught.value.last == 9


async def test_an_older_incarnation_is_fenced(log: AsyncLog, stream: StreamId) -> None:
    await log.append(append(stream, 0, rows(0, 1), incarnation=1))
    await log.append(append(stream, 0, rows(1, 1), incarnation=2))
    for sequence in (0, 1):
        with pytest.raises(Fenced, match="incarnation 1 was replaced by incarnation 2"):
            await log.append(append(stream, sequence, rows(2, 1), incarnation=1))
    assert (await log.append(append(stream, 0, rows(0, 1), publisher="~other"))).first == 2


async def test_a_sealed_stream_takes_nothing_but_knows_what_it_took(log: AsyncLog, stream: StreamId) -> None:
    await fill(log, stream, [4])
    assert await log.seal(stream) == 4
    assert await log.seal(stream) == 4
    with pytest.raises(StreamSealed, match=r"space\.0\.0"):
        await log.append(append(stream, 1, rows(4, 1)))
    assert (await log.append(append(stream, 0, rows(0, 4)))).duplicate
    await log.open([stream])
    assert (await log.states([stream]))[stream].sealed
    assert len(offsets(await log.read(stream, 0))) == 4


async def test_a_stream_that_nobody_opened_is_unknown(log: AsyncLog, blocking: BlockingRedis) -> None:
    with pytest.raises(UnknownSpace, match=r"space\.0\.1"):
        await log.append(append(OTHER, 0, rows(0, 1)))
    with pytest.raises(UnknownSpace):
        await log.read(OTHER, 0)
    with pytest.raises(UnknownSpace):
        await log.seal(OTHER)
    with pytest.raises(UnknownSpace):
        [*read_range(blocking, OTHER, 0, 1)]
    assert await log.states([OTHER]) == {}
    assert await log.states([]) == {}


async def test_each_outcome_of_many_appends_stands_alone(log: AsyncLog, stream: StreamId) -> None:
    good, bad = await log.append_many([append(stream, 0, rows(0, 1)), append(OTHER, 0, rows(0, 1))])
    assert isinstance(good, Appended)
    assert isinstance(bad, UnknownSpace)
    with pytest.raises(InvalidInput):
        await log.append_many([append(stream, 1, rows(0, 1)), append(stream, 2, rows(0, 1))])


async def test_appends_of_one_call_come_out_as_each_alone_would(real_redis_url: str) -> None:
    client = connect(real_redis_url)
    log = AsyncLog(client)
    streams = [StreamId("space", 0, shard) for shard in range(12)]
    await log.open(streams)
    for broken, key in zip(streams[:3], (stream_meta, stream_publishers, stream_log), strict=True):
        await client.delete(key(broken))
        await client.set(key(broken), "no such type")
    await log.seal(streams[3])
    await client.delete(stream_meta(streams[4]))
    await client.xadd(stream_log(streams[5]), {"x": "y"}, id="7-7")
    await client.xadd(stream_log(streams[6]), {"x": "y"}, id="0-9")
    await log.append(append(streams[7], 0, rows(0, 2)))
    await log.append(append(streams[8], 0, rows(0, 1), incarnation=2))
    appends = [append(one, 0, rows(0, 2)) for one in streams]
    appends[10] = append(streams[10], 1, rows(0, 2))  # leaves one out

    together = await log.append_many(appends)
    alone = [(await log.append_many([one]))[0] for one in appends]

    for place, (one, other) in enumerate(zip(together, alone, strict=True)):
        if isinstance(one, Appended):
            assert place in (7, 9, 11)
            assert one._replace(duplicate=True) == other
        else:
            assert type(one) is type(other)
            assert str(other).startswith(str(one))  # an error that ends a script names its line besides
    kinds = [type(one).__name__ for one in together]
    assert kinds[:4] == [*["StoreRefused"] * 3, "StreamSealed"]
    assert kinds[4:8] == ["UnknownSpace", "StreamleaseError", "StreamleaseError", "Appended"]
    assert kinds[8:] == ["Fenced", "Appended", "OutOfSequence", "Appended"]
    await client.aclose()


async def test_who_may_not_write_one_stream_may_write_the_others_of_a_call(embedded_redis_url: str) -> None:
    owner = connect(embedded_redis_url)
    streams = [StreamId("space", 0, shard) for shard in range(3)]
    await AsyncLog(owner).open(streams)
    own = [f"~sl:{{{one}}}:*" for one in streams[:2]]
    await owner.execute_command("ACL", "SETUSER", "partly", "reset", "on", ">secret", "+@all", "&*", *own)
    try:
        client = connect(
            embedded_redis_url.replace("://", "://partly:secret@").replace(":secret@:", ":secret@")
        )
        outcomes = await AsyncLog(client).append_many([append(one, 0, rows(0, 1)) for one in streams])
        assert [isinstance(one, Appended) for one in outcomes] == [True, True, False]
        assert isinstance(outcomes[2], StoreRefused)
        assert "rights" in str(outcomes[2])
        await client.aclose()
    finally:
        await owner.execute_command("ACL", "DELUSER", "partly")
        await owner.aclose()


async def test_scripts_survive_a_flush_of_the_script_cache(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId, blocking: BlockingRedis
) -> None:
    reader = AsyncLog(blocking)
    await log.append(append(stream, 0, rows(0, 1)))
    assert run_blocking(reader.append(append(stream, 1, rows(1, 1)))).first == 1
    await redis.script_flush()
    assert (await log.append(append(stream, 2, rows(2, 1)))).first == 2
    await redis.script_flush()
    assert run_blocking(reader.append(append(stream, 3, rows(3, 1)))).first == 3


async def test_many_scripts_at_once_survive_a_flush(real_redis_url: str) -> None:
    client = connect(real_redis_url)  # the fake closes the connection at the first error reply
    log = AsyncLog(client)
    streams = [StreamId("space", 0, shard) for shard in range(5)]
    await log.open(streams)
    for sequence in range(3):
        await client.script_flush()
        done = await log.append_many([append(stream, sequence, rows(0, 1)) for stream in streams])
        assert [one.first for one in done if isinstance(one, Appended)] == [sequence] * 5
    await client.aclose()


async def test_what_retention_took_is_an_error(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId, blocking: BlockingRedis
) -> None:
    await fill(log, stream, [5, 5, 5])
    await redis.xtrim(stream_log(stream), minid="7-0", approximate=False)
    await redis.hset(stream_meta(stream), "floor", "7")
    assert offsets(await log.read(stream, 7)) == list(range(7, 15))
    for ask in (0, 6):
        with pytest.raises(HistoryTruncated) as caught:
            await log.read(stream, ask)
        assert (caught.value.asked, caught.value.oldest) == (ask, 7)
        with pytest.raises(HistoryTruncated):
            [*read_range(blocking, stream, ask, 15)]


async def test_a_hole_is_an_error(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId, blocking: BlockingRedis
) -> None:
    await fill(log, stream, [2, 2, 2])
    await redis.xdel(stream_log(stream), "3-2")
    assert offsets(await log.read(stream, 0)) == [0, 1], "what is before it is there"
    for ask in (2, 3):
        with pytest.raises(MissingOffsets, match=r"nothing at offsets . to 3"):
            await log.read(stream, ask)
    assert offsets(await log.read(stream, 4)) == [4, 5]
    await redis.xdel(stream_log(stream), "5-2")
    with pytest.raises(MissingOffsets):
        await log.read(stream, 4)
    with pytest.raises(MissingOffsets) as caught:
        [*read_range(blocking, stream, 0, 6)]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.asked) == (str(caught.value), caught.value.asked)


async def test_a_range_beyond_the_end_cannot_be_delivered_whole(
    log: AsyncLog, stream: StreamId, blocking: BlockingRedis
) -> None:
    await fill(log, stream, [2, 3])
    with pytest.raises(MissingOffsets, match="nothing at offsets 5 to 6"):
        [*read_range(blocking, stream, 1, 7)]
    assert [*read_range(blocking, stream, 9, 9)] == []
    assert offsets(await log.read(stream, 1, 7)) == [1, 2, 3, 4]


async def test_a_strange_entry_is_an_error(redis: AsyncRedis, log: AsyncLog, stream: StreamId) -> None:
    await redis.xadd(stream_log(stream), {"zz": "?"}, id="0-1")
    await redis.hset(stream_meta(stream), "next", "1")
    with pytest.raises(SchemaMismatch, match=r"entry 0-1 of stream space\.0\.0"):
        await log.read(stream, 0)


async def test_an_error_of_the_server_is_refused_and_writes_nothing(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await redis.set(stream_log(stream), "not a stream")
    with pytest.raises(StoreRefused) as caught:
        await log.append(append(stream, 0, rows(0, 1)))
    assert "\n" not in str(caught.value)
    assert await log.next_offsets([stream]) == {stream: 0}
    assert await redis.hlen(stream_publishers(stream)) == 0


async def test_publishers_at_the_same_time_share_the_offsets(log: AsyncLog, stream: StreamId) -> None:
    async def publish(name: str) -> list[OffsetRange]:
        taken = []
        for sequence in range(10):
            done = await log.append(append(stream, sequence, rows(0, 1 + sequence % 3), publisher=name))
            taken.append(OffsetRange(done.first, done.first + done.rows))
        return taken

    taken = sorted(one for some in await asyncio.gather(*map(publish, "abcd")) for one in some)
    assert [one.start for one in taken] == [0, *(one.end for one in taken[:-1])]
    assert offsets(await log.read(stream, 0)) == list(range(taken[-1].end))


async def test_silent_publishers_are_forgotten_and_named_ones_kept(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    old = {f"~{number}": "1 0 0 1 1000000" for number in range(1023)}
    await redis.hset(stream_publishers(stream), mapping={**old, "query": "1 0 0 1 1000000"})
    await log.append(append(stream, 0, rows(0, 1)))
    assert sorted(await redis.hkeys(stream_publishers(stream))) == [b"query", b"~p"]
    await log.forget("~p", [stream])
    assert await redis.hkeys(stream_publishers(stream)) == [b"query"]


async def test_messages_carry_everything(log: AsyncLog, stream: StreamId) -> None:
    (row,) = rows(0, 1)
    full = row._replace(key=b"k", headers=(("a", b"\0\xff"), ("a", b"")), timestamp=1_000_000)
    await log.append(append(stream, 0, [full]))
    await log.append(append(stream, 1, [full, row]))
    messages = [message for batch in await log.read(stream, 0) for message in to_messages(batch)]
    assert [message.headers for message in messages] == [full.headers, full.headers, ()]
    assert [message.key for message in messages] == [b"k", b"k", None]
    assert messages[0].timestamp.timestamp() == 1
    assert messages[2].timestamp == messages[2].append_timestamp == messages[1].append_timestamp


def test_an_append_keeps_all_keys_in_one_slot(stream: StreamId) -> None:
    call = Append(stream, "~p", 1, 0, append(stream, 0, rows(0, 1)).entry).call
    assert {key[key.index("{") : key.index("}")] for key in call.keys} == {"{space.0.0"}


# -- a failover of Redis that lost acknowledged messages -----------------------------------------------------


async def test_offsets_that_were_acknowledged_and_lost_are_never_used_again(
    log: AsyncLog, stream: StreamId
) -> None:
    await log.append(append(stream, 0, rows(0, 3)))
    placed = await log.append(append(stream, 1, rows(10, 2))._replace(known=8))
    assert placed.first == 8
    with pytest.raises(MissingOffsets) as caught:
        await log.read(stream, 3)
    assert (caught.value.asked, caught.value.oldest) == (3, 8)
    assert offsets(await log.read(stream, 8)) == [8, 9]
    assert (await log.append(append(stream, 2, rows(12, 1))._replace(known=5))).first == 10


async def test_a_reader_keeps_the_offsets_it_has_read_from_being_used_again(
    log: AsyncLog, stream: StreamId
) -> None:
    await log.append(append(stream, 0, rows(0, 3)))
    assert await log.never_again(stream, 3) is None
    assert await log.never_again(stream, 1) is None
    assert await log.never_again(stream, 7) == 3
    assert (await log.append(append(stream, 1, rows(3, 1)))).first == 7
    with pytest.raises(MissingOffsets):
        await log.read(stream, 3)
    await log.seal(stream)
    assert await log.never_again(stream, 99) is None
