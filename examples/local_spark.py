"""The Spark session of the examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.spark.environment import configure_environment, submitted_settings, without_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def spark_session(cores: int = 2) -> SparkSession:
    """A local session; if the example is submitted, on the master that it is submitted with."""
    configure_environment()
    without_connect()
    from pyspark.sql import SparkSession

    settings = {
        "spark.master": f"local[{cores}]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.appName("streamlease-example")
    spark = builder.config(map=submitted_settings(settings)).getOrCreate()
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
