"""The example of a submitted query that serves, and one that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamlease.examples import submitted_service
from tests.admin.command import Command
from tests.queries.executors import Executors, running


@pytest.fixture
def executors(tmp_path: Path, embedded_redis_url: str) -> Iterator[Executors]:
    yield from running(Command(tmp_path, embedded_redis_url), tmp_path)


@pytest.mark.cluster
def test_a_query_calls_what_another_one_serves(executors: Executors) -> None:
    executors.start("one")
    program = str(submitted_service.__file__)
    calls = executors.submit(program, "--", "call", "20")
    serves = executors.submit(program, "--", "serve")
    assert executors.until(calls, "ended")["outcome"] == "done"
    assert executors.output(calls) == f"19000 {{'{serves}'}}\n"
    executors.command.ok("query", "terminate", serves)
    assert executors.until(serves, "ended")["workers"][0]["exit"] == 0, "it ends by itself at SIGTERM"
