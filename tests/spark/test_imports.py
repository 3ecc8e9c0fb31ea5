"""What each of Spark's Python processes imports of this package: what its own job needs, and no other job."""

from __future__ import annotations

import subprocess
import sys

import pytest

READER = """
import pickle
from streamlease.spark.options import SourceOptions
from streamlease.spark.source import StreamReader
reader = StreamReader(SourceOptions.parse({"redis": "redis://127.0.0.1:1", "subscribe": "$shared/g/a/#"}))
"""

JOBS = {
    "tells the columns": "import pyspark_streamlease",
    "plans a stream": READER + "reader.getDefaultReadLimit(); pickle.dumps(reader)",
    "is a query's session": READER + "reader.initialOffset(); reader.stop()",
    "leads": "import streamlease.hosts.host",
    "reads a stream": READER
    + "reader = pickle.loads(pickle.dumps(reader)); import streamlease.spark.reading.task",
    "plans and reads a batch": "import streamlease.spark.source, streamlease.spark.reading.batch_read",
    "writes": "import streamlease.spark.source, streamlease.spark.sink",
}

ROOMS = {
    "leads": ("streamlease.leader", "streamlease.hosts", "rq"),
    "consumes": ("streamlease.agent.membership", "streamlease.spark.query", "prometheus_client"),
    "reads": ("streamlease.spark.reading.task", "streamlease.spark.reading.batch_read"),
    "writes": ("streamlease.spark.sink", "streamlease.streams.publish.staging"),
    "computes": ("pyarrow.compute",),
}

NEEDED = {
    "leads": {"leads", "consumes"},
    "is a query's session": {"consumes"},
    "reads a stream": {"reads"},
    "plans and reads a batch": {"reads"},
    "writes": {"writes"},
}


@pytest.mark.parametrize("job", JOBS)
def test_a_process_of_spark_imports_what_its_job_needs(job: str) -> None:
    """A leader is needed by a query's session only where it leads by itself."""
    done = subprocess.run(
        [sys.executable, "-c", f"{JOBS[job]}\nimport sys\nprint(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    found = {
        room
        for room, names in ROOMS.items()
        if any(module == name or module.startswith(f"{name}.") for module in imported for name in names)
    }
    assert found == NEEDED.get(job, set())
