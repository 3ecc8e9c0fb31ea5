"""What a late subscriber gets first: all changes up to a point, added up."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from streamlease.streams.collections.core.multiset import Item, Multiset
from streamlease.streams.collections.core.tables import added_up, changes_of

ENOUGH_ROWS = 262_144
"""So many rows are added up before more are gathered, or as many as there were left the last time."""


class Gathering:
    """Adds up changes of several spaces; those of each have columns of their own."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {}
        self._rows: dict[str, int] = {}
        self._left: dict[str, int] = {}

    async def add(self, space: str, table: pa.Table) -> None:
        """Some changes of a space."""
        self._tables.setdefault(space, []).append(table)
        self._rows[space] = self._rows.get(space, 0) + table.num_rows
        if self._rows[space] >= max(ENOUGH_ROWS, 2 * self._left.get(space, 0)):
            # In a thread: an event loop that has leases must not stand still for so long.
            whole = await asyncio.to_thread(_joined, self._tables[space])
            self._tables[space] = [whole]
            self._rows[space] = self._left[space] = whole.num_rows

    async def items(self) -> dict[Item, int]:
        """How many there are of each item."""
        return await asyncio.to_thread(self._items)

    def _items(self) -> dict[Item, int]:
        multiset = Multiset()
        for tables in self._tables.values():
            multiset.add_all(changes_of(_joined(tables)))
        return multiset.counts


def _joined(tables: list[pa.Table]) -> pa.Table:
    return added_up(pa.concat_tables(tables))
