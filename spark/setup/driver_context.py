"""The context of Spark's driver, where it is in this process.

A session of Spark Connect has none: the driver is another process, which reads and writes for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.protocol.errors import Unsupported

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def driver_context(spark: SparkSession, why: str, instead: str) -> SparkContext:
    """The context of the driver of `spark`.

    Args:
        why: what is the driver's, for people: ``metrics of Spark are the driver's``.
        instead: what to do without one.

    Raises:
        Unsupported: the session is one of Spark Connect.
    """
    try:
        return spark.sparkContext
    except Exception as error:
        raise Unsupported(
            f"{why}, not those of a session of Spark Connect ({type(error).__name__}): {instead}"
        ) from None
