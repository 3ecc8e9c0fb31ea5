"""Collections as Spark reads them, without Java: a snapshot, then changes, once over restarts; and tables."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType

from streamlease.agent.client import Client
from streamlease.protocol.errors import HistoryTruncated, InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.spark.collections import content
from streamlease.spark.collections.change_stream import ChangeStream, change_stream
from streamlease.spark.collections.collection_options import columns_of
from streamlease.spark.collections.item_table import item_table
from streamlease.spark.options import SourceOptions
from streamlease.spark.reading.batch_read import batch_reader
from streamlease.spark.schema import readable, stream_columns
from streamlease.spark.source import StreamReader
from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from streamlease.streams.log.keys import snapshot_entries
from tests.epochs.playing import kept
from tests.spark.durable import Durable
from tests.spark.refusals import one_line
from tests.spark.shop import SPACE, Items, MakeShop, Shop


class Reading:
    """A query that reads the changes; Spark's checkpoint, and a sink that takes each batch once."""

    def __init__(self, shop: Shop, **more: str) -> None:
        self.shop = shop
        self.given = shop.options("changes", **more)
        self.offsets: list[str] = []
        self.commits = 0
        self.sink: dict[int, list[dict[str, Any]]] = {}
        self.reader = self._made()

    def _made(self) -> ChangeStream:
        return change_stream(columns_of(self.given), self.given)

    def restart(self) -> None:
        """End the process, and start another one on its checkpoint."""
        self.reader.stop()
        self.reader = self._made()

    def trigger(self, until: str = "committed") -> bool:
        """One micro-batch, as far as the phase; whether there was one."""
        batch = self.commits
        start = json.loads(self.offsets[batch - 1]) if batch else self.reader.initialOffset()
        if batch == len(self.offsets):
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            if end == start or until == "fixed":
                return end != start
            self.offsets.append(json.dumps(end))
        if until == "logged":
            return True
        rows = self.read(start, json.loads(self.offsets[batch]))
        if until == "read":
            return True
        self.sink.setdefault(batch, rows)
        assert Reading.multiset(rows) == Reading.multiset(self.sink[batch]), "made again, it is the same"
        if until != "sunk":
            self.commits += 1
        return True

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        worker = pickle.loads(pickle.dumps(self.reader))
        parts = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [row for part in parts for batch in worker.read(part) for row in batch.to_pylist()]

    @staticmethod
    def multiset(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
        """What the rows come to."""
        sums: Items = Counter()
        for row in rows:
            item = [row[name] for name in row if name not in ("diff", "stream", "offset", "epoch")]
            sums[tuple(item)] += row["diff"]
        return {item: count for item, count in sums.items() if count}

    def rows(self) -> list[dict[str, Any]]:
        """All in the sink."""
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]


@pytest.fixture
def make_reading() -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def make(shop: Shop, **more: str) -> Reading:
        made.append(Reading(shop, **more))
        return made[-1]

    yield make
    for reading in made:
        reading.reader.stop()


MakeReading = Callable[..., Reading]


def test_a_snapshot_and_then_each_change(make_shop: MakeShop, make_reading: MakeReading) -> None:
    shop = make_shop()
    reading = make_reading(shop)
    assert not reading.trigger(), "nothing is there yet"
    shop.change(50)
    shop.snapshot()
    shop.change(20)
    first = shop.there()
    assert reading.trigger()
    assert {row["offset"] for row in reading.rows()} == {None}
    assert {(row["topic"], row["key"], row["payload"]): row["diff"] for row in reading.rows()} == first
    assert len(reading.rows()) == len(first), "added up"
    assert not reading.trigger()
    shop.change(7)
    assert reading.trigger()
    assert len(reading.sink[1]) == 7, "each change"
    assert all(row["stream"].startswith("prices.0.") and row["epoch"] is None for row in reading.sink[1])
    assert reading.multiset(reading.rows()) == shop.there()


@pytest.mark.parametrize("phase", ["fixed", "logged", "read", "sunk", "committed"])
def test_restarts_change_nothing(make_shop: MakeShop, make_reading: MakeReading, phase: str) -> None:
    """Also while snapshots go on, and retention removes what is in them and was read."""
    shop = make_shop()
    shop.change(30)
    reading = make_reading(shop)
    for _ in range(4):
        reading.trigger(phase)
        reading.restart()
        shop.change(5)
        while reading.trigger():
            pass
        shop.snapshot()
        shop.change(6)
    reading.restart()
    assert reading.trigger()
    assert reading.multiset(reading.rows()) == shop.there()


def test_the_first_micro_batch_is_read_again_from_a_snapshot_that_was_followed(
    make_shop: MakeShop, make_reading: MakeReading
) -> None:
    shop = make_shop(streams=1)
    shop.change(30)
    shop.snapshot()
    reading = make_reading(shop)
    assert reading.trigger("sunk")
    reading.restart()
    shop.change(10)
    shop.snapshot(keep=10)
    assert reading.trigger()
    assert reading.trigger()
    assert reading.multiset(reading.rows()) == shop.there()


def test_a_first_micro_batch_that_cannot_be_read_any_more_says_so(
    make_shop: MakeShop, make_reading: MakeReading
) -> None:
    shop = make_shop(streams=1)
    shop.change(30)
    reading = make_reading(shop)
    assert reading.trigger("logged")
    shop.change(30)
    shop.snapshot()
    reading.restart()
    with pytest.raises(
        HistoryTruncated, match="a later snapshot has what was there: begin with a new"
    ) as told:
        reading.trigger()
    one_line(told.value)


def test_available_now_ends_where_the_collection_ended_at_the_start(
    make_shop: MakeShop, make_reading: MakeReading
) -> None:
    shop = make_shop()
    shop.change(10)
    reading = make_reading(shop)
    reading.reader.prepareForTriggerAvailableNow()
    there = shop.there()
    shop.change(10)
    while reading.trigger():
        pass
    assert reading.multiset(reading.rows()) == there
    reading.restart()
    reading.reader.prepareForTriggerAvailableNow()
    while reading.trigger():
        pass
    assert reading.multiset(reading.rows()) == shop.there()


def test_new_streams_belong_to_it(make_shop: MakeShop, make_reading: MakeReading) -> None:
    shop = make_shop(streams=2)
    shop.change(20)
    reading = make_reading(shop)
    assert reading.trigger()
    shop.thread.call(shop.client.spaces.generations.alter(SPACE, streams=3))
    shop.change(20)
    assert reading.trigger()
    assert reading.multiset(reading.rows()) == shop.there()
    assert {row["stream"][:9] for row in reading.sink[1]} == {"prices.1."}
    assert shop.table() == shop.there(), "an item of both generations is in one row"
    late = make_reading(shop)
    assert late.trigger()
    assert {(row["topic"], row["key"], row["payload"]): row["diff"] for row in late.rows()} == shop.there()


def test_a_micro_batch_has_so_many_changes_at_most(make_shop: MakeShop, make_reading: MakeReading) -> None:
    shop = make_shop(streams=3)
    shop.change(20)
    reading = make_reading(shop, maxOffsetsPerTrigger="7")
    assert reading.trigger()
    there = len(reading.rows())
    shop.change(30)
    shop.thread.call(shop.client.spaces.generations.alter(SPACE, streams=2))
    shop.change(10)
    reading.reader.prepareForTriggerAvailableNow()
    shop.change(1)
    while reading.trigger():
        reading.restart()
        reading.reader.prepareForTriggerAvailableNow()
    sizes = [len(rows) for rows in reading.sink.values()][1:]
    assert sum(sizes) == 41
    assert len(reading.rows()) == there + 41
    assert max(sizes) == 7
    generations = [row["stream"].split(".")[1] for row in reading.rows() if row["stream"]]
    assert generations == sorted(generations), "those of the former generation come first"
    assert reading.multiset(reading.rows()) == shop.there()
    once = make_reading(shop, maxOffsetsPerTrigger="7")
    assert once.trigger()
    shop.change(20)
    end = once.reader.latestOffset(json.loads(once.offsets[0]), ReadAllAvailable())
    assert len(once.read(json.loads(once.offsets[0]), end)) == 20, "once has no limit"


def test_a_space_that_was_made_anew(make_shop: MakeShop, make_reading: MakeReading) -> None:
    shop = make_shop(streams=1)
    shop.change(10)
    reading = make_reading(shop)
    assert reading.trigger()
    reading.offsets[-1] = reading.offsets[-1].replace(": 10", ": 11")
    with pytest.raises(InvalidOption, match="ends before 11, where the query was") as told:
        reading.trigger()
    one_line(told.value)


@pytest.mark.parametrize("read", [False, True], ids=["it has not read what is lost", "it has read it"])
def test_a_failover_that_loses_changes(
    durable: Durable, make_reading: MakeReading, read: bool, request: pytest.FixtureRequest
) -> None:
    shop = Shop(durable.world.url)
    request.addfinalizer(shop.close)
    shop.change(30)
    reading = make_reading(shop, maxOffsetsPerTrigger="8")
    assert reading.trigger()
    shop.change(12)
    before, kept_ones = durable.snapshot(), dict(shop.sums)
    shop.change(40)
    while read and reading.trigger():
        pass
    durable.lose(before)
    shop.sums = Counter(kept_ones)
    if read:
        with pytest.raises(
            InvalidOption, match="where the query was: its space was made anew, or Redis lost"
        ):
            reading.trigger()
        reading = make_reading(shop)
    else:
        reading.restart()
    shop.change(5)
    while reading.trigger():
        pass
    assert reading.multiset(reading.rows()) == shop.there() == shop.table()


# ---------------------------------------------------------------- tables


def test_a_table_of_what_is_there_now(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = make_shop()
    assert shop.table() == {}
    for _ in range(4):
        shop.change(25)
        assert shop.table() == shop.there()
        shop.snapshot()
        assert shop.table() == shop.there()
    assert shop.table(subscribe="prices/1") == {
        item: count for item, count in shop.there().items() if item[0] == "prices/1"
    }


def test_a_snapshot_that_is_followed_while_it_is_read(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop(streams=1)
    shop.change(20)
    shop.snapshot()
    shop.change(3)
    tables = content.snapshot_tables
    gone: list[str] = []

    def too_late(redis: Any, stream: StreamId, stored: Any, *more: Any) -> Any:
        if not gone:
            gone.append(snapshot_entries(stream, stored.token))
            shop.snapshot(keep=1000)
            shop.thread.call(shop.client.redis.delete(gone[0]))
        return tables(redis, stream, stored, *more)

    monkeypatch.setattr(content, "snapshot_tables", too_late)
    there = shop.there()
    assert shop.table() == there
    assert gone


def test_typed_items_and_some_columns(make_shop: MakeShop) -> None:
    schema = {"columns": [{"name": "price", "type": "int64"}, {"name": "tags", "type": "list<string>"}]}
    shop = make_shop(streams=1, schema=schema)

    async def publish() -> None:
        async with shop.client.publisher() as pub:
            data = {"price": [1, 1, 2, 1], "tags": [["a"], ["a"], [], ["b"]], "diff": [1, 2, 5, -1]}
            await pub.send_batch("prices/a", pa.record_batch(data))

    shop.thread.call(publish())
    given = shop.options("items", columns="price,tags,count")
    reader = item_table(columns_of(given), given)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted((row["price"], row["tags"], row["count"]) for row in rows) == [
        (1, ["a"], 3),
        (1, ["b"], -1),
        (2, [], 5),
    ]


# ---------------------------------------------------------------- epochs


def test_epochs_of_a_collection(make_shop: MakeShop, make_reading: MakeReading) -> None:
    """Each micro-batch is whole epochs, and a table is what was there when one was completed."""
    shop = make_shop(epochs=1)
    keeper = shop.thread.call(kept(shop.client, SPACE))
    publisher: EpochPublisher = shop.client.epoch_publisher(SPACE, "p")
    shop.thread.call(publisher.__aenter__())
    after: list[dict[tuple[Any, ...], int]] = []

    async def send(epoch: int) -> None:
        for number in range(6):
            await publisher.submit(f"prices/{number}", b"x", epoch=epoch, diff=epoch + 1)
        await publisher.advance(epoch + 1)
        while await keeper.turn():
            pass

    reading = make_reading(shop)
    for epoch in range(5):
        shop.thread.call(send(epoch))
        total = sum(range(1, epoch + 2))
        after.append({(f"prices/{number}", None, b"x"): total for number in range(6)})
        if epoch == 1:
            shop.snapshot(keep=1000)
        if epoch != 3:
            assert reading.trigger()
            assert reading.multiset(reading.rows()) == after[-1]
    assert [
        sorted({row["epoch"] and row["epoch"][0] for row in rows}, key=str) for rows in reading.sink.values()
    ] == [
        [None],
        [1],
        [2],
        [3, 4],
    ]
    assert shop.table() == after[4]
    assert [shop.table(asOfEpoch=str(epoch)) for epoch in range(5)] == after
    shop.snapshot()
    with pytest.raises(StreamleaseError, match="later snapshot has what was there"):
        shop.table(asOfEpoch="2")
    with pytest.raises(InvalidOption, match="'asOfEpoch' is 7, which is not completed"):
        shop.table(asOfEpoch="7")
    shop.thread.call(publisher.close())


def test_a_micro_batch_has_so_many_epochs_at_most(make_shop: MakeShop, make_reading: MakeReading) -> None:
    shop = make_shop(epochs=1)
    keeper = shop.thread.call(kept(shop.client, SPACE))
    publisher: EpochPublisher = shop.client.epoch_publisher(SPACE, "p")
    shop.thread.call(publisher.__aenter__())

    async def send(*epochs: int) -> None:
        for epoch in epochs:
            for number in range(4):
                await publisher.submit(f"prices/{number}", b"x", epoch=epoch)
        await publisher.advance(max(epochs) + 1)
        while await keeper.turn():
            pass

    reading = make_reading(shop, maxEpochsPerTrigger="2")
    shop.thread.call(send(0))
    assert reading.trigger()
    for epochs in ((1,), (2,), (3,), (4, 5, 6), (7,)):
        shop.thread.call(send(*epochs))
    while reading.trigger():
        pass
    found = [sorted({row["epoch"][0] for row in rows}) for rows in [*reading.sink.values()][1:]]
    assert found == [[1, 2], [3], [4, 5, 6], [7]], "those that completed together stay together"
    assert {len(rows) % 4 for rows in reading.sink.values()} == {0}
    shop.thread.call(publisher.close())


# ---------------------------------------------------------------- changes as messages


def test_a_batch_and_a_group_read_the_diffs_of_changes_if_they_name_them(make_shop: MakeShop) -> None:
    shop = make_shop(streams=2)
    shop.change(60)
    given = {"redis": shop.url, "subscribe": "prices/#", "columns": "topic,key,payload,diff"}
    batch = batch_reader(readable(given), given)
    worker = pickle.loads(pickle.dumps(batch))
    rows = [row for part in batch.partitions() for one in worker.read(part) for row in one.to_pylist()]
    assert len(rows) == 60
    assert Reading.multiset(rows) == shop.there()
    shared = given | {"subscribe": "$shared/g/prices/#", "startingOffsets": "earliest"}
    options = SourceOptions.parse(shared)
    stream = StreamReader(options, stream_columns(options, readable(shared)))
    try:
        start, found = stream.initialOffset(), []
        while len(found) < 60:
            end = stream.latestOffset(start, stream.getDefaultReadLimit())
            worker = pickle.loads(pickle.dumps(stream))
            for part in stream.partitions(start, end):
                found += [row for one in worker.read(part) for row in one.to_pylist()]
            start = end
        assert Reading.multiset(found) == shop.there()
    finally:
        stream.stop()


def test_only_collections_have_diffs_and_nobody_has_them_unasked(make_shop: MakeShop) -> None:
    shop = make_shop(streams=1)
    shop.thread.call(shop.client.create_space("plain", ["plain/#"], streams=1))
    assert "diff" not in readable({"redis": shop.url, "subscribe": "prices/#"}).names
    for subscribe in ("plain/#", "#"):
        with pytest.raises(InvalidOption, match="option 'columns' names 'diff'") as refused:
            readable({"redis": shop.url, "subscribe": subscribe, "columns": "topic,diff"})
        one_line(refused.value)
    schema = {"columns": [{"name": "diff", "type": "string"}]}
    shop.thread.call(shop.client.create_space("typed", ["typed/#"], streams=1, schema=schema))
    given = {"redis": shop.url, "subscribe": "typed/#", "columns": "topic,diff"}
    assert readable(given)["diff"].dataType == StringType()
    shop.thread.call(publish_typed(shop.client))
    batch = batch_reader(readable(given), given)
    assert [row for part in batch.partitions() for one in batch.read(part) for row in one.to_pylist()] == [
        {"topic": "typed/a", "diff": "x"}
    ]


async def publish_typed(client: Client) -> None:
    async with client.publisher() as publisher:
        await publisher.send_batch("typed/a", pa.record_batch({"diff": ["x"]}))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"collection": "rows"},
            "option 'collection' is 'rows': use 'changes' for a stream, 'items' for a table",
        ),
        ({"collection": "items"}, "option 'collection' is 'items', and a stream reads 'changes'"),
        ({"subscribe": "$shared/g/prices/#"}, "a collection is read without a group: give the filter alone"),
        ({"subscribe": "plain/#"}, "has topics of space plain, which is no collection"),
        ({"subscribe": "#"}, "has topics of the spaces plain and prices, and Spark reads one collection"),
        ({"asOfEpoch": "1"}, "option 'asOfEpoch' is unknown"),
        ({"columns": "price"}, "option 'columns' names 'price'"),
        ({"maxOffsetsPerTrigger": "0"}, "option 'maxOffsetsPerTrigger'"),
        ({"maxEpochsPerTrigger": "2"}, "space prices has no epochs: use 'maxOffsetsPerTrigger'"),
    ],
)
def test_options_that_are_refused(make_shop: MakeShop, given: dict[str, str], said: str) -> None:
    shop = make_shop()
    shop.thread.call(shop.client.create_space("plain", ["plain/#"], streams=1))
    options = {
        name: one for name, one in shop.options("changes", **given).items() if name != "embeddedLeader"
    }
    with pytest.raises(StreamleaseError) as refused:
        change_stream(columns_of(options), options)
    assert said in one_line(refused.value)


def test_a_table_of_changes_is_refused(make_shop: MakeShop) -> None:
    shop = make_shop()
    options = shop.options("changes")
    with pytest.raises(InvalidOption, match="is 'changes', and a batch reads 'items': give that"):
        item_table(columns_of(options), options)


def test_a_checkpoint_of_something_else(make_shop: MakeShop, make_reading: MakeReading) -> None:
    shop = make_shop()
    reading = make_reading(shop)
    with pytest.raises(
        InvalidOption, match="the checkpoint is not of a stream of the changes of space prices"
    ):
        reading.reader.latestOffset({"ranges": []}, reading.reader.getDefaultReadLimit())
