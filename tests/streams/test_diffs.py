"""Diffs of messages: how they stand in entries, how publishers take them, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamlease.protocol.errors import InvalidInput, InvalidOption, SchemaMismatch, SpaceConflict
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange, entry_id
from streamlease.streams.entries.entries import (
    Encoded,
    Row,
    decode_entries,
    encode_batch,
    encode_rows,
    reopened,
)
from streamlease.streams.log.many import read_all
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.rows.few_reading import few_entry
from streamlease.streams.spaces.spaces import Space, SpaceStore

STREAM = StreamId("s", 1, 0)
WITH_DIFF = frozenset({"payload", "diff"})
SCHEMA = {"columns": [{"name": "n", "type": "int64", "nullable": False}]}


def stored(*entries: Encoded) -> list[tuple[bytes, list[bytes]]]:
    found, end = [], 0
    for one in entries:
        found.append((entry_id(end, one.rows), [*one.fields, b"a", b"1000"]))
        end += one.rows
    return found


def diffs_of(*entries: Encoded) -> list[int]:
    batches = decode_entries(STREAM, stored(*entries), columns=WITH_DIFF)
    return [diff for batch in batches for diff in batch.column("diff").to_pylist()]


def rows(*diffs: int) -> list[Row]:
    return [Row("s/a", b"%d" % n, diff=diff) for n, diff in enumerate(diffs)]


@pytest.mark.parametrize(
    "diffs", [[1], [-1], [5], [1, 1, 1], [1, -1, 2**62], [-(2**63) + 1, 2**63 - 1], [3] * 500]
)
def test_what_is_encoded_is_read(diffs: list[int]) -> None:
    entry = encode_rows(rows(*diffs))
    assert diffs_of(entry) == diffs
    again = encode_batch(reopened(entry, None))
    assert diffs_of(again) == diffs


def test_neighbours_with_and_without_diffs_are_read_in_order() -> None:
    assert diffs_of(*(encode_rows(rows(*some)) for some in ([1, 1], [2, 1], [-1], [1], [4, 4]))) == [
        *(1, 1, 2, 1, -1, 1, 4, 4)
    ]


def test_what_only_adds_is_the_same_entry_as_in_any_space() -> None:
    plain = encode_rows([Row("s/a", b"0"), Row("s/a", b"1")])
    assert encode_rows(rows(1, 1)) == plain
    assert encode_rows(rows(1)) == encode_rows([Row("s/a", b"0")])


def test_a_reader_that_asks_for_no_diff_gets_what_it_got_before() -> None:
    entries = stored(encode_rows(rows(2, -1)), encode_rows(rows(7)))
    (first, second) = decode_entries(STREAM, entries)
    assert "diff" not in first.schema.names and "diff" not in second.schema.names
    for (id, flat), offsets in zip(entries, (OffsetRange(0, 2), OffsetRange(2, 3)), strict=True):
        assert few_entry(flat, offsets) is None, id  # so they go the way on which nothing is left out


@pytest.mark.parametrize("damage", [b"0", b"x", b"9223372036854775808"])
def test_a_damaged_diff_is_found_out(damage: bytes) -> None:
    entry = encode_rows([Row("s/a", b"")])
    with pytest.raises(SchemaMismatch, match="damaged"):
        diffs_of(Encoded(1, [*entry.fields, b"n", damage]))


# ------------------------------------------------------------ spaces


@pytest.fixture
def spaces(redis: AsyncRedis) -> SpaceStore:
    return SpaceStore(redis)


async def test_a_space_is_a_collection_from_its_creation_or_never(spaces: SpaceStore) -> None:
    made = await spaces.create("prices", ["prices/#"], collection=True)
    assert made.collection and await spaces.get("prices") == made
    assert await spaces.create("prices", ["prices/#"], collection=True) == made
    with pytest.raises(SpaceConflict, match="prices exists as a collection"):
        await spaces.create("prices", ["prices/#"])
    plain = await spaces.create("plain", ["plain/#"])
    assert not plain.collection
    with pytest.raises(SpaceConflict, match="plain exists as no collection"):
        await spaces.create("plain", ["plain/#"], collection=True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"collection": 1}, "collection is 1: use True or False"),
        ({"collection": True, "compact_after_ms": 60_000}, "never merged"),
        (
            {"collection": True, "schema": {"columns": [{"name": "diff", "type": "int64"}]}},
            "would be taken for the diff",
        ),
    ],
)
async def test_nonsense_is_refused(spaces: SpaceStore, asked: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        await spaces.create("prices", ["prices/#"], **asked)  # type: ignore[arg-type]
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert await spaces.list() == []


async def test_a_schema_of_a_collection_gets_no_column_diff(spaces: SpaceStore) -> None:
    space = await spaces.create("prices", ["prices/#"], collection=True, schema=SCHEMA)
    wider = {"columns": [*SCHEMA["columns"], {"name": "diff", "type": "int64"}]}
    from streamlease.streams.entries.schemas import Schema

    with pytest.raises(InvalidOption, match="would be taken for the diff"):
        space.with_schema(Schema.of(wider))


# ------------------------------------------------------------ publishing


async def read_back(redis: AsyncRedis, space: Space) -> list[int]:
    found = []
    for stream in space.streams():
        reader = RangeReader(stream, 0, None, whole=True, columns=WITH_DIFF)
        (outcome,) = await read_all(redis, [reader])
        assert not isinstance(outcome, Exception)
        found += [diff for batch in outcome for diff in batch.column("diff").to_pylist()]
    return found


async def test_each_way_of_publishing_takes_diffs(redis: AsyncRedis, spaces: SpaceStore) -> None:
    space = await spaces.create("prices", ["prices/#"], collection=True)
    async with Publisher(redis) as pub:
        await pub.send("prices/a", b"x")
        await pub.send("prices/a", b"x", diff=-1)
        await pub.submit("prices/a", b"x", diff=3)
        await pub.submit("prices/a", b"x")
        await pub.submit("prices/a", b"x", diff=1)
        await pub.flush()
        await pub.send_many("prices/a", [b"x", b"y"], diffs=[4, -4])
        await pub.send_many("prices/a", [b"x"])
        for future in await pub.submit_many(["prices/a"] * 100, [b"x"] * 100, diffs=[5] * 100):
            await future
        batch = pa.RecordBatch.from_pydict({"payload": [b"x", b"y"], "diff": pa.array([6, 1], pa.int32())})
        await pub.send_batch("prices/a", batch)
    assert await read_back(redis, space) == [1, -1, 3, 1, 1, 4, -4, 1, *[5] * 100, 6, 1]


async def test_typed_messages_have_diffs_too(redis: AsyncRedis, spaces: SpaceStore) -> None:
    space = await spaces.create("prices", ["prices/#"], collection=True, schema=SCHEMA)
    async with Publisher(redis) as pub:
        await pub.send("prices/a", {"n": 1}, diff=-1)
        await pub.submit("prices/a", {"n": 1})
        await pub.submit("prices/a", {"n": 2}, diff=2)
        await pub.flush()
        await pub.send_batch("prices/a", pa.RecordBatch.from_pydict({"n": [1, 2], "diff": [7, 8]}))
    assert await read_back(redis, space) == [-1, 1, 2, 7, 8]


async def test_a_typed_column_diff_of_another_space_is_no_diff(redis: AsyncRedis, spaces: SpaceStore) -> None:
    schema = {"columns": [{"name": "diff", "type": "int64"}]}
    space = await spaces.create("plain", ["plain/#"], schema=schema)
    async with Publisher(redis) as pub:
        await pub.send_batch("plain/a", pa.RecordBatch.from_pydict({"diff": [0, 8]}))
        await pub.send("plain/a", {"diff": 9})
    reader = RangeReader(space.streams()[0], 0, None, whole=True)
    (outcome,) = await read_all(redis, [reader])
    assert [row for batch in outcome for row in batch.column("diff").to_pylist()] == [0, 8, 9]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("diff", "said"),
    [(0, "changes nothing"), (True, "no whole number"), (1.5, "no whole number"), (2**63, "no whole number")],
)
async def test_a_diff_that_is_none_is_refused(
    redis: AsyncRedis, spaces: SpaceStore, diff: object, said: str
) -> None:
    space = await spaces.create("prices", ["prices/#"], collection=True)
    async with Publisher(redis) as pub:
        for attempt in (
            pub.send("prices/a", b"x", diff=diff),  # type: ignore[arg-type]
            pub.submit("prices/a", b"x", diff=diff),  # type: ignore[arg-type]
            pub.send_many("prices/a", [b"x", b"y"], diffs=[1, diff]),  # type: ignore[list-item]
        ):
            with pytest.raises(InvalidInput) as refused:
                await attempt
            assert said in str(refused.value) and "\n" not in str(refused.value)
        batch = pa.RecordBatch.from_pydict({"payload": [b"x", b"y"], "diff": [1, None]})
        with pytest.raises(InvalidInput, match="1 nulls"):
            await pub.send_batch("prices/a", batch)
        with pytest.raises(InvalidInput, match="changes nothing"):
            await pub.send_batch("prices/a", pa.RecordBatch.from_pydict({"payload": [b"x"], "diff": [0]}))
        with pytest.raises(InvalidInput, match="1 diffs for 2 payloads"):
            await pub.send_many("prices/a", [b"x", b"y"], diffs=[1])
    assert await read_back(redis, space) == []


async def test_a_diff_elsewhere_is_refused(redis: AsyncRedis, spaces: SpaceStore) -> None:
    space = await spaces.create("plain", ["plain/#"])
    async with Publisher(redis) as pub:
        for attempt in (
            pub.send("plain/a", b"x", diff=1),
            pub.submit("plain/a", b"x", diff=-1),
            pub.send_many("plain/a", [b"x"], diffs=[1]),
            pub.send_batch("plain/a", pa.RecordBatch.from_pydict({"payload": [b"x"], "diff": [1]})),
        ):
            with pytest.raises(InvalidInput, match="plain is no collection, so its messages have no diff"):
                await attempt
    assert await read_back(redis, space) == []


async def test_what_waits_goes_to_a_new_generation_with_its_diff(
    redis: AsyncRedis, spaces: SpaceStore
) -> None:
    await spaces.create("prices", ["prices/#"], streams=1, collection=True)
    async with Publisher(redis) as pub:
        await pub.send("prices/a", b"x", diff=2)
        await spaces.generations.alter("prices", streams=2)
        receipt = await pub.submit("prices/a", b"x", diff=-2)
        await pub.submit("prices/b", b"x", diff=9)
        await pub.send_many("prices/a", [b"x"] * 200, diffs=[3] * 200)
        await receipt
    space = await spaces.get("prices")
    assert sorted(await read_back(redis, space)) == sorted([2, -2, 9, *[3] * 200])


async def test_an_epoch_publisher_takes_diffs(redis: AsyncRedis, spaces: SpaceStore) -> None:
    from streamlease.streams.epochs.epoch_publisher import EpochPublisher

    space = await spaces.create("prices", ["prices/#"], collection=True, epochs=1)
    async with EpochPublisher(redis, "prices", "one") as pub:
        await pub.send("prices/a", b"x", diff=-2, epoch=0)
        await pub.submit("prices/a", b"x", epoch=0)
        await pub.send_many("prices/a", [b"x", b"y"], diffs=[3, 1], epoch=0)
    from streamlease.streams.epochs.staged_log import StagedLog  # noqa: F401

    assert await read_back(redis, space) == []  # nobody keeps it here: all is staged
