"""A collection of prices, and somebody who changes it, for tests of what Spark reads of it."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from streamlease.agent.client import Client
from streamlease.agent.loop import LoopThread
from streamlease.spark.collections.collection_options import columns_of
from streamlease.spark.collections.item_table import item_table
from streamlease.streams.collections.points import newest_point
from streamlease.streams.collections.snapshots import make_snapshot, newest_snapshots
from streamlease.streams.spaces.retention import Retention, Trim, trim

SPACE = "prices"
Items = Counter[tuple[Any, ...]]


class Shop:
    """A collection, and somebody who changes it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.thread = LoopThread("test-shop")
        self.client: Client = self.thread.call(self._connect())
        self.space = self.thread.call(
            self.client.create_space(SPACE, ["prices/#"], **{"collection": True, "streams": 3, **options})
        )
        self.sums: Items = Counter()
        """What is there."""
        self.changes: dict[tuple[str, int], tuple[tuple[Any, ...], int]] = {}
        """Every change, by stream and offset: its item and its diff."""
        self.random = random.Random(272)

    async def _connect(self) -> Client:
        return await Client(self.url, embedded=False).__aenter__()

    def change(self, count: int = 10, items: int = 5) -> None:
        """Some changes of few items."""
        self.thread.call(self._change(count, items))

    async def _change(self, count: int, items: int) -> None:
        async with self.client.publisher() as pub:
            for _ in range(count):
                one = self.random.randrange(items)
                diff = self.random.choice([1, 2, -1])
                item = (f"prices/{one}", b"k", b"%d" % (one // 2))
                stream, offset = await pub.send(item[0], item[2], key=item[1], diff=diff)
                self.sums[item] += diff
                self.changes[str(stream), offset] = item, diff

    def snapshot(self, *, keep: int = 1) -> None:
        """Make snapshots of all streams, and have retention remove what is in them, but so many changes."""
        self.thread.call(self._snapshot(keep))

    async def _snapshot(self, keep: int) -> None:
        redis, space = self.client.redis, await self.client.spaces.get(SPACE)
        ends = (await newest_point(redis, space)).ends
        for stream, former in (await newest_snapshots(redis, list(ends))).items():
            if ends[stream] > former.upto:
                await make_snapshot(redis, space, stream, ends[stream], former)
            if ends[stream]:
                await trim(redis, Trim(stream, Retention(messages=keep), ends[stream]))

    def there(self) -> dict[tuple[Any, ...], int]:
        return {item: count for item, count in self.sums.items() if count}

    def options(self, what: str, **more: str) -> dict[str, str]:
        usual = {"redis": self.url, "subscribe": "prices/#", "collection": what}
        return usual | ({"embeddedLeader": "false"} if what == "changes" else {}) | more

    def table(self, **more: str) -> dict[tuple[Any, ...], int]:
        """The table of its items; each is in one row."""
        given = self.options("items", **more)
        reader = item_table(columns_of(given), given)
        worker = pickle.loads(pickle.dumps(reader))
        parts = pickle.loads(pickle.dumps(reader.partitions()))
        rows = [row for part in parts for batch in worker.read(part) for row in batch.to_pylist()]
        items = [
            (tuple(value for name, value in row.items() if name != "count"), row["count"]) for row in rows
        ]
        assert len(items) == len({item for item, _ in items}), "an item in two rows"
        return dict(items)

    def close(self) -> None:
        self.thread.call(self.client.close())
        self.thread.stop()


MakeShop = Callable[..., Shop]
