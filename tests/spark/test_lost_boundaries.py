"""What tasks read by a boundary counts if Redis still has it then: else others may have stood there."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from streamlease.hosts.keepers import Keepers
from streamlease.spark.collections.change_stream import change_stream
from streamlease.spark.collections.collection_options import columns_of
from streamlease.spark.collections.item_table import item_table
from streamlease.spark.options import SourceOptions
from streamlease.spark.reading.batch_read import batch_reader
from streamlease.spark.schema import readable, stream_columns
from streamlease.spark.source import StreamReader
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.boundary_reading import EpochsLost
from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from streamlease.streams.redis.connection import Command, ask
from tests.epochs.playing import kept
from tests.spark.shop import SPACE, MakeShop, Shop


class Epochs:
    """A collection with epochs, of which Redis loses the newest boundary."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.keeper = shop.thread.call(kept(shop.client, SPACE))
        self.publisher: EpochPublisher = shop.client.epoch_publisher(SPACE, "p")
        shop.thread.call(self.publisher.__aenter__())

    def send(self, epoch: int) -> None:
        self.shop.thread.call(self._send(epoch))

    async def _send(self, epoch: int) -> None:
        for number in range(6):
            await self.publisher.submit(f"prices/{number}", b"x", epoch=epoch)
        await self.publisher.advance(epoch + 1)
        while await self.keeper.turn():
            pass

    def lose(self) -> None:
        """Another one comes in the place of the newest boundary, as after a failover."""
        self.shop.thread.call(self._lose())

    async def _lose(self) -> None:
        redis = self.shop.client.redis
        (bounds,) = await ask(redis, [("XREVRANGE", keys.bounds(SPACE), "+", "-")])
        document = bounds[0][1][1].replace(b'"upto":', b'"upto":1')
        again: list[Command] = [
            ("XADD", keys.bounds(SPACE), id, *(fields if id != bounds[0][0] else ("b", document)))
            for id, fields in reversed(bounds)
        ]
        await ask(redis, [("DEL", keys.bounds(SPACE)), *again])


def read_by_tasks(reader: Any, parts: Any) -> list[dict[str, Any]]:
    worker, tasks = pickle.loads(pickle.dumps((reader, parts)))
    return [row for one in tasks for batch in worker.read(one) for row in batch.to_pylist()]


@pytest.mark.parametrize("asked", [{}, {"asOfEpoch": "1"}])
def test_a_table_whose_boundary_redis_lost_is_no_table(make_shop: MakeShop, asked: dict[str, str]) -> None:
    """Others may have come where it was read."""
    shop = make_shop(epochs=1)
    epochs = Epochs(shop)
    epochs.send(0)
    epochs.send(1)
    given = shop.options("items", **asked)
    reader = item_table(columns_of(given), given)
    parts = reader.partitions()
    assert len(read_by_tasks(reader, parts)) == 6
    epochs.lose()
    with pytest.raises(EpochsLost, match=r"boundary 2 of space prices is not there as it .*; read again"):
        read_by_tasks(reader, parts)
    assert len(read_by_tasks(reader, reader.partitions())) == 6
    shop.thread.call(epochs.publisher.close())


def test_a_micro_batch_whose_boundary_redis_lost_is_none(make_shop: MakeShop) -> None:
    shop = make_shop(epochs=1)
    epochs = Epochs(shop)
    epochs.send(0)
    given = shop.options("changes")
    reader = change_stream(columns_of(given), given)
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    epochs.send(1)
    second = json.loads(json.dumps(reader.latestOffset(first, ReadAllAvailable())))
    assert (first["bound"][0], second["bound"][0]) == (1, 2)
    parts = [reader.partitions(reader.initialOffset(), second), reader.partitions(first, second)]
    assert [len(read_by_tasks(reader, one)) for one in parts] == [6, 6]
    epochs.lose()
    for one in parts:
        with pytest.raises(EpochsLost, match=r"boundary 2 of space prices .* begins with a new checkpoint"):
            read_by_tasks(reader, one)
    assert len(read_by_tasks(reader, reader.partitions(reader.initialOffset(), first))) == 6
    reader.stop()
    shop.thread.call(epochs.publisher.close())


def test_a_query_of_changes_whose_boundary_redis_lost_does_not_go_on(make_shop: MakeShop) -> None:
    """Its sums would be wrong from then on, though all streams are longer than they were."""
    shop = make_shop(epochs=1)
    epochs = Epochs(shop)
    epochs.send(0)
    given = shop.options("changes", maxEpochsPerTrigger="1")
    reader = change_stream(columns_of(given), given)
    begun = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    epochs.send(1)
    epochs.send(2)
    limit = reader.getDefaultReadLimit()
    reached = reader.latestOffset(begun, limit)
    assert reached["bound"][0] == 2
    epochs.lose()
    further = reader.latestOffset(reached, limit)
    assert further["bound"][0] == 3, "what it had read is there"
    epochs.lose()
    with pytest.raises(EpochsLost, match=r"boundary 3 of space prices .* begins with a new checkpoint"):
        reader.latestOffset({**further, "ends": reached["ends"]}, limit)
    reader.stop()
    shop.thread.call(epochs.publisher.close())


def test_a_cut_of_whole_epochs_whose_boundary_redis_lost_is_none(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a query in a group. Its next process reads that micro-batch again, as it is there now."""

    async def keeps_nothing(self: Keepers) -> None:
        """The test does."""

    monkeypatch.setattr(Keepers, "round", keeps_nothing)
    shop = make_shop(epochs=1)
    epochs = Epochs(shop)
    epochs.send(0)
    given = {"redis": shop.url, "subscribe": "$shared/g/prices/#", "epochs": "atomic"}
    options = SourceOptions.parse(given | {"startingOffsets": "earliest"})
    columns = stream_columns(options, readable(given))
    reader = StreamReader(options, columns)
    first = until_further(reader, reader.initialOffset())
    assert len(read_by_tasks(reader, reader.partitions(reader.initialOffset(), first))) == 6
    epochs.send(1)
    second = until_further(reader, first)
    parts = reader.partitions(first, second)
    assert len(read_by_tasks(reader, parts)) == 6
    epochs.lose()
    with pytest.raises(EpochsLost, match=r"boundary 2 of space prices .*start the query again: it goes on"):
        read_by_tasks(reader, parts)
    reader.stop()
    again = StreamReader(options, columns)
    assert len(read_by_tasks(again, again.partitions(first, json.loads(json.dumps(second))))) == 6
    again.stop()
    shop.thread.call(epochs.publisher.close())


def until_further(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The next cut that has something."""
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) == start:
        pass
    return end


def test_epochs_of_a_batch_whose_boundary_redis_lost_are_none(make_shop: MakeShop) -> None:
    shop = make_shop(epochs=1)
    epochs = Epochs(shop)
    epochs.send(0)
    epochs.send(1)
    for asked in ("asOfEpoch", "endingEpoch", "startingEpoch"):
        given = {"redis": shop.url, "subscribe": "prices/#", asked: "0"}
        batch = batch_reader(readable(given), given)
        parts = batch.partitions()
        assert len(read_by_tasks(batch, parts)) == (12 if asked == "startingEpoch" else 6)
        epochs.lose()
        with pytest.raises(EpochsLost, match="boundary 2 of space prices is not there as it was read"):
            read_by_tasks(batch, parts)
    shop.thread.call(epochs.publisher.close())
