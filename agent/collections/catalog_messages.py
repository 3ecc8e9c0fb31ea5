"""A collection of the catalog as messages: ``client.listen("$catalog/NAME")``, and ``consume``.

A message is an item that came or went. Its topic is ``$catalog/NAME``, its payload the item as JSON, and its
headers have ``diff`` (1 or -1) and, where one may go on behind it, ``at``: a cursor for `Client.catalog`.
It has no offset (-1), for the catalog keeps no history: where a reader was, only a cursor says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from streamlease.agent.plain.selecting import PlainBatch
from streamlease.catalog.items import CatalogItem, check_collection
from streamlease.catalog.shown import Removal, Shown
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import CATALOG_TOPICS
from streamlease.registry.starts import Start
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA

if TYPE_CHECKING:
    from streamlease.catalog.followed import Catalog

_Step = tuple[CatalogItem, int, str | None]


class CatalogMessages:
    """An async context manager and iterator of batches, as ``PlainSubscription`` is one.

    Args:
        topic: ``$catalog/NAME``.
        catalog: how the catalog is followed.
        start: ``earliest``: first all that there is; ``latest``: only what changes.
        follow: go on for ever; else end with what there is.

    Raises:
        InvalidInput: the catalog has no such collection.
        InvalidOption: it cannot start there.
    """

    def __init__(
        self,
        topic: str,
        catalog: Callable[[str], Catalog],
        start: Start,
        *,
        follow: bool,
        max_batch: int,
        shown: Shown,
    ) -> None:
        if start not in ("earliest", "latest"):
            raise InvalidOption(
                f"the catalog keeps no history, so {ascii(topic)[:80]} is read from 'earliest' or 'latest': "
                f"client.catalog(NAME, start=CURSOR) goes on behind a cursor"
            )
        self.topic = topic
        self._stream = StreamId(topic, 0, 0)
        self._catalog = catalog(check_collection(topic.removeprefix(CATALOG_TOPICS)))
        self._whole = start == "earliest"
        self._follow = follow
        self._max_batch = max_batch
        self._shown = shown
        self._remove: Removal | None = None
        self._due: Iterator[_Step] = iter(())

    async def __aenter__(self) -> CatalogMessages:
        """Read what there is; raises as `Catalog` does."""
        await self._catalog.__aenter__()
        if self._whole:
            items = [one for one, count in self._catalog.items.items() for _ in range(count)]
            ends = [*(None for _ in items[1:]), self._catalog.at]
            self._due = iter([(item, 1, at) for item, at in zip(items, ends, strict=False)])
        if self._follow:
            self._remove = self._shown.subscription(self.topic)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._remove is not None:
            self._remove()
        await self._catalog.__aexit__(kind, error, traceback)

    def __aiter__(self) -> AsyncIterator[PlainBatch]:
        return self

    async def __anext__(self) -> PlainBatch:
        """The next batch; raises as `Catalog` does."""
        while not (steps := [*islice(self._due, self._max_batch)]):
            if not self._follow:
                raise StopAsyncIteration
            first = await anext(self._catalog)
            changes = [first, *self._catalog.ready()]
            self._due = iter([(one.item, one.diff, one.at) for one in changes])
        return self._batch(steps)

    @property
    def positions(self) -> dict[str, int]:
        """None: see the header ``at`` instead."""
        return {}

    @property
    def ends(self) -> dict[str, int]:
        """None: it never ends."""
        return {}

    def _batch(self, steps: Iterable[_Step]) -> PlainBatch:
        now = datetime.now(UTC)
        rows = [
            {
                "topic": self.topic,
                "payload": item.model_dump_json().encode(),
                "headers": [
                    {"key": name, "value": value.encode()}
                    for name, value in (("diff", str(diff)), ("at", at))
                    if value is not None
                ],
                "stream": str(self._stream),
                "offset": -1,
                "timestamp": now,
                "append_timestamp": now,
            }
            for item, diff, at in steps
        ]
        return PlainBatch(self._stream, -1, -1, pa.RecordBatch.from_pylist(rows, schema=MESSAGE_SCHEMA))
