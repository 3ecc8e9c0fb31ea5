"""``python -m streamlease.spark.setup.unpacking``: makes a folder of the ``pyspark.zip`` of a Spark.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` in front of all that its Python processes import, even where
``pip`` has installed PySpark beside it. Python keeps no byte code of what it imports from a zip file, and
reads the list of its files again and again. So each of these processes compiles PySpark anew, and that is
almost half of what it does until it works (`docs/decisions/0261-pyspark-out-of-its-zip-file.md`).

Modules are found in a folder of the same name too, with the byte code for the Python that runs this. Do it
once, while no program uses that Spark, such as when an image is built. YARN sends the file to its nodes, and
needs it as it was.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

from streamlease.protocol.errors import Unsupported

PACKED = ".packed"
"""What is added to the name of the zip file, which is kept."""

_UNUSED = re.compile(r"[\\/]tests[\\/]")


def default_zip() -> Path:
    """The file of ``$SPARK_HOME``, or else of the PySpark that is installed.

    Raises:
        Unsupported: there is neither.
    """
    home = os.environ.get("SPARK_HOME")
    if home is None:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise Unsupported("PySpark is not installed, and SPARK_HOME is not set: name the zip file")
        home = str(Path(spec.origin).parent)
    return Path(home, "python", "lib", "pyspark.zip")


def unpack(path: Path) -> bool:
    """Make a folder with byte code of a zip file, and keep the file beside it; False if it is a folder now.

    Raises:
        Unsupported: it cannot be read or replaced; then it is as it was.
    """
    if path.is_dir():
        return False
    folder = path.with_name(f"{path.name}.{os.getpid()}")
    packed = path.with_name(path.name + PACKED)
    try:
        try:
            with zipfile.ZipFile(path) as zip:
                zip.extractall(folder)
            compileall.compile_dir(folder, stripdir=folder, prependdir=path, rx=_UNUSED, quiet=2)
            path.rename(packed)
            try:
                folder.rename(path)
            except OSError:
                packed.rename(path)
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, zipfile.BadZipFile) as error:
        raise Unsupported(
            f"{path} cannot be unpacked ({error}): name the pyspark.zip of a Spark that you may change"
        ) from None
    return True


def main() -> None:
    """Parse the options, and do it."""
    parser = argparse.ArgumentParser(
        prog="python -m streamlease.spark.setup.unpacking",
        description="Unpack the pyspark.zip of a Spark, so that its Python processes start sooner.",
    )
    parser.add_argument("zip", nargs="?", type=Path, help="the file; default: that of SPARK_HOME or PySpark")
    given = parser.parse_args()
    try:
        path = given.zip or default_zip()
        done = unpack(path)
    except Unsupported as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"{path} is a folder now\n" if done else f"{path} is a folder already\n")


if __name__ == "__main__":
    main()
