"""Lets Spark find ``format("streamlease")`` without registration: it looks for ``pyspark_*`` packages.

Spark imports these for every Python data source, also for those of others, and an import that fails would
take them away as well. So under a PySpark that is too old the source is found, and says so when it is used.
"""

import pyspark

from streamlease.spark.setup.versions import is_too_old

if is_too_old(pyspark.__version__):
    from streamlease.spark.setup.unfit import UnfitSource as DefaultSource
else:
    from streamlease.spark.source import StreamleaseSource as DefaultSource  # type: ignore[assignment]

__all__ = ["DefaultSource"]
