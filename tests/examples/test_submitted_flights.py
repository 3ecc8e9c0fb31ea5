"""The example of Spark queries that are submitted, one of which loses its executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlease.examples import submitted_flights

FLIGHTS = 4000


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_flight_arrives_once_though_an_executor_is_killed(
    embedded_redis_url: str, tmp_path: Path
) -> None:
    found = submitted_flights.run(embedded_redis_url, str(tmp_path), FLIGHTS)
    lost, anew = found.pop("lost"), found.pop("placed_anew")
    assert found.pop("log_ends") == f"0 | {FLIGHTS} flights are published"
    assert found == {"published": FLIGHTS, "arrived": FLIGHTS, "twice": 0, "publisher": "done"}
    assert lost.endswith(" died, or was cut off")
    assert anew not in lost
