"""What is special of the process of a stream source: no collections of garbage before its first cut."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamlease.spark.setup.source_process import RUNNER

BEGINNING = """
import gc, os, sys
from importlib.machinery import ModuleSpec
frozen = gc.get_freeze_count()  # Python 3.12 begins with some
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
{}
from streamlease.spark.source import StreamReader
from streamlease.spark.options import SourceOptions
from streamlease.spark.core.checkpoint import CutOffset

class Session:
    next_cut = lambda self, start, limits: start
    ranges_of = by_slot = lambda self, cut: {{}}
    mailbox = lambda self: "m"

def told():
    return gc.isenabled(), gc.get_freeze_count() > frozen, os.environ.get("PYDANTIC_DISABLE_PLUGINS")

reader = StreamReader(SourceOptions.parse({{"redis": "redis://127.0.0.1:1", "subscribe": "$shared/g/a/#"}}))
reader._query = Session()
start = CutOffset("g/a/#", "q", 0).to_json()
print(*told())
{}
print(*told())
"""

LATEST = "reader.latestOffset(start, reader.getDefaultReadLimit())"
RESTARTED = "reader.partitions(start, start)"


def told(program: str, before: str, call: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING.format(before, call), program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("call", [LATEST, RESTARTED])
def test_it_collects_garbage_again_when_its_first_cut_is_known(call: str) -> None:
    assert told(RUNNER, "", call) == ["False False __all__", "True True __all__"]


def test_what_somebody_else_has_set_stays() -> None:
    before = "gc.disable(); os.environ['PYDANTIC_DISABLE_PLUGINS'] = 'other'"
    assert told(RUNNER, before, LATEST) == ["False False other"] * 2


def test_any_other_process_goes_on_as_ever() -> None:
    assert told("pyspark.daemon", "", LATEST) == ["True False None"] * 2
