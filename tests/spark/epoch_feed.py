"""A space with epochs beside that of a world, and what of it a sink must have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from streamlease.streams.epochs.stored import read_joined
from tests.spark.table import Delivery, Table
from tests.spark.world import World, wait_for

ROWS = 6
"""Messages of an epoch."""


class EpochFeed:
    """Publishes epochs 0, 1, 2 and so on; the topic ``NAME/EPOCH/N`` of a message says its epoch.

    Args:
        world: has a leader host, which keeps the space as well.
    """

    def __init__(self, world: World, name: str = "e") -> None:
        self.name = name
        self.next = 0
        self._world = world
        client = world._client
        world._thread.call(client.create_space(name, [f"{name}/#"], streams=3, epochs=1))
        self._publisher: EpochPublisher = client.epoch_publisher(name, "p")
        world._thread.call(self._publisher.__aenter__())

    def publish(self, count: int) -> None:
        """Publish so many epochs, one after the other, and wait until they are completed."""
        self._world._thread.call(self._publish(count))
        wait_for(self._is_complete)

    async def _publish(self, count: int) -> None:
        for epoch in range(self.next, self.next + count):
            for number in range(ROWS):
                payload = b"%d.%d" % (epoch, number)
                await self._publisher.submit(f"{self.name}/{epoch}/{number}", payload, epoch=epoch)
            await self._publisher.advance(epoch + 1)
        self.next += count

    def _is_complete(self) -> bool:
        joined = self._world._thread.call(read_joined(self._world._client.redis, self.name))
        return sum(joined.ends.values()) == self.next * ROWS

    def payloads(self) -> list[str]:
        """All that was published, in order."""
        return sorted(f"{epoch}.{number}" for epoch in range(self.next) for number in range(ROWS))

    def is_in(self, table: Table) -> bool:
        """Whether all of it is in a table."""
        return sorted(table.messages().values()) == self.payloads()

    def close(self) -> None:
        """Publish no more."""
        self._world._thread.call(self._publisher.close())


def micro_batches(deliveries: Iterable[Delivery]) -> dict[int, set[int]]:
    """The epochs of each micro-batch; all of each must be in it, as often as it was delivered."""
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for delivery in deliveries:
        found[delivery.batch][delivery.message.topic] += 1
    for batch, topics in found.items():
        (times,) = set(topics.values())
        epochs = Counter(topic.split("/")[1] for topic in topics)
        assert set(epochs.values()) == {ROWS}, f"batch {batch}, {times} times, cuts an epoch in two: {epochs}"
    return {batch: {int(topic.split("/")[1]) for topic in topics} for batch, topics in found.items()}
