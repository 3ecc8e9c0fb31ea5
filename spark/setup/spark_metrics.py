"""Lag, streams held and rebalances among Spark's own metrics, of all queries of a session, with any sink::

    told_in_metrics(spark)

Spark shows them where it shows its other metrics: under ``/metrics/json/`` at the address of its UI, and in
what ``metrics.properties`` names besides, such as its Prometheus servlet, JMX or Graphite. A Python source
has no metrics of its own there; the driver has. Each query's newest `StreamingQueryProgress` is read by a
listener, and its figures are set in accumulators that Spark's `LongAccumulatorSource` shows as gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.sql.streaming.listener import StreamingQueryListener

from streamlease.spark.setup.driver_context import driver_context
from streamlease.spark.setup.spark_ui import reports

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

UNKNOWN = -1
"""What a gauge shows of a figure that nobody knows: a gauge of Spark's has to have a number."""

SHOWN = ("held", "lag", "rebalances", "failing")
"""Names of a query's gauges, behind ``streamlease.QUERY.``."""


def told_in_metrics(spark: SparkSession) -> StreamingQueryListener:
    """Show, from now on, how the Streamlease sources of the session's queries stand; returns the listener.

    A query has the gauges ``APPLICATION.driver.AccumulatorSource.streamlease.QUERY.NAME``, with its name, or
    its id if it has none, from its first progress on; of several sources the sums. ``held``: streams;
    ``lag``: messages that wait in them; ``rebalances``: streams that came or went; ``failing``: sources that
    get no further. What is not known, and all of a query that has ended, is -1.

    Raises:
        Unsupported: the session is one of Spark Connect, whose metrics are those of another process.
    """
    instead = "run the program with spark-submit, or leave told_in_metrics out"
    context = driver_context(spark, "metrics of Spark are the driver's", instead)
    listener = _Listener(_GAUGES.setdefault(context, _Gauges(context)))
    spark.streams.addListener(listener)
    return listener


def gauges_of(reported: Iterable[str | None]) -> dict[str, int]:
    """What the sources of a query reported, as numbers; empty where none is Streamlease's. Pure.

    Args:
        reported: `SourceProgress.latestOffset` of each source, those of others among them.
    """
    own = reports(reported)
    if not own:
        return {}
    figures = {name: _sum([report.get(name) for report in own]) for name in ("held", "lag", "rebalances")}
    return {**figures, "failing": sum(report.get("error") is not None for report in own)}


def _sum(reported: list[int | None]) -> int:
    known = [figure for figure in reported if figure is not None]
    return sum(known) if len(known) == len(reported) else UNKNOWN


class _Gauges:
    """The gauges of one application.

    Spark takes no gauge back without all others of its kind, so a query that comes again has the same ones.
    """

    def __init__(self, context: SparkContext) -> None:
        self._java = context._jsc.sc()
        self._jvm: Any = context._jvm
        self._of: dict[str, Mapping[str, Any]] = {}

    def show(self, query: str, figures: Mapping[str, int]) -> None:
        """Set the figures of a query, by name."""
        if query not in self._of:
            self._of[query] = self._registered(query)
        for name, gauge in self._of[query].items():
            gauge.setValue(figures.get(name, UNKNOWN))

    def _registered(self, query: str) -> Mapping[str, Any]:
        named = {name: f"streamlease.{query}.{name}" for name in SHOWN}
        gauges = {name: self._java.longAccumulator(full) for name, full in named.items()}
        shown = self._jvm.java.util.HashMap()
        for name, full in named.items():
            shown[full] = gauges[name]
        source = getattr(self._jvm.org.apache.spark.metrics.source, "LongAccumulatorSource$")
        getattr(source, "MODULE$").register(self._java, self._jvm.PythonUtils.toScalaMap(shown))
        return gauges


_GAUGES: WeakKeyDictionary[SparkContext, _Gauges] = WeakKeyDictionary()


class _Listener(StreamingQueryListener):
    """Sets the gauges by what Spark tells of its queries."""

    def __init__(self, gauges: _Gauges) -> None:
        self._gauges = gauges
        self._named: dict[str, str] = {}
        """Names of the queries that have gauges, by their id."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known of its sources yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch has ended, or Spark had none for a while."""
        progress = event.progress
        figures = gauges_of(source.latestOffset for source in progress.sources)
        if figures:
            query = self._named.setdefault(str(progress.id), progress.name or str(progress.id))
            self._gauges.show(query, figures)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Whatever it had is others' now."""
        query = self._named.pop(str(event.id), None)
        if query is not None:
            self._gauges.show(query, {})
