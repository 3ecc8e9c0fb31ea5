"""Lag, streams held and rebalances in Spark's own UI, for queries that write with ``foreachBatch``::

    query = frame.writeStream.foreachBatch(told_in_ui(spark, write)).start()

Spark's pages of jobs and stages show a description of each. For a micro-batch it is the query's name, its
id and the number of the batch; this adds a line with what the source said when the micro-batch before had
ended. A Python source cannot say anything there itself, so with other sinks it stands only in
`StreamingQueryProgress` and among Spark's metrics (`streamlease.spark.setup.spark_metrics`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from streamlease.protocol.errors import InvalidOption
from streamlease.spark.setup.driver_context import driver_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

DESCRIPTION, QUERY = "spark.job.description", "sql.streaming.queryId"
"""Names of local properties of the thread in which Spark runs a micro-batch."""

LONGEST = 500
"""Characters of one source's words: an error may be long."""

Write = Callable[["DataFrame", int], object]


def told_in_ui(spark: SparkSession, write: Write) -> Callable[[DataFrame, int], None]:
    """`write`, for ``foreachBatch``, whose jobs tell in Spark's UI how the sources stand.

    Args:
        spark: the session of which the query is.
        write: gets each micro-batch and its number; what it returns is not looked at.

    Raises:
        InvalidOption: `write` is no function.
        Unsupported: the session is one of Spark Connect, where jobs are run by another process.
    """
    if not callable(write):
        raise InvalidOption(f"write is {ascii(write)[:80]}: give the function that gets each micro-batch")
    instead = "run the program with spark-submit, or leave told_in_ui out"
    context = driver_context(spark, "descriptions of jobs in Spark's UI are the driver's", instead)
    missed: list[str] = []

    def told(batch: DataFrame, number: int) -> None:
        query = context.getLocalProperty(QUERY)
        if query is None and not missed:
            missed.append("query")
            log.warning(
                "Spark's UI cannot tell of lag: this thread is not the one of the query; "
                "leave PYSPARK_PIN_THREAD as it is"
            )
        running = None if query is None else spark.streams.get(query)
        progress = None if running is None else running.lastProgress
        words = "" if progress is None else told_of(source.latestOffset for source in progress.sources)
        if words:
            before = context.getLocalProperty(DESCRIPTION) or ""
            context.setJobDescription(described(before, words))
        write(batch, number)

    return told


def told_of(reported: Iterable[str | None]) -> str:
    """What the sources of a query said of themselves; empty where none did. Pure.

    Args:
        reported: `SourceProgress.latestOffset` of each source, those of others among them.
    """
    return "; ".join(report["said"][:LONGEST] for report in reports(reported))


def reports(reported: Iterable[str | None]) -> list[dict[str, Any]]:
    """The reports of Streamlease's sources among what the sources of a query reported. Pure.

    Args:
        reported: `SourceProgress.latestOffset` of each source, those of others among them.
    """
    found = []
    for text in reported:
        try:
            report: Any = json.loads(text or "null")
        except ValueError:
            continue  # of another source
        if isinstance(report, dict) and isinstance(report.get("said"), str):
            found.append(report)
    return found


def described(before: str, words: str) -> str:
    """A description with the words in a line of their own. Spark shows what is no markup as it is. Pure."""
    return f"{before}\n{words}" if before else words
