"""Whether PySpark, Spark and the Python of its workers fit each other and this package, told in one line.

``pip install 'streamlease[spark]'`` brings what fits. What it cannot see to are a ``SPARK_HOME`` or a
``PYSPARK_PYTHON`` that were set for something else, and a cluster that brings its own PySpark: Spark would
answer these with the traceback of a process that nobody started by hand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from streamlease.protocol.errors import Unsupported

OLDEST_SPARK = (4, 3)
_PROBE_SECONDS = 60.0
_PROBE = "import sys; print('%d.%d' % sys.version_info[:2])"


def check_versions() -> None:
    """Check all that a Spark session of this process would use.

    Raises:
        Unsupported: PySpark is missing or too old, ``SPARK_HOME`` is another Spark, or ``PYSPARK_PYTHON``
            another Python.
    """
    try:
        import pyspark
    except ImportError:
        raise Unsupported("PySpark is not installed: run \"pip install 'streamlease[spark]'\"") from None
    if is_too_old(pyspark.__version__):
        raise too_old(pyspark.__version__)
    _check_spark_home(pyspark.__version__)
    _check_workers()


def is_too_old(version: str) -> bool:
    """Whether PySpark of that version lacks what this package is written for. Newer ones are let through."""
    return _release(version) < OLDEST_SPARK


def too_old(version: str) -> Unsupported:
    """What to say then."""
    return Unsupported(
        f"this is PySpark {version}, and streamlease needs {_text(OLDEST_SPARK)}: "
        f"run \"pip install 'streamlease[spark]'\", or use a cluster of Spark {_text(OLDEST_SPARK)}"
    )


def _check_spark_home(version: str) -> None:
    home = os.environ.get("SPARK_HOME")
    if not home:
        return
    for jar in Path(home, "jars").glob("spark-core_*.jar"):
        there = jar.stem.split("-", 2)[2]
        if _release(there) != _release(version):
            raise Unsupported(
                f"SPARK_HOME is {home}, which is Spark {there}, and this is PySpark {version}: "
                f"unset SPARK_HOME, or let it name a Spark {_text(_release(version))}"
            )


def _check_workers() -> None:
    """The Python of Spark's workers must be of the same release. One that is not here is let through."""
    wanted = os.environ.get("PYSPARK_PYTHON")
    program = shutil.which(wanted) if wanted and wanted != sys.executable else None
    if program is None:
        return
    try:
        said = subprocess.run(
            [program, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        raise Unsupported(
            f"PYSPARK_PYTHON is {wanted}, which does not run: unset it, or set it to {sys.executable}"
        ) from None
    there, here = said.stdout.strip()[:20], _text(sys.version_info[:2])
    if there != here:
        raise Unsupported(
            f"PYSPARK_PYTHON is {wanted}, which is Python {there}, and this is Python {here}: "
            f"Spark needs the same on both sides; unset it, or set it to {sys.executable}"
        )


def _release(version: str) -> tuple[int, int]:
    """(4, 3) for "4.3.0.dev1", (0, 0) for what is no version."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))
