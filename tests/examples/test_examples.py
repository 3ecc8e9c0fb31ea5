"""The examples do what they say, on the flights of the first days of 2013."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from streamlease.examples.data import flights
from tests.spark.programs import run_program

FLIGHTS = 1500


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in folder.glob("**/*.parquet") for row in pq.read_table(file).to_pylist()]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_all_examples(embedded_redis_url: str, tmp_path: Path) -> None:
    arguments = {"redis": embedded_redis_url, "folder": str(tmp_path), "flights": FLIGHTS}
    run_program(Path(__file__).parent / "program.py", tmp_path, arguments)
    data = flights(FLIGHTS)
    check_windows(data, rows(tmp_path / "windowed_delays" / "delays"))
    check_latest(data, tmp_path / "upsert_sqlite" / "flights.db")
    check_pairs(data, rows(tmp_path / "join_groups" / "pairs"))
    check_late(data, tmp_path / "chained_jobs" / "late")
    check_delays(data, rows(tmp_path / "from_xreadgroup" / "delays"))


def check_windows(data: list[dict[str, Any]], written: list[dict[str, Any]]) -> None:
    """Each window that the watermark has passed is there once and right."""
    groups: dict[tuple[datetime, str], list[float | None]] = defaultdict(list)
    for row in data:
        start = row["timestamp"].replace(hour=row["timestamp"].hour // 6 * 6, minute=0)
        groups[start, row["origin"]].append(row["dep_delay"])
    passed = max(row["timestamp"] for row in data) - timedelta(hours=2)
    wanted = {key for key in groups if key[0] + timedelta(hours=6) <= passed}
    found = {(row["start"].replace(tzinfo=UTC), row["origin"]): row for row in written}
    assert len(found) == len(written)
    assert found.keys() == wanted
    for key, row in found.items():
        delays = [delay for delay in groups[key] if delay is not None]
        assert row["flights"] == len(groups[key])
        assert row["delay"] == pytest.approx(sum(delays) / len(delays))


def check_latest(data: list[dict[str, Any]], database: Path) -> None:
    """Each aircraft is there once, with a flight of its latest hour."""
    latest: dict[str, datetime] = {}
    for row in data:
        if row["tailnum"] is not None:
            latest[row["tailnum"]] = max(row["timestamp"], latest.get(row["tailnum"], row["timestamp"]))
    with closing(sqlite3.connect(database)) as connection:
        found = dict(connection.execute("SELECT tailnum, departs FROM latest"))
    assert found == {tailnum: int(moment.timestamp()) for tailnum, moment in latest.items()}


def check_pairs(data: list[dict[str, Any]], written: list[dict[str, Any]]) -> None:
    """All pairs within the hour, each once."""
    newark: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in data:
        if row["origin"] == "EWR":
            newark[row["dest"]].append(row)
    wanted = Counter(
        (row["dest"], f"{row['carrier']}{row['flight']}", f"{other['carrier']}{other['flight']}")
        for row in data
        if row["origin"] == "JFK"
        for other in newark[row["dest"]]
        if timedelta(0) <= other["timestamp"] - row["timestamp"] <= timedelta(hours=1)
    )
    assert Counter((row["dest"], row["kennedy"], row["newark"]) for row in written) == wanted
    assert wanted


def check_late(data: list[dict[str, Any]], folder: Path) -> None:
    """The late flights, once each, below their topic."""
    late = [row for row in data if row["arr_delay"] is not None and row["arr_delay"] > 60]
    wanted = Counter((f"late/{row['carrier']}", row["flight"], int(row["arr_delay"])) for row in late)
    found: Counter[tuple[str, int, int]] = Counter()
    for part in folder.glob("topic=*"):
        topic = part.name.removeprefix("topic=").replace("%2F", "/")
        for file in part.glob("*.parquet"):
            table = pq.ParquetFile(file).read()
            found.update((topic, row["flight"], row["minutes"]) for row in table.to_pylist())
    assert found == wanted
    assert wanted


def check_delays(data: list[dict[str, Any]], written: list[dict[str, Any]]) -> None:
    """Every entry of the old stream, once."""
    assert Counter((row["carrier"], row["delay"]) for row in written) == Counter(
        (row["carrier"], row["dep_delay"]) for row in data
    )
