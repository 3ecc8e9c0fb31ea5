"""Archiving with the workers of a Spark that this command starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from streamlease.protocol.errors import ArchiveUnavailable, InvalidOption, Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamlease.streams.archive.archiver import Archived


def archived_in_spark(master: str, url: str, space: str) -> Archived:
    """Archive now all that is in memory only, in a session of its own.

    Raises:
        InvalidOption: no Spark starts with that master.
        Unsupported: PySpark or a Java is missing, or they do not fit.
        ArchiveUnavailable: not all was written; what was stands.
        As ``archive_with_spark``.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from streamlease.spark.archiving_job import archive_with_spark
        from streamlease.spark.setup.spark_errors import cause_of
    except ImportError as error:
        raise Unsupported(f"--spark needs PySpark ({error}): pip install 'streamlease[spark]'") from None
    try:
        session = _session(master, f"streamlease archive {space}")
    except (PySparkException, Py4JError) as error:
        why = cause_of(error).removesuffix(".")
        raise InvalidOption(
            f"no Spark starts with master {ascii(master)[:80]} ({why}): name one such as 'local[4]', "
            f"'spark://HOST:7077' or 'yarn'"
        ) from None
    try:
        return archive_with_spark(session, url, space)
    except (PySparkException, Py4JError) as error:
        raise ArchiveUnavailable(
            f"Spark did not write all files of space {space} ({cause_of(error)}): what is in the archive "
            f"stands; look at what Spark says above, and try again"
        ) from None
    finally:
        session.stop()


def _session(master: str, name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    from streamlease.spark.environment import configure_environment, without_connect

    given = "PYSPARK_PYTHON" in os.environ
    configure_environment()
    if not given and not master.startswith("local"):
        del os.environ["PYSPARK_PYTHON"]  # workers elsewhere have a Python of their own
    without_connect()
    return SparkSession.builder.master(master).appName(name).getOrCreate()
