"""An archive of Spark's classes, which a Java that starts maps into its memory.

A Java that runs Spark reads, checks and links some ten thousand classes first: more than half of the
processor time of a short query. One program, run before the first Java of the tests, does what they do, and
Java writes the classes that it loaded into a file when it ends ("class data sharing"). The file stays in
``.cache``, one for each Java and PySpark. A Java that cannot make or use one does without.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark

from streamlease.spark.setup.java import ensure_java

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java that lives for seconds compiles quickly rather than well: a third less processor time."""

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""A Java with another class path, such as Spark's launcher, would warn that the archive is not for it."""


@functools.cache
def java_options() -> str:
    """What a Java for the tests is to be started with."""
    archive = _archive()
    return f"{QUICK} {QUIET} -XX:SharedArchiveFile={archive}" if archive.stat().st_size else QUICK


def _archive() -> Path:
    """The archive; an empty file if this Java makes none."""
    java = ensure_java()
    of = f"{java.home} {java.version} {pyspark.__version__} {Path(pyspark.__file__).parent} {QUICK} "
    key = hashlib.sha256(of.encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    archive = folder / f"spark-classes-{key}.jsa"
    with (folder / "spark-classes.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            for old in folder.glob("spark-classes-*.jsa"):
                old.unlink()
            _make(archive)
    return archive


def _make(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        made = Path(scratch) / "classes.jsa"
        environment = {
            **os.environ,
            "JAVA_HOME": str(ensure_java().home),
            "JAVA_TOOL_OPTIONS": f"{QUICK} {QUIET}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        subprocess.run(
            [sys.executable, __file__, str(made)],
            env=environment,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
        made.touch()
        made.rename(archive)


def _work(archive: str) -> None:
    """What the tests have Spark do, in small; returns when the archive is written."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    class Numbers(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"next": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, str]], dict[str, int]]:
            first = start["next"]
            return iter([(n, str(n)) for n in range(first, first + 3)]), {"next": first + 3}

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n int, text string"

        def simpleStreamReader(self, schema: object) -> Numbers:
            return Numbers()

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "512m").config("spark.sql.shuffle.partitions", "1")
    builder = builder.config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={archive}")
    spark = builder.getOrCreate()
    spark.dataSource.register(Source)
    rows = spark.readStream.format("numbers").load().selectExpr("n", "cast(text as binary) as text")

    def take(batch: DataFrame, number: int) -> None:
        batch.groupBy("n").count().collect()

    for number, sink in enumerate((rows.writeStream.foreachBatch(take), rows.writeStream.format("parquet"))):
        writer = sink.option("checkpointLocation", f"checkpoint-{number}").option("path", f"rows-{number}")
        query = writer.trigger(processingTime="0 seconds").start()
        while query.lastProgress is None or query.lastProgress["batchId"] < 2:
            query.awaitTermination(0.05)  # type: ignore[arg-type]  # parts of a second are fine
        query.stop()
    read = spark.read.parquet("rows-1")
    read.join(spark.range(3).withColumnRenamed("id", "n"), "n").orderBy("n").collect()
    spark.stop()
    gateway: Any = spark.sparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    _work(sys.argv[1])
