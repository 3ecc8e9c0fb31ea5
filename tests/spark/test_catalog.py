"""The catalog as Spark reads it: a table of what there is, and a stream of what changes, exactly once."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

from streamlease.agent.client import Client
from streamlease.agent.loop import LoopThread
from streamlease.catalog.items import ITEMS
from streamlease.catalog.own_rows import OwnRows
from streamlease.protocol.errors import CatalogTruncated, InvalidInput, InvalidOption, StreamleaseError
from streamlease.registry import hosts
from streamlease.registry.hosts import HostInfo
from streamlease.spark.collections.catalog_frame import catalog_columns
from streamlease.spark.collections.catalog_reading import CatalogStream, catalog_stream, catalog_table
from streamlease.streams.catalog.keys import HOSTS
from streamlease.streams.redis.connection import ask
from tests.spark.refusals import one_line

Rows = list[dict[str, Any]]


class Town:
    """Hosts that come and go, and a reader of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.thread = LoopThread("test-town")
        self.client: Client = self.thread.call(self._connect())
        self.reader = self.made()
        self.offsets: list[str] = []
        self.sink: dict[int, Rows] = {}

    async def _connect(self) -> Client:
        return await Client(self.url, embedded=False).__aenter__()

    def made(self, collection: str = "hosts") -> CatalogStream:
        given = {"redis": self.url, "subscribe": f"$catalog/{collection}"}
        return catalog_stream(catalog_columns(given), given)

    def beat(self, *names: str, leaders: int = 0) -> None:
        for name in names:
            self.thread.call(hosts.beat(self.client.redis, HostInfo(host=name, leaders=leaders)))

    def leave(self, name: str) -> None:
        self.thread.call(hosts.leave(self.client.redis, name))

    def there(self) -> Counter[str]:
        async def listed() -> Counter[str]:
            async with self.client.catalog("hosts") as found:
                return Counter(one.model_dump_json() for one in found.items)

        return self.thread.call(listed())

    def restart(self) -> None:
        """As Spark does: a new reader, which knows the checkpoint alone."""
        self.reader.stop()
        self.reader = self.made()

    def trigger(self) -> bool:
        start = json.loads(self.offsets[-1]) if self.offsets else self.reader.initialOffset()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if end == start:
            return False
        self.offsets.append(json.dumps(end))
        self.sink[len(self.offsets)] = self.rows(start, end)
        return True

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> Rows:
        worker = pickle.loads(pickle.dumps(self.reader))
        parts = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [row for part in parts for batch in worker.read(part) for row in batch.to_pylist()]

    def again(self, number: int) -> Rows:
        """A micro-batch that Spark makes again from its checkpoint."""
        start = json.loads(self.offsets[number - 2]) if number > 1 else self.reader.initialOffset()
        return self.rows(start, json.loads(self.offsets[number - 1]))

    def read(self) -> Counter[str]:
        """What all rows come to."""
        sums: Counter[str] = Counter()
        for rows in self.sink.values():
            for row in rows:
                diff = row.pop("diff")
                sums[json.dumps(row, separators=(",", ":"))] += diff
                row["diff"] = diff
        return Counter({item: count for item, count in sums.items() if count})

    def close(self) -> None:
        self.reader.stop()
        self.thread.call(self.client.close())
        self.thread.stop()


@pytest.fixture
def town(embedded_redis_url: str) -> Iterator[Town]:
    town = Town(embedded_redis_url)
    yield town
    town.close()


def test_a_snapshot_and_then_each_change_once_over_restarts(town: Town) -> None:
    town.beat("a", "b")
    assert town.trigger()
    assert [row["diff"] for row in town.sink[1]] == [1, 1]
    assert town.read() == town.there()
    assert not town.trigger(), "nothing is new"
    for number in range(1, 4):
        town.beat("a", leaders=number)
        town.leave("b") if number == 2 else town.beat(f"c{number}")
        town.restart()
        assert town.trigger()
        assert town.read() == town.there()
    while town.trigger():
        pass
    assert town.read() == town.there()


def test_a_micro_batch_made_again_has_the_same_rows(town: Town) -> None:
    town.beat("a", "b")
    assert town.trigger()
    town.beat("a", leaders=1)
    assert town.trigger()
    town.leave("a")
    town.beat("d")
    assert town.trigger()
    town.restart()
    for number in (1, 2, 3):
        order = [json.dumps(row) for row in town.again(number)]
        assert sorted(order) == sorted(map(json.dumps, town.sink[number])), number


def test_leaders_and_leases_are_streams_too(town: Town) -> None:
    client = town.client

    async def consume() -> None:
        await client.create_space("s", ["s/#"], streams=3)
        await client.groups.declare(SharedSubscription.parse("$shared/h/s/#"))

    from streamlease.protocol.topics import SharedSubscription

    town.thread.call(consume())
    for collection, count in (("leaders", 1), ("leases", 0)):
        reader = town.made(collection)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert sum(
            batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part)
        ) == (count)
        assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
        reader.stop()


def test_what_is_not_kept_any_more_ends_the_query_and_says_so(town: Town) -> None:
    town.beat("a")
    assert town.trigger()
    town.reader.stop()
    town.beat("b", "c")
    town.thread.call(ask(town.client.redis, [("XTRIM", HOSTS.changes, "MAXLEN", 1)]))
    town.restart()
    with pytest.raises(CatalogTruncated, match="or Redis lost it: begin with a new checkpoint") as told:
        town.trigger()
    one_line(told.value)
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


def test_available_now_ends_where_it_was_at_the_start(town: Town) -> None:
    town.beat("a")
    town.reader.prepareForTriggerAvailableNow()
    town.beat("b")
    assert town.trigger()
    assert not town.trigger()
    assert [row["host"] for row in town.sink[1]] == ["a"]


def test_each_collection_is_a_table_with_the_columns_of_its_items(town: Town) -> None:
    own = OwnRows(town.client.redis)

    async def put() -> None:
        labels = (("zone", "a"), ("gpu", "1"))
        own.put("executors", "e", {"executor": "e", "slots": 2, "labels": labels, "ports": [1, 9]})
        worker = {"worker": 0, "executor": "e", "host": "h", "port": 9, "pid": None, "exit": None}
        query = {"query": "q", "name": "n", "state": "running", "workers": [worker]}
        rest = dict.fromkeys(("outcome", "former", "next")) | {"reason": "", "who": "", "restart": False}
        own.put("queries", "q", query | rest)
        await own.settled()

    town.thread.call(put())
    for name in ITEMS:
        given = {"redis": town.url, "Subscribe": f"$catalog/{name}", "collection": "items"}
        columns = catalog_columns(given)
        assert columns.names == [*ITEMS[name].model_fields, "count"]
        table = catalog_table(columns, given)
        rows = [row for part in table.partitions() for batch in table.read(part) for row in batch.to_pylist()]
        assert len(rows) == (name in ("executors", "queries"))
        if name == "queries":
            (worker,) = rows[0]["workers"]
            assert (worker["executor"], worker["port"], worker["exit"]) == ("e", 9, None)
        if name == "executors":
            assert rows[0] | {"labels": [["zone", "a"], ["gpu", "1"]], "ports": [1, 9], "count": 1} == rows[0]
    town.thread.call(own.close())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "$catalog/leader"}, "the catalog has no collection 'leader': did you mean leaders?"),
        ({"subscribe": "$catalog/hosts", "collection": "all"}, "option 'collection' is 'all': use 'changes'"),
        ({"subscribe": "$catalog/hosts", "startingOffsets": "earliest"}, "'startingOffsets' is unknown"),
        ({"subscribe": "$catalog/hosts", "columns": "host,none"}, "option 'columns' names 'none'"),
    ],
)
def test_bad_options_are_one_line(town: Town, options: dict[str, str], said: str) -> None:
    with pytest.raises((InvalidInput, InvalidOption)) as told:
        catalog_columns({"redis": town.url, **options})
    assert said in one_line(told.value)


def test_a_stream_is_of_changes_and_a_checkpoint_of_one_collection(town: Town) -> None:
    given = {"redis": town.url, "subscribe": "$catalog/hosts", "collection": "items"}
    with pytest.raises(InvalidOption, match="a stream reads 'changes'"):
        catalog_stream(StructType([]), given)
    with pytest.raises(StreamleaseError, match=r"not of a stream of \$catalog/hosts: use a new checkpoint"):
        town.reader.latestOffset({"catalog": "leases", "at": None}, town.reader.getDefaultReadLimit())
