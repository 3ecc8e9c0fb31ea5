"""Lets Spark find ``format("streamlease")`` without registration: it looks for ``pyspark_*`` packages."""

from streamlease.spark.source import StreamleaseSource as DefaultSource

__all__ = ["DefaultSource"]
