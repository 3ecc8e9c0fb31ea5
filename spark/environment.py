"""What must stand in the environment before a Spark session is built: Java, Python, and this package.

``pip install`` alone suffices where Java 17 or newer is on PATH and ``python3`` is the right one;
`configure_environment` makes it so elsewhere.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

from streamlease.spark.setup.java import JavaRuntime, ensure_java
from streamlease.spark.setup.versions import check_versions

SOURCE_PACKAGE = "pyspark_streamlease"
"""Spark looks for Python data sources in top-level packages whose names begin with ``pyspark_``."""


def configure_environment() -> JavaRuntime:
    """Make a Spark session that is built after this call use a fitting Java and this very Python.

    Sets ``JAVA_HOME``; sets ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` where they are not set,
    since workers would otherwise take whatever ``python3`` is on PATH. Where the project is installed for
    development, Spark cannot list its packages, so their folder is put onto ``PYTHONPATH``.

    Raises:
        Unsupported: no Java that fits is here, or PySpark, ``SPARK_HOME`` or ``PYSPARK_PYTHON`` do not fit;
            the message says how to get what does.
    """
    check_versions()
    runtime = ensure_java()
    os.environ["JAVA_HOME"] = str(runtime.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _make_listed()
    return runtime


def _make_listed() -> None:
    if any(module.name == SOURCE_PACKAGE for module in iter_modules()):
        return
    spec = find_spec(SOURCE_PACKAGE)
    if spec is None or spec.origin is None:
        return
    folder = str(Path(spec.origin).parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *paths])
