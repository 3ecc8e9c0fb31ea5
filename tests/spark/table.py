"""A sink in SQLite: a table with a row per message, replaced by its key, and a list of every delivery.

The table is what a user would have. The list is for the judge: each committed transaction adds its rows, so
it shows what came twice, in which micro-batch of which query.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tests.spark.world import Checkpoint, Seen

_TABLES = """
CREATE TABLE IF NOT EXISTS messages (
    stream TEXT, offset INTEGER, topic TEXT, payload TEXT, cut TEXT, PRIMARY KEY (stream, offset));
CREATE TABLE IF NOT EXISTS deliveries (
    query TEXT, batch INTEGER, stream TEXT, offset INTEGER, topic TEXT, payload TEXT, cut TEXT);
"""
_UPSERT = """
INSERT INTO messages VALUES (?, ?, ?, ?, ?) ON CONFLICT (stream, offset) DO UPDATE
SET topic = excluded.topic, payload = excluded.payload, cut = excluded.cut
"""


class Message(NamedTuple):
    """One row of a micro-batch."""

    stream: str
    offset: int
    topic: str
    payload: str
    cut: str


class Delivery(NamedTuple):
    """A row, and the micro-batch that it came in."""

    query: str
    batch: int
    message: Message


class Table:
    """See the module. Every call is a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self._connect()) as connection:
            connection.executescript(_TABLES)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60.0)

    def put(self, query: str, batch: int, rows: Iterable[Message]) -> None:
        """One transaction: all rows of a micro-batch, or none."""
        rows = list(rows)
        with closing(self._connect()) as connection, connection:
            connection.executemany(_UPSERT, rows)
            connection.executemany(
                "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?, ?)", [(query, batch, *row) for row in rows]
            )

    def messages(self) -> dict[tuple[str, int], str]:
        """The table: the payload of each message."""
        with closing(self._connect()) as connection:
            rows = connection.execute("SELECT stream, offset, payload FROM messages").fetchall()
        return {(stream, offset): payload for stream, offset, payload in rows}

    def deliveries(self) -> list[Delivery]:
        """Every row of every transaction, in the order in which they were committed."""
        with closing(self._connect()) as connection:
            rows = connection.execute("SELECT * FROM deliveries ORDER BY rowid").fetchall()
        return [Delivery(query, batch, Message(*row)) for query, batch, *row in rows]

    def times(self) -> Counter[tuple[str, int]]:
        """How often each message was delivered."""
        return Counter(delivery.message[:2] for delivery in self.deliveries())

    def checkpoint(self) -> Checkpoint:
        """The deliveries as `World.check` takes them: each transaction as a batch."""
        found: dict[int, list[Seen]] = {}
        for delivery in self.deliveries():
            message = delivery.message
            found.setdefault(delivery.batch, []).append(Seen(message.stream, message.offset, message.cut))
        return Checkpoint(sink=found)
