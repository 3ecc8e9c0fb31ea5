"""The staged log of a stream takes what the stream takes, and counts what nobody has moved."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import (
    Fenced,
    NotDurable,
    SchemaMismatch,
    StoreRefused,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.decoding import decode_entries
from streamlease.streams.entries.encoding import encode_rows, encode_typed_rows
from streamlease.streams.entries.entries import Encoded, Row
from streamlease.streams.entries.epoch_fields import with_epoch
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.epochs.keys import staged_epochs, staged_log, staged_meta, staged_news
from streamlease.streams.epochs.staged_log import StagedLog
from streamlease.streams.log.appends import Append, Appended, OutOfSequence, StreamPending
from streamlease.streams.log.keys import stream_log
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.durability import Durability
from tests.epochs.staging import STREAMS
from tests.streams.helpers import rows

INCARNATION = 3 << 20
OTHER = StreamId("space", 1, 1)
THIRD = StreamId("space", 1, 2)


@pytest.fixture
async def log(redis: AsyncRedis) -> AsyncLog:
    return AsyncLog(redis)


@pytest.fixture
async def stream() -> StreamId:
    """An open, empty stream."""
    return STREAMS[0]


@pytest.fixture
async def staged(redis: AsyncRedis) -> StagedLog:
    return StagedLog(redis)


def append(
    stream: StreamId,
    sequence: int,
    content: Sequence[Row] | Encoded,
    epoch: Epoch = (4,),
    *,
    incarnation: int = INCARNATION,
    writer: str = "ingest-1 3",
    durability: str = "memory",
) -> Append:
    entry = content if isinstance(content, Encoded) else encode_rows(content)
    return Append(
        stream,
        "ingest-1",
        incarnation,
        sequence,
        with_epoch(entry, epoch, writer),
        durability=Durability.parse(durability),
    )


async def one(staged: StagedLog, wanted: Append) -> Appended | StreamleaseError:
    (outcome,) = await staged.append_many([wanted])
    return outcome


async def counted(redis: AsyncRedis, stream: StreamId) -> dict[str, int]:
    found = await redis.hgetall(staged_epochs(stream))
    return {name.decode(): int(count) for name, count in found.items()}


async def test_what_is_staged_is_in_the_staged_log_only(
    staged: StagedLog, redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    first = await one(staged, append(stream, 0, rows(0, 3)))
    assert isinstance(first, Appended) and (first.first, first.rows, first.duplicate) == (0, 3, False)
    second = await one(staged, append(stream, 1, rows(3, 1), (5,)))
    assert isinstance(second, Appended) and second.first == 3
    entries = await redis.xrange(staged_log(stream))
    flat = [(id, [part for pair in fields.items() for part in pair]) for id, fields in entries]
    found = [row for batch in decode_entries(stream, flat) for row in batch.to_pylist()]
    assert [(row["payload"], row["epoch"], row["offset"]) for row in found] == [
        (b"message 0", [4], 0),
        (b"message 1", [4], 1),
        (b"message 2", [4], 2),
        (b"message 3", [5], 3),
    ]
    assert {fields[b"w"] for _, fields in entries} == {b"ingest-1 3"}
    assert await counted(redis, stream) == {"4 ingest-1 3": 3, "5 ingest-1 3": 1}
    assert await log.next_offsets([stream]) == {stream: 0}
    assert not await redis.exists(stream_log(stream))


async def test_a_repetition_is_counted_once(staged: StagedLog, redis: AsyncRedis, stream: StreamId) -> None:
    await one(staged, append(stream, 0, rows(0, 2)))
    again = await one(staged, append(stream, 0, rows(0, 2)))
    assert isinstance(again, Appended) and again.duplicate and again.first == 0
    assert await counted(redis, stream) == {"4 ingest-1 3": 2}


async def test_sequences_and_fences_are_those_of_a_log(staged: StagedLog, stream: StreamId) -> None:
    await one(staged, append(stream, 0, rows(0, 1)))
    await one(staged, append(stream, 1, rows(1, 1)))
    for sequence in (3, 0):
        assert isinstance(await one(staged, append(stream, sequence, rows(0, 1))), OutOfSequence)
    newer = append(stream, 0, rows(2, 1), incarnation=4 << 20, writer="ingest-1 4")
    assert isinstance(await one(staged, newer), Appended)
    late = await one(staged, append(stream, 2, rows(2, 1)))
    assert type(late) is Fenced


async def test_several_streams_are_staged_by_one_call(
    staged: StagedLog, redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await log.open([OTHER])
    await one(staged, append(OTHER, 0, rows(0, 1), incarnation=4 << 20))
    found = await staged.append_many([append(one, 0, rows(0, 2)) for one in (stream, OTHER, THIRD)])
    assert [type(outcome) for outcome in found] == [Appended, Fenced, UnknownSpace]
    assert await counted(redis, stream) == {"4 ingest-1 3": 2}
    assert await counted(redis, OTHER) == {"4 ingest-1 3": 1}
    assert not await redis.exists(staged_meta(THIRD)), "nothing is made for a stream that is not there"


async def test_it_takes_what_its_stream_takes(staged: StagedLog, log: AsyncLog, stream: StreamId) -> None:
    await log.open([OTHER], "pending")
    assert isinstance(await one(staged, append(OTHER, 0, rows(0, 1))), StreamPending)
    await log.open([OTHER], "begin")
    assert isinstance(await one(staged, append(OTHER, 0, rows(0, 1))), Appended)
    await log.seal(OTHER)
    assert isinstance(await one(staged, append(OTHER, 1, rows(1, 1))), StreamSealed)
    again = await one(staged, append(OTHER, 0, rows(0, 1)))
    assert isinstance(again, Appended) and again.duplicate, "what is there is there"


async def test_the_schema_is_that_of_the_stream(staged: StagedLog, log: AsyncLog, stream: StreamId) -> None:
    old = Schema.of(pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    new = Schema.of(pa.schema([pa.field("n", pa.int64(), nullable=False), ("more", pa.string())]))
    row = Row("s/a", b"", values={"n": 1})
    assert isinstance(await one(staged, append(stream, 0, encode_typed_rows(old, [row]))), SchemaMismatch)
    await log.set_schemas([stream], Versions((old,)))
    assert isinstance(await one(staged, append(stream, 0, rows(0, 1))), SchemaMismatch)
    assert isinstance(await one(staged, append(stream, 0, encode_typed_rows(old, [row]))), Appended)
    await log.set_schemas([stream], Versions((old, new)))
    late = append(stream, 1, encode_typed_rows(old, [row]), (7,))
    (refused,) = await staged.append_many([late], evolve=False)
    assert isinstance(refused, SchemaMismatch)
    assert isinstance(await one(staged, late), Appended), "it is written under the newest version"


async def test_an_entry_must_say_its_epoch_and_who_staged_it(
    staged: StagedLog, redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await log.open([OTHER])
    plain = encode_rows(rows(0, 1))
    for entry in (plain, with_epoch(plain, (4,))):
        wrong = Append(stream, "ingest-1", INCARNATION, 0, entry)
        assert isinstance(await one(staged, wrong), StoreRefused)
        outcomes = await staged.append_many([wrong, append(OTHER, 0, rows(0, 1))])
        assert isinstance(outcomes[0], StoreRefused) and isinstance(outcomes[1], Appended)
    assert not await redis.exists(staged_meta(stream))


async def test_it_is_as_durable_as_its_space_demands(staged: StagedLog, stream: StreamId) -> None:
    (outcome,) = await staged.append_many(
        [append(stream, 0, rows(0, 1), durability="replicated:3")], wait_seconds=0.01
    )
    assert isinstance(outcome, NotDurable | StoreRefused)


async def test_followers_hear_of_it(staged: StagedLog, redis: AsyncRedis, stream: StreamId) -> None:
    async with redis.pubsub() as heard:
        await heard.subscribe(staged_news(stream))
        await heard.get_message(timeout=5)
        await one(staged, append(stream, 0, rows(0, 3)))
        message = await heard.get_message(ignore_subscribe_messages=True, timeout=5)
    assert message is not None and message["data"] == b"3"


async def test_what_others_put_into_it_ends_it(
    staged: StagedLog, redis: AsyncRedis, stream: StreamId
) -> None:
    await one(staged, append(stream, 0, rows(0, 1)))
    await redis.xadd(staged_log(stream), {"some": "thing"}, id="900-1")
    for _ in range(2):
        outcome = await one(staged, append(stream, 1, rows(1, 1)))
        assert type(outcome) is StreamleaseError
        assert f"{staged_log(stream)} was given an entry which Streamlease did not write" in str(outcome)
        await redis.xdel(staged_log(stream), "900-1")
