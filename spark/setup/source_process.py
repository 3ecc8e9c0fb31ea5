"""The process of a stream source, which Spark starts anew for each query and for nothing else.

It is busy until the first cut is fixed, mostly with imports, and a first row waits for that. What it imports
stays, so looking for garbage in it again and again finds nothing, and takes a tenth of the time; nor will
there be a plug-in of pydantic, for which every package that is installed is looked through.
"""

from __future__ import annotations

import gc
import os
import sys

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program that has the reader of one query run, and nothing else."""


def is_source_process() -> bool:
    """Whether this process runs that program; any other belongs to somebody else as well."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == RUNNER


class _Beginning:
    put_off = False
    """Whether collections are."""


def begin() -> None:
    """Do without collections and plug-ins until `begun`; does nothing in any other process."""
    if is_source_process():
        _Beginning.put_off = gc.isenabled()
        gc.disable()
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def begun() -> None:
    """Collect garbage again, among what comes from now on; does nothing in any other process."""
    if _Beginning.put_off:
        _Beginning.put_off = False
        gc.freeze()
        gc.enable()
