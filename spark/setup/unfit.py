"""``format("streamlease")`` under a PySpark that is too old for it."""

from __future__ import annotations

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from streamlease.spark.setup.versions import too_old


class UnfitSource(DataSource):
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
