"""Lets Spark find ``format("streamlease")`` without registration: it looks for ``pyspark_*`` packages.

Spark imports these for every Python data source, also for those of others, and an import that fails would
take them away as well. So under a PySpark that is too old the source is found, and says so when it is used.
"""

import pyspark

from streamlease.spark.setup.versions import is_too_old, too_old

if is_too_old(pyspark.__version__):
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    class DefaultSource(DataSource):
        """Says what is wrong, instead of an import that fails."""

        @classmethod
        def name(cls) -> str:
            """The name of the format."""
            return "streamlease"

        def schema(self) -> StructType:
            """Nothing.

            Raises:
                Unsupported: always.
            """
            raise too_old(pyspark.__version__)

else:
    from streamlease.spark.source import StreamleaseSource as DefaultSource  # type: ignore[assignment]

__all__ = ["DefaultSource"]
