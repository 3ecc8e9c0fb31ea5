"""Runs all examples in one Spark session; the arguments are the URL of a Redis and a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from streamlease.examples import (
    chained_jobs,
    data,
    from_xreadgroup,
    join_groups,
    upsert_sqlite,
    windowed_delays,
)
from streamlease.examples.local_spark import spark_session


def main() -> None:
    wanted = json.loads(sys.argv[1])
    url, folder = wanted["redis"], Path(wanted["folder"])
    data.publish(url, wanted["flights"])
    from_xreadgroup.old_producer(url, wanted["flights"])
    for _ in range(2):
        from_xreadgroup.bring_in(url)
    spark = spark_session()
    for example in (windowed_delays, upsert_sqlite, join_groups, chained_jobs, from_xreadgroup):
        place = folder / example.__name__.rpartition(".")[2]
        place.mkdir()
        example.run(spark, url, str(place))
    upsert_sqlite.run(spark, url, str(folder / "upsert_sqlite"))
    spark.stop()


if __name__ == "__main__":
    main()
