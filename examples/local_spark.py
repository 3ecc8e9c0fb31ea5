"""The Spark session of the examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.spark.environment import configure_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def spark_session(cores: int = 2) -> SparkSession:
    """A local session."""
    configure_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("streamlease-example")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stream(spark: SparkSession, url: str, subscribe: str) -> DataFrame:
    """A subscription as a stream, from the oldest message."""
    return (
        spark.readStream.format("streamlease")
        .option("redis", url)
        .option("subscribe", subscribe)
        .option("startingOffsets", "earliest")
        .load()
    )
