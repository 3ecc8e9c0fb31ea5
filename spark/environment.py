"""What must stand in the environment before a Spark session is built: Java, Python, and this package.

``pip install`` alone suffices where Java 17 or newer is on PATH and ``python3`` is the right one;
`configure_environment` makes it so elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

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


def without_connect() -> None:
    """Make a session that is built after this call one of the master that it names, in this process.

    ``SPARK_REMOTE`` and ``SPARK_API_MODE`` make others of Spark Connect, which take no master.
    """
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)
    os.environ["SPARK_API_MODE"] = "classic"


def submitted_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a session of a program that may be submitted.

    What a program gives to its session goes before what it was submitted with: so one that names a master
    runs on no other. Here what was given to ``streamlease submit --conf spark.*`` is in place of `settings`.
    With a master on another machine, the address of the driver is not that of this machine alone.
    """
    from streamlease.queries.join_query import CONF

    given = json.loads(os.environ.get(CONF) or "{}")
    found = {**settings, **{name: value for name, value in given.items() if name.startswith("spark.")}}
    if not found.get("spark.master", "local").startswith("local"):
        for name in ("spark.driver.host", "spark.driver.bindAddress"):
            if name not in given:
                found.pop(name, None)
    return found


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
